"""How many tokens a model merges is saved with it, and can be chosen when it is loaded."""

import json

import numpy as np
import pytest
import torch

from agreement import randomised
from vitlab import load_model, save_model
from vitlab.cli import main
from vitlab.files.store import verify_folder
from vitlab.models.build import build_from_spec
from vitlab.spec import ResNetSpec, ViTSpec

SPEC = ViTSpec(patch=4, layers=2, width=24, mlp=40, heads=3, image=(16, 16), classes=5, head="linear")
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model():
    return randomised(build_from_spec(SPEC))


@pytest.mark.parametrize("form", ["vitlab", "google-npz"])
@pytest.mark.parametrize("merge", [3, np.int64(3)])
def test_weights_of_any_format_can_merge(model, form, merge, tmp_path):
    path = tmp_path / ("model.npz" if form == "google-npz" else "model")
    save_model(model, path, form)
    plain, merging = load_model(path), load_model(path, merge=merge)
    assert (plain.spec.merge, merging.spec.merge) == (0, 3)
    assert torch.equal(plain(IMAGES), model(IMAGES))
    model.set_merge(3)
    assert torch.equal(merging(IMAGES), model(IMAGES))


def test_the_number_travels_with_the_model_until_another_is_asked_for(model, tmp_path):
    before = model(IMAGES)
    model.set_merge(3)
    save_model(model, tmp_path / "model")
    assert load_model(tmp_path / "model").spec.merge == 3
    assert torch.equal(load_model(tmp_path / "model")(IMAGES), model(IMAGES))
    assert torch.equal(load_model(tmp_path / "model", merge=0)(IMAGES), before)


def test_a_model_that_merges_nothing_is_saved_as_before_there_was_merging(model, tmp_path):
    save_model(model, tmp_path / "model")
    verify_folder(tmp_path / "model", ("vitlab.json", "weights.safetensors"))
    assert "merge" not in json.loads((tmp_path / "model" / "vitlab.json").read_text())["model"]


def test_convert_turns_merging_off_for_other_libraries(model, tmp_path, capsys):
    model.set_merge(3)
    save_model(model, tmp_path / "model")
    convert = ["convert", str(tmp_path / "model"), str(tmp_path / "theirs"), "--to", "timm"]
    assert main(convert) != 0
    assert "it merges 3 tokens per layer" in capsys.readouterr().err
    assert main([*convert, "--merge", "0"]) == 0


def test_a_resnet_has_nothing_to_merge(tmp_path):
    save_model(build_from_spec(ResNetSpec((1, 1), 8, (32, 32), 4)), tmp_path / "model")
    assert load_model(tmp_path / "model", merge=0).spec.kind == "bit"
    with pytest.raises(ValueError, match="merge 8 is for Vision Transformers and hybrids"):
        load_model(tmp_path / "model", merge=8)
    with pytest.raises(ValueError, match=r"merge is 1\.5; expected a whole number"):
        load_model(tmp_path / "model", merge=1.5)
