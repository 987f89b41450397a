"""Appendix D.4: every kind of position in every place equals a plain loop; without positions order does not matter."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from agreement import disagreement, randomised
from vitlab.models.build import build_from_spec
from vitlab.models.embedding import Positions2D
from vitlab.models.transformer import RelativeAttention
from vitlab.spec import ViTSpec

GRID = [("none", "stem"), ("relative", "stem"), *itertools.product(("1d", "2d"), ("stem", "every-layer", "shared"))]
TINY = {"patch": 4, "layers": 3, "width": 12, "mlp": 20, "heads": 3, "image": (8, 12), "classes": 5}


def make(positions, place="stem", **changes):
    spec = ViTSpec(**(TINY | {"positions": positions, "positions_at": place} | changes))
    return randomised(build_from_spec(spec)).double()


def table_of(model, layer):
    """The vectors added before a layer, token by token, from the parameters alone; None where nothing is added."""
    spec = model.spec
    if spec.positions in ("none", "relative") or (layer and spec.positions_at == "stem"):
        return None
    own = model.positions if layer == 0 or spec.positions_at == "shared" else model.later_positions[layer - 1]
    if spec.positions == "1d":
        return own.table[0].detach().numpy()
    vectors = [] if own.first is None else list(own.first[0].detach().numpy())
    for row in range(spec.grid[0]):
        for column in range(spec.grid[1]):
            vectors.append(np.concatenate([own.x[0, column].detach().numpy(), own.y[0, row].detach().numpy()]))
    return np.array(vectors)


def attention_by_loops(attention, u):
    """(n, D) -> (n, D), one query, one head and one key at a time."""
    heads, (n, d) = attention.heads, u.shape
    dh = d // heads
    projected = u @ attention.qkv.weight.detach().numpy().T + attention.qkv.bias.detach().numpy()
    q, k, v = (projected[:, i * d : (i + 1) * d].reshape(n, heads, dh) for i in range(3))
    offsets = attention.offsets.detach().numpy() if isinstance(attention, RelativeAttention) else None
    out = np.zeros((n, heads, dh))
    for head in range(heads):
        for i in range(n):
            logits = []
            for j in range(n):
                logit = q[i, head] @ k[j, head]
                if offsets is not None:
                    logit += q[i, head] @ offsets[head, (i - j) + (n - 1)]
                logits.append(logit / math.sqrt(dh))
            weights = np.exp(np.array(logits) - max(logits))
            weights /= weights.sum()
            for j in range(n):
                out[i, head] += weights[j] * v[j, head]
    return out.reshape(n, d) @ attention.out.weight.detach().numpy().T + attention.out.bias.detach().numpy()


def norm(layer, x):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    return scaled * layer.weight.detach().numpy() + layer.bias.detach().numpy()


def forward_by_loops(model, image):
    """One image of the model without torch's modules: tokens, positions, layers; (n, D) after the last layer."""
    spec, tokens = model.spec, []
    if model.class_token is not None:
        tokens.append(model.class_token[0, 0].detach().numpy())
    weight = model.patches.weight.detach().numpy().reshape(spec.width, -1)
    for row in range(spec.grid[0]):
        for column in range(spec.grid[1]):
            patch = image[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            tokens.append(weight @ patch.reshape(-1) + model.patches.bias.detach().numpy())
    z = np.array(tokens)
    for layer, block in enumerate(model.blocks):
        table = table_of(model, layer)
        z = z if table is None else z + table
        z = z + attention_by_loops(block.attention, norm(block.norm1, z))
        w1, b1, w2, b2 = (parameter.detach().numpy() for parameter in block.mlp.parameters())
        hidden = norm(block.norm2, z) @ w1.T + b1
        hidden = 0.5 * hidden * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        z = z + hidden @ w2.T + b2
    return z


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize(("positions", "place"), GRID)
def test_the_whole_grid_equals_plain_loops(positions, place, pool):
    model = make(positions, place, pool=pool)
    images = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    with torch.no_grad():
        *layers, _ = model.layer_features(images)
    for image, own in zip(images, layers[-1], strict=True):
        assert disagreement(own, torch.from_numpy(forward_by_loops(model, image.numpy()))) <= 1e-12


@pytest.mark.parametrize(("positions", "place"), GRID)
def test_parameters_hold_as_many_tables_as_the_place_needs(positions, place):
    model = make(positions, place)
    tables = [name for name, _ in model.named_parameters() if "positions" in name or "offsets" in name]
    per_table = {"none": 0, "1d": 1, "2d": 3, "relative": 1}[positions]
    layers = 3 if place == "every-layer" or positions == "relative" else 1
    assert len(tables) == per_table * layers


def test_two_dimensions_need_few_parameters():
    spec = ViTSpec(16, 1, 768, 8, 12, pool="mean", positions="2d")
    assert sum(p.numel() for p in build_from_spec(spec).positions.parameters()) == 10_752


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_without_positions_any_permutation_of_patches_gives_the_same_logits(pool):
    model = make("none", pool=pool)
    images = torch.randn(1, 3, 8, 12, dtype=torch.float64)
    patches = images.unflatten(2, (2, 4)).unflatten(4, (3, 4)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    shuffled = patches[:, [4, 0, 5, 2, 1, 3]].unflatten(1, (2, 3)).permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
    assert not torch.equal(images, shuffled)
    with torch.no_grad():
        assert disagreement(model(shuffled), model(images)) <= 1e-12


@pytest.mark.parametrize(("positions", "place"), GRID[1:])
def test_with_positions_the_order_matters(positions, place):
    model = make(positions, place)
    images = torch.randn(1, 3, 8, 12, dtype=torch.float64)
    with torch.no_grad():
        assert disagreement(model(torch.cat([images[:, :, 4:], images[:, :, :4]], dim=2)), model(images)) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("positions", "place"), GRID)
def test_gradients_equal_finite_differences(positions, place):
    model = make(positions, place, patch=1, layers=2, width=4, heads=2, mlp=2, image=(2, 1), classes=2, head="linear")
    names = [key for key, _ in model.named_parameters()]

    def run(x, *parameters):
        return torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (x,))

    images = torch.randn(1, 3, 2, 1, dtype=torch.float64)
    assert gradcheck(run, (images, *model.parameters()), atol=1e-6)


