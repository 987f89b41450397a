"""The card of a model: JSON that says what the model is."""

import base64
import json

import numpy as np
import PIL
import pytest

from agreement import randomised
from families import FAMILIES
from vitlab.inspection.weights import as_pictures, position_similarity, principal_filters
from vitlab.models.build import build_from_spec, build_model
from vitlab.page.model_card import model_card, slug, unique_slugs
from vitlab.page.trace import shows_layers


def made(name):
    return randomised(build_from_spec(FAMILIES[name]))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_a_card(name):
    model = made(name)
    card = json.loads(json.dumps(model_card(model, f"my {name}"), allow_nan=False))
    spec = model.spec
    assert card["image"] == [32, 40]
    assert card["sizes"] == [[32, 40]]
    assert card["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert card["classes"] == len(card["class_names"]) == 4
    assert (card["kind"] == "answers only") == (not shows_layers(spec))
    if card["kind"] == "answers only":
        assert (card["layers"], card["grid"]) == (0, [0, 0])
        return
    assert (card["layers"], card["heads"], card["width"], card["mlp"]) == (2, 3, 24, 48)
    assert card["grid"] == [32 // card["patch"], 40 // card["patch"]] == list(spec.grid)
    assert card["prefix"] + card["grid"][0] * card["grid"][1] == spec.tokens


def test_preprocessing_is_the_models():
    card = model_card(made("ViT of timm"), "x")
    assert card["preprocessing"] == {
        "resize": "shorter",
        "fraction": 0.9,
        "interpolation": "bicubic",
        "antialias": True,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "pillow": PIL.__version__,
    }


def test_filters_and_positions_are_those_of_inspection():
    model = made("ViT")
    card = model_card(model, "x")
    pictures = np.frombuffer(base64.b64decode(card["filters"]["values"]), np.uint8).reshape(card["filters"]["shape"])
    components = principal_filters(model)
    assert np.abs(pictures / 255 - as_pictures(components.directions).numpy()).max() <= 0.5 / 255 + 1e-9
    assert card["filters"]["share"] == components.share.tolist()
    values = np.frombuffer(base64.b64decode(card["positions"]["values"]), np.uint8).reshape(4, 5, 4, 5)
    assert card["positions"]["grid"] == [4, 5]
    assert np.abs(values / 127.5 - 1 - position_similarity(model).numpy()).max() <= 1 / 255 + 1e-9
    assert values[2, 3, 2, 3] == 255


@pytest.mark.parametrize(("name", "part"), [("hybrid", "filters"), ("no positions", "positions"), ("BiT", "filters")])
def test_what_a_model_lacks_is_none(name, part):
    assert model_card(made(name), "x")[part] is None


def test_sizes_include_the_models_own_and_must_fit():
    model = made("ViT")
    assert model_card(model, "x", [(48, 40), 64])["sizes"] == [[32, 40], [48, 40], [64, 64]]
    with pytest.raises(ValueError, match="nearest sizes"):
        model_card(model, "x", [30])
    assert model.spec.image == (32, 40)


def test_names_say_where_they_come_from():
    assert model_card(build_model("ViT-Ti/16"), "x")["names_from"].startswith("assumed ImageNet-1k")
    model = made("ViT")
    model.class_names, model.provenance = ("a", "b", "c", "d"), {"source": "/disk/photos/a.npz", "data": "folder:/disk"}
    card = model_card(model, "x")
    assert (card["class_names"], card["names_from"]) == (["a", "b", "c", "d"], "stored with the model")
    assert "a.npz" in card["text"]
    assert "disk" not in json.dumps(card)


def test_ids_are_safe_in_addresses_and_different():
    assert slug("runs/My Model (best).v2") == "runs-my-model-best-.v2"
    assert slug("///") == "model"
    named = unique_slugs(["ViT-b/16", "ViT-B/16", "vit b 16", "other"])
    assert named == ["vit-b-16", "vit-b-16-2", "vit-b-16-3", "other"]
    assert model_card(made("ViT"), "Ä/..", id=None)["id"] == "model"
