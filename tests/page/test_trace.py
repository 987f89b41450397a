"""The trace of a picture: the model's own logits and attention, and patches that are really left out."""

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch

from agreement import disagreement, randomised
from families import FAMILIES, VIT
from vitlab.data.transforms.evaluation import normalised
from vitlab.inspection.attention import each_layer
from vitlab.models.build import build_from_spec, build_model
from vitlab.models.vit import ViT
from vitlab.page.trace import LARGEST_EXACT, Trace, Traced, at_size, shows_layers, trace
from vitlab.spec import ViTSpec

TRACED = {name: spec for name, spec in FAMILIES.items() if shows_layers(spec)}
OTHERS = {name: spec for name, spec in FAMILIES.items() if name not in TRACED}
SPARSE = [name for name, spec in TRACED.items() if spec.attention != "full"]
AT_MOST = 5e-6


def made(spec):
    return randomised(build_from_spec(spec))


def picture(size=(32, 40), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def as_input(model, pixels):
    return normalised(torch.from_numpy(pixels).permute(2, 0, 1)[None], model.spec.conventions.preprocessing)


def far(found, expected):
    return disagreement(torch.from_numpy(found).double(), expected.double())


def test_every_kind_of_attention_between_patches_is_traced():
    assert len(TRACED) == 17
    assert len(SPARSE) == 5
    assert set(OTHERS) >= {"BiT", "Axial-ViT", "AxialResNet", "merging", "neighbourhoods, mean pooling"}


@pytest.mark.parametrize("name", TRACED)
@torch.no_grad()
def test_logits_attention_and_tokens_are_the_models(name):
    model, pixels = made(TRACED[name]), picture()
    found, images = trace(model, pixels), as_input(model, pixels)
    assert far(found.logits, model(images)[0]) <= AT_MOST
    assert found.layer_logits[-1].tobytes() == found.logits.tobytes()
    expected = torch.cat(each_layer(model, images, lambda attention: attention))
    assert found.attention.shape == expected.shape
    assert far(found.attention, expected) <= AT_MOST
    *layers, _ = model.layer_features(images)
    assert far(found.tokens, torch.cat([model.tokens(images), *layers])) <= AT_MOST
    assert {part.dtype for part in vars(found).values()} == {np.dtype("float32")}


@pytest.mark.parametrize("name", TRACED)
@torch.no_grad()
def test_answers_after_a_layer_are_those_of_a_model_that_ends_there(name):
    model, pixels = made(TRACED[name]), picture()
    found = trace(model, pixels)
    for layers in range(model.spec.layers + 1):
        z = model.tokens(as_input(model, pixels))
        for number, block in zip(range(layers), model.layers, strict=False):
            z = block(model.with_positions(number, z))
        expected = model.head(model.pool_tokens(z))[0]
        assert far(found.layer_logits[layers], expected) <= AT_MOST


def shortened(model: ViT, images, keep):
    """The logits and attention of a sequence from which tokens are removed after their positions are added."""
    spec = model.spec
    rows = torch.cat([torch.arange(spec.prefix), spec.prefix + torch.from_numpy(np.flatnonzero(keep))])
    z, attention = model.tokens(images)[:, rows], []
    for number, block in enumerate(model.layers):
        if number and spec.positions_at != "stem":  # positions are added again: to the tokens that are left
            table = model.with_positions(number, torch.zeros(1, spec.tokens, spec.width))
            z = z + table[:, rows]
        z, probabilities = block.explain(z)
        attention.append(probabilities)
    return model.head(model.pool_tokens(z))[0], torch.cat(attention), z[0], rows


@pytest.mark.parametrize("name", sorted(set(TRACED) - {"relative positions", *SPARSE}))  # which count places
@torch.no_grad()
def test_a_patch_that_is_not_kept_takes_no_part(name):
    model, pixels = made(TRACED[name]), picture()
    keep = np.random.default_rng(1).random(20) < 0.6
    found = trace(model, pixels, keep)
    logits, attention, tokens, rows = shortened(model, as_input(model, pixels), keep)
    assert far(found.logits, logits) <= AT_MOST
    among = found.attention[:, :, rows][..., rows]
    assert far(among, attention) <= AT_MOST
    assert far(found.tokens[-1, rows], tokens) <= AT_MOST
    gone = np.setdiff1d(np.arange(model.spec.tokens), rows)
    assert not found.attention[..., gone].any()
    assert far(trace(model, pixels).logits, logits) > 1e-3


@pytest.mark.parametrize("name", ["relative positions", *SPARSE])
@torch.no_grad()
def test_the_other_patches_keep_their_places_when_a_patch_is_left_out(name):
    model, pixels, keep = made(TRACED[name]), picture(), np.ones(20, bool)
    keep[[3, 11]] = False
    found = trace(model, pixels, keep)
    gone = [3 + model.spec.prefix, 11 + model.spec.prefix]
    assert not found.attention[..., gone].any()
    other = pixels.copy()
    other[0:8, 24:32] = 255 - other[0:8, 24:32]  # patch 3, which takes no part
    again = trace(model, other, keep)
    assert np.array_equal(found.logits, again.logits)


def test_no_patch_at_all_needs_a_class_token():
    pixels, none = picture(), np.zeros(20, bool)
    found = trace(made(FAMILIES["ViT"]), pixels, none)
    assert np.allclose(found.attention[..., 0], 1)
    with pytest.raises(ValueError, match="keep one or more"):
        trace(made(FAMILIES["mean pooling"]), pixels, none)


@pytest.mark.parametrize("name", OTHERS)
@torch.no_grad()
def test_a_model_without_full_attention_gives_only_its_answer(name):
    model, pixels = made(OTHERS[name]), picture()
    found = trace(model, pixels)
    assert far(found.logits, model(as_input(model, pixels))[0]) <= AT_MOST
    assert found.layer_logits.shape == (1, 4)
    assert found.attention.size == found.tokens.size == 0


def test_pixels_that_cannot_be_written_to_are_taken():
    """As those from the bytes of a request; torch would warn."""
    model, pixels = made(FAMILIES["ViT"]), picture()
    frozen = np.frombuffer(pixels.tobytes(), np.uint8).reshape(pixels.shape)
    assert np.array_equal(trace(model, frozen).logits, trace(model, pixels).logits)


def test_what_cannot_be_traced_is_refused():
    model = made(FAMILIES["ViT"])
    with pytest.raises(ValueError, match=r"uint8 of 40x32x3; expected uint8 of 32x40x3; at_size"):
        trace(model, picture((40, 32)))
    with pytest.raises(ValueError, match="float64 of 32x40x3"):
        trace(model, picture() / 255)
    with pytest.raises(ValueError, match=r"keep has shape \(21,\)"):
        trace(model, picture(), np.ones(21, bool))
    with torch.no_grad():
        model.head.logits.bias[0] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinity"):
        trace(model, picture())


def test_the_model_stays_as_it_is():
    model = made(FAMILIES["ViT in training"]).train()
    before = {name: weight.data_ptr() for name, weight in model.named_parameters()}
    traced = Trace(model)
    trace(traced, picture())
    other = at_size(model, (16, 24))
    assert model.training
    assert not traced.training or not traced.model.training
    assert model.spec.image == (32, 40)
    assert {name: weight.data_ptr() for name, weight in model.named_parameters()} == before
    shared = {name for name, weight in other.named_parameters() if weight.data_ptr() == before[name]}
    assert set(before) - shared == {"positions.table"}


@pytest.mark.parametrize("name", ["ViT", "ViT of timm", "2d positions in every layer", "hybrid", "BiT"])
@torch.no_grad()
def test_another_size_is_that_of_resize(name):
    model, pixels = made(FAMILIES[name]), picture((48, 32))
    found = trace(at_size(model, (48, 32)), pixels)
    model.resize((48, 32))
    assert far(found.logits, model(as_input(model, pixels))[0]) <= AT_MOST


def test_a_size_that_the_model_cannot_take_is_refused():
    with pytest.raises(ValueError, match="the nearest sizes are"):
        at_size(made(FAMILIES["ViT"]), 30)
    with pytest.raises(ValueError, match="relative positions"):
        at_size(made(FAMILIES["relative positions"]), 64)
    model = made(FAMILIES["relative positions"])
    assert at_size(model, (32, 40)) is model


def read_back(data):
    """The arrays, read as the page does."""
    (length,) = struct.unpack_from("<I", data)
    header = json.loads(data[4 : 4 + length])
    assert length % 4 == 0
    found = {}
    for one in header["arrays"]:
        assert one["offset"] % 4 == 0
        count, start = int(np.prod(one["shape"])), 4 + length + one["offset"]
        found[one["name"]] = np.frombuffer(data, f"<{np.dtype(one['dtype']).str[1:]}", count, start).reshape(
            one["shape"]
        )
    return found


@pytest.mark.parametrize("name", ["ViT", "BiT"])
def test_bytes_hold_every_array(name):
    found = trace(made(FAMILIES[name]), picture())
    read = read_back(found.to_bytes())
    assert list(read) == ["logits", "layer_logits", "attention", "tokens"]
    assert all(np.array_equal(read[part], value) for part, value in vars(found).items())


def test_large_attention_is_sent_with_8_bits():
    n = 1 + int((LARGEST_EXACT / 4) ** 0.5)
    rng = np.random.default_rng(0)
    attention = rng.random((1, 1, n, n), dtype=np.float32)
    found = Traced(np.ones(3, np.float32), np.ones((2, 3), np.float32), attention, np.ones((2, 5, 3), np.float32))
    read = read_back(found.to_bytes())
    assert read["attention"].dtype == np.uint8
    assert np.abs(read["attention"] / 255 - attention).max() <= 0.5 / 255 + 1e-6
    assert np.array_equal(read["tokens"], found.tokens)


@torch.no_grad()
def test_a_model_in_double_precision_is_traced_in_its_own():
    spec = ViTSpec(**VIT)
    model, pixels = made(spec).double(), picture()
    exact = trace(model, pixels)
    assert exact.tokens.dtype == np.float32
    assert far(exact.logits, model(as_input(model, pixels).double())[0]) <= 1e-7


@torch.no_grad()
def test_vit_ti_16_at_its_own_size():
    model = randomised(build_model("ViT-Ti/16", classes=10))
    pixels = picture((224, 224))
    found = trace(model, pixels)
    assert found.attention.shape == (12, 3, 197, 197)
    assert found.tokens.shape == (13, 197, 192)
    assert far(found.logits, model(as_input(model, pixels))[0]) <= AT_MOST


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_only_the_pool_of_the_spec_counts(pool):
    found = trace(made(replace(FAMILIES["ViT"], pool=pool)), picture())
    assert found.tokens.shape == (3, 20 + (pool == "class"), 24)