def test_explain_equals_the_fused_path_with_relative_positions():
    model, images = make("relative"), torch.randn(2, 3, 8, 12, dtype=torch.float64)
    z = model.tokens(images)
    for block, fused in zip(model.layers, model.layer_features(images), strict=False):
        z, probabilities = block.explain(z)
        assert disagreement(z, fused) <= 1e-12
        torch.testing.assert_close(probabilities.sum(-1), torch.ones(2, 3, 7, dtype=torch.float64))


@pytest.mark.parametrize("place", ["stem", "every-layer", "shared"])
@pytest.mark.parametrize("positions", ["1d", "2d"])
def test_tables_of_every_place_are_stretched(positions, place):
    model = make(positions, place)
    model.resize((16, 8))
    assert model(torch.randn(1, 3, 16, 8, dtype=torch.float64)).shape == (1, 5)


def test_each_axis_of_two_dimensions_is_stretched_by_itself():
    positions = Positions2D((3, 4), 8, prefix=1)
    positions.initialise(torch.Generator().manual_seed(0))
    before = {name: p.detach().double().numpy()[0] for name, p in positions.named_parameters()}
    positions.resize((5, 7), "paper")
    for name, new in (("y", 5), ("x", 7)):
        old = before[name]
        at = np.linspace(0, len(old) - 1, new)
        expected = np.stack([np.interp(at, np.arange(len(old)), channel) for channel in old.T], axis=1)
        np.testing.assert_allclose(getattr(positions, name)[0].detach().numpy(), expected, atol=1e-6)
    np.testing.assert_array_equal(positions.first[0].detach().double().numpy(), before["first"])


def test_a_relative_raster_cannot_be_stretched_and_says_so():
    model = make("relative")
    model.resize((8, 12))  # its own size is no change
    with pytest.raises(ValueError, match=r"cannot be resized.*keep the image at 8x12"):
        model.resize((16, 8))


def test_nothing_is_no_obstacle_to_another_size():
    model = make("none")
    model.resize((16, 8))
    assert model(torch.randn(1, 3, 16, 8, dtype=torch.float64)).shape == (1, 5)


def test_initial_tables_are_normal_with_deviation_two_hundredths():
    for positions in ("2d", "relative"):
        spec = ViTSpec(16, 1, 384, 8, 6, positions=positions)
        model = build_from_spec(spec)
        tables = [p for name, p in model.named_parameters() if "positions" in name or "offsets" in name]
        for table in tables:
            if table.numel() > 1000:
                assert table.std().item() == pytest.approx(0.02, rel=0.05)
