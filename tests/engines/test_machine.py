"""Which kind of product an engine uses on this machine."""

import json

import pytest
import torch

from agreement import disagreement, randomised
from families import FAMILIES, images
from vitlab.engines import machine
from vitlab.engines.machine import is_packing_faster
from vitlab.engines.networks import can_pack
from vitlab.engines.opening import open_engine
from vitlab.models.build import build_from_spec


@pytest.fixture
def remembered(tmp_path, monkeypatch):
    """The file of a cache of its own."""
    monkeypatch.setenv("VITLAB_ENGINE_CACHE", str(tmp_path / "cache"))
    is_packing_faster.cache_clear()
    yield lambda: next((tmp_path / "cache" / "packing").glob("*.json"))
    is_packing_faster.cache_clear()


def opened():
    model = randomised(build_from_spec(FAMILIES["ViT"])).eval()
    if not can_pack(model):
        pytest.skip("this torch has no oneDNN operators for dense layers")
    return model, open_engine(model)


def packed_calls(engine):
    """How many of oneDNN's dense layers an answer takes."""
    with torch.profiler.profile() as seen:
        engine.wide(images(2), "logits")
    return sum(event.count for event in seen.key_averages() if "_linear_pointwise" in event.key)


@pytest.mark.parametrize(
    ("seconds", "is_packed"), [({"plain": 2.0, "packed": 1.0}, True), ({"plain": 1.0, "packed": 2.0}, False)]
)
def test_the_faster_product_is_used(remembered, seconds, is_packed):
    opened()  # measures
    measured = json.loads(remembered().read_text())
    assert set(measured) == {"plain", "packed"}
    assert is_packing_faster() == (measured["packed"] < measured["plain"])
    remembered().write_text(json.dumps(seconds))
    is_packing_faster.cache_clear()
    model, engine = opened()
    assert (packed_calls(engine) > 0) == is_packed
    with torch.inference_mode():
        assert disagreement(engine(images(3)), model(images(3))) <= 2e-6
    assert json.loads(remembered().read_text()) == seconds  # not measured again


@pytest.mark.parametrize("content", ["", "[]", '{"plain": 1.0}', '{"plain": "a", "packed": 1.0}'])
def test_a_damaged_file_is_measured_again(remembered, content):
    is_packing_faster()
    remembered().write_text(content)
    is_packing_faster.cache_clear()
    is_packing_faster()
    assert set(json.loads(remembered().read_text())) == {"plain", "packed"}


@pytest.mark.usefixtures("remembered")
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "cache").touch()
    assert is_packing_faster() in (True, False)


def test_another_processor_is_measured_by_itself(remembered, tmp_path, monkeypatch):
    is_packing_faster()
    (tmp_path / "cpuinfo").write_text("model name\t: another one\n")
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    is_packing_faster.cache_clear()
    is_packing_faster()
    assert len(list(remembered().parent.iterdir())) == 2
