"""An estimate knows what takes long: reading and small models as they are here, large ones by their size."""

import contextlib
import time
from dataclasses import dataclass, replace
from io import StringIO

import pytest
import torch
from rich.console import Console
from torch.nn.modules.module import register_module_forward_pre_hook

import crashes
from vitlab.data.source import Source
from vitlab.data.sources.digits import DigitsSource
from vitlab.files.strict_json import to_json
from vitlab.models.transformer import Block
from vitlab.paper.models import model_spec
from vitlab.run_dir import RunDir
from vitlab.runs.training.data import open_run_data
from vitlab.runs.training.time_estimate import Pace, estimated_seconds, reading_seconds, training_pace
from vitlab.runs.training.trainer import InMemory, train_run

SPEC = crashes.small_run()
CPU = torch.device("cpu")


class Clock:
    """A clock that stands still unless something takes its time."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


@contextlib.contextmanager
def slow_blocks(clock, seconds):
    """Every block of a Transformer takes so long for an image."""

    def wait(module, inputs):
        clock.now += seconds * len(inputs[0]) if isinstance(module, Block) else 0

    handle = register_module_forward_pre_hook(wait)
    yield
    handle.remove()


@dataclass
class Slow:
    """A source whose samples take a while, the first one more; `asked` counts them."""

    source: Source
    clock: Clock
    seconds: float
    first: float = 0.0
    asked: int = 0

    def __getattr__(self, name):
        return getattr(self.source, name)

    def __len__(self):
        return len(self.source)

    def item(self, index):
        self.clock.now += self.seconds + (0 if self.asked else self.first)
        self.asked += 1
        return self.source.item(index)


def test_a_slow_disk_is_in_the_estimate_and_few_images_are_read_for_it(clock):
    slow = Slow(DigitsSource("test"), clock, 0.03)
    assert reading_seconds(SPEC, slow) == pytest.approx(0.03)
    assert slow.asked <= 33
    slower = Slow(DigitsSource("test"), clock, 0.6)
    assert reading_seconds(SPEC, slower) == pytest.approx(0.6)
    assert slower.asked == 2


def test_what_happens_once_is_not_counted_for_every_image(clock):
    """Imports and caches come with the first image: 13 seconds were announced as 7 minutes."""
    assert reading_seconds(SPEC, Slow(DigitsSource("test"), clock, 0.001, first=2.0)) == pytest.approx(0.001)


@pytest.mark.parametrize("validate_every", [0, 4])
def test_the_estimate_is_within_twice_the_time_of_the_run(validate_every, clock, tmp_path):
    spec = crashes.small_run(validate_every=validate_every, patience=0)
    spec = replace(spec, test="digits?split=test")
    material = open_run_data(spec)
    slow = {name: Slow(getattr(material, name), clock, 0.002) for name in ("train", "validation", "test")}
    slow["train"].first = 0.3
    material = replace(material, **slow)
    with slow_blocks(clock, 0.004):
        expected = estimated_seconds(spec, CPU, material)
        slow["train"].asked = 0
        run, began = RunDir.create(tmp_path / "run", spec, to_json(material.card)), clock.now
        assert train_run(run, Console(file=StringIO()), memory=InMemory(material)) == 0
    assert expected / 2 < clock.now - began < 2 * expected


def test_a_small_model_is_tried_whatever_is_expected_of_it(clock):
    with slow_blocks(clock, 0.5):
        assert training_pace(SPEC, CPU, 1e-9) == Pace(pytest.approx(0.5), 0.0)


def test_of_a_large_transformer_two_layers_are_tried(clock):
    large = replace(
        SPEC, model=model_spec("ViT-B/16", image=16, classes=2), recipe=replace(SPEC.recipe, image=(16, 16))
    )
    with slow_blocks(clock, 0.5):
        pace = training_pace(large, CPU, 1e-9)
    assert pace.image == pytest.approx(12 * 0.5, rel=0.2)  # its embedding and head are small


def test_a_frozen_backbone_is_tried_as_it_is(clock):
    frozen = replace(SPEC, recipe=replace(SPEC.recipe, frozen=("backbone",)))
    with slow_blocks(clock, 0.5):
        assert training_pace(frozen, CPU, 1e-9).image == pytest.approx(0.5)


def test_a_trial_leaves_the_state_of_chance_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    training_pace(SPEC, CPU, 1e-9)
    reading_seconds(SPEC, DigitsSource("test"))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_takes_long_to_try_is_not_tried():
    assert training_pace(SPEC, CPU, 0.4) == Pace(0.4)
    assert training_pace(SPEC, torch.device("meta"), 1e-9) == Pace(1e-9)
    huge = replace(SPEC, model=model_spec("R152x4", image=32, classes=2), recipe=replace(SPEC.recipe, image=(32, 32)))
    assert training_pace(huge, CPU, 1e-9) == Pace(1e-9)
