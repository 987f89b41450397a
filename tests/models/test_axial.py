"""Attention along axes: blocks and the position-sensitive kind equal loops over lines, queries and keys."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from agreement import disagreement, randomised
from vitlab.models.axial import NORM_EPS, AxialAttention, AxialUnit, PositionSensitiveAttention
from vitlab.models.build import build_from_spec, build_model
from vitlab.spec import HYBRID, AxialResNetSpec, ViTSpec

AXIAL = {"patch": 4, "layers": 2, "width": 12, "mlp": 20, "heads": 3, "image": (8, 12), "classes": 5}
AXIAL |= {"pool": "mean", "positions": "2d", "attention": "axial", "head": "linear"}
SMALL = AxialResNetSpec((1, 1), root=8, heads=2, image=(16, 24), classes=3)


def lines_of(grid, axis):
    """The raster indices of every column, or every row."""
    rows, columns = grid
    if axis == "column":
        return [[r * columns + c for r in range(rows)] for c in range(columns)]
    return [[r * columns + c for c in range(columns)] for r in range(rows)]


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


@pytest.mark.parametrize("axis", ["column", "row"])
def test_axial_attention_equals_a_loop_over_lines_heads_queries_and_keys(axis):
    grid = (3, 4)
    attention = randomised(AxialAttention(6, 2, grid, axis)).double()
    u = torch.randn(2, 12, 6, dtype=torch.float64)
    weight, bias = attention.qkv.weight.detach().numpy(), attention.qkv.bias.detach().numpy()
    expected = np.zeros((2, 12, 6))
    probabilities = np.zeros((2, 2, 12, 12))
    for image in range(2):
        q, k, v = np.split(u[image].numpy() @ weight.T + bias, 3, axis=1)
        for line in lines_of(grid, axis):
            for head in range(2):
                part = slice(3 * head, 3 * head + 3)
                for i in line:
                    a = softmax(np.array([q[i, part] @ k[j, part] / math.sqrt(3) for j in line]))
                    probabilities[image, head, i, line] = a
                    expected[image, i, part] = sum(a[n] * v[j, part] for n, j in enumerate(line))
    expected = expected @ attention.out.weight.detach().numpy().T + attention.out.bias.detach().numpy()
    with torch.no_grad():
        assert disagreement(attention(u), torch.from_numpy(expected)) <= 1e-12
        explained, shown = attention.explain(u)
        assert disagreement(explained, torch.from_numpy(expected)) <= 1e-12
        assert disagreement(shown, torch.from_numpy(probabilities)) <= 1e-12


def test_a_layer_of_an_axial_vit_is_a_block_down_the_columns_then_one_along_the_rows():
    model = randomised(build_from_spec(ViTSpec(**AXIAL)))
    assert [block.attention.axis for block in model.blocks] == ["column", "row"] * 2
    assert model.spec.tokens == 6  # no class token
    images = torch.randn(2, 3, 8, 12)
    changed = images.clone()
    changed[:, :, 4:, 8:] += 1  # the patch at row 1, column 2
    before, after = (next(model.layer_features(i)) for i in (images, changed))
    moved = (before - after).abs().amax(dim=(0, 2)) > 1e-6
    assert moved.tolist() == [False, False, True, False, False, True]  # only its column
    before, after = ([*model.layer_features(i)][1] for i in (images, changed))
    assert ((before - after).abs().amax(dim=(0, 2)) > 1e-6).all()  # two blocks reach everything


def test_attention_of_an_axial_vit_sums_to_one_and_resizes():
    model = randomised(build_from_spec(ViTSpec(**AXIAL)))
    assert [tuple(a.shape) for a in model.layer_attention(torch.randn(2, 3, 8, 12))] == [(2, 3, 6, 6)] * 4
    model.resize((12, 8))
    for a in model.layer_attention(torch.randn(1, 3, 12, 8)):
        torch.testing.assert_close(a.sum(-1), torch.ones(1, 3, 6))
    assert model(torch.randn(1, 3, 12, 8)).shape == (1, 5)


def grouped(norm, x):
    """(C, H, W) normalised group by group."""
    out = np.empty_like(x)
    size = len(x) // norm.num_groups
    for group in range(norm.num_groups):
        part = x[group * size : (group + 1) * size]
        out[group * size : (group + 1) * size] = (part - part.mean()) / np.sqrt(part.var() + NORM_EPS)
    return out * norm.weight.detach().numpy()[:, None, None] + norm.bias.detach().numpy()[:, None, None]


def position_sensitive_by_loops(attention, x):
    """(C, H, W) -> (C, H, W): appendix D.6 and section 3.2 of Axial-DeepLab, one query at a time."""
    width, heads = len(x), attention.heads
    z = np.einsum("oc,chw->ohw", attention.qkv.detach().numpy(), x)
    z = grouped(attention.qkv_norm, z)
    if attention.axis == "column":
        z = z.transpose(0, 2, 1)  # lines are now the second axis
    per_head, quarter = 2 * width // heads, width // (2 * heads)
    offsets = attention.offsets.detach().numpy()
    length = z.shape[2]
    out = np.zeros((width, *z.shape[1:]))
    for line in range(z.shape[1]):
        for head in range(heads):
            own = z[head * per_head : (head + 1) * per_head, line]  # (2C/h, l)
            q, k, v = own[:quarter], own[quarter : 2 * quarter], own[2 * quarter :]
            for i in range(length):
                logits = np.zeros(length)
                for j in range(length):
                    r = offsets[:, j - i + length - 1]
                    logits[j] = q[:, i] @ k[:, j] + q[:, i] @ r[:quarter] + k[:, j] @ r[quarter : 2 * quarter]
                a = softmax(logits)
                for j in range(length):
                    r = offsets[2 * quarter :, j - i + length - 1]
                    out[head * 2 * quarter : (head + 1) * 2 * quarter, line, i] += a[j] * (v[:, j] + r)
    out = out.transpose(0, 2, 1) if attention.axis == "column" else out
    return grouped(attention.norm, out)


@pytest.mark.parametrize("axis", ["column", "row"])
def test_position_sensitive_attention_equals_a_plain_loop(axis):
    attention = randomised(PositionSensitiveAttention(8, 2, 3 if axis == "column" else 5, axis)).double()
    x = torch.randn(2, 8, 3, 5, dtype=torch.float64)
    with torch.no_grad():
        own = attention(x)
    for image, result in zip(x, own, strict=True):
        expected = position_sensitive_by_loops(attention, image.numpy())
        assert disagreement(result, torch.from_numpy(expected)) <= 1e-11


@pytest.mark.parametrize("stride", [1, 2])
def test_an_axial_unit_equals_its_parts_in_numpy(stride):
    unit = randomised(AxialUnit(8, 8, heads=2, grid=(4, 6), stride=stride, how=HYBRID)).double()
    x = torch.randn(1, 8, 4, 6, dtype=torch.float64)

    def conv(layer, y):
        w = layer.weight.detach().numpy()[:, :, 0, 0]
        w = (w - w.mean(1, keepdims=True)) / (w.std(1, keepdims=True) + 1e-5)
        return np.einsum("oc,chw->ohw", w, y)

    def relu(y):
        return np.maximum(y, 0)

    y = x[0].numpy()
    m = relu(grouped(unit.norm1, conv(unit.conv1, y)))
    m = position_sensitive_by_loops(unit.row, position_sensitive_by_loops(unit.column, m))
    if stride == 2:
        m = (m[:, ::2, ::2] + m[:, 1::2, ::2] + m[:, ::2, 1::2] + m[:, 1::2, 1::2]) / 4
    m = grouped(unit.norm3, conv(unit.conv3, relu(m)))
    shortcut = grouped(unit.shortcut_norm, conv(unit.shortcut, y[:, ::stride, ::stride]))
    with torch.no_grad():
        assert disagreement(unit(x)[0], torch.from_numpy(relu(shortcut + m))) <= 1e-11


GRADIENTS = {
    "along columns": (lambda: AxialAttention(4, 2, (3, 2), "column"), (2, 6, 4)),
    "along rows": (lambda: AxialAttention(4, 2, (3, 2), "row"), (2, 6, 4)),
    "position-sensitive": (lambda: PositionSensitiveAttention(8, 2, 3, "column"), (1, 8, 3, 2)),
    "unit": (lambda: AxialUnit(4, 4, heads=1, grid=(2, 4), stride=2, how=HYBRID), (1, 4, 2, 4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_equal_finite_differences(name):
    make, shape = GRADIENTS[name]
    module = randomised(make()).double()
    names = [key for key, _ in module.named_parameters()]
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def run(x, *parameters):
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x,))

    assert gradcheck(run, (x, *module.parameters()), atol=1e-6)


def test_an_axial_resnet_cannot_be_stretched_nor_looked_into_and_says_so():
    model = randomised(build_from_spec(SMALL))
    model.resize((16, 24))  # its own size is no change
    with pytest.raises(ValueError, match=r"cannot be resized.*16x24"):
        model.resize((32, 32))
    with pytest.raises(ValueError, match="no attention between patches"):
        model.layer_attention(torch.randn(1, 3, 16, 24))


def test_initial_values_of_the_axial_resnet():
    model = build_model("AxialResNet-50", image=32)
    unit = model.units[8]
    width = unit.column.qkv.shape[1]
    assert unit.column.qkv.std().item() == pytest.approx(1 / width, rel=0.05)
    assert unit.column.offsets.std().item() == pytest.approx(8 / width, rel=0.2)
    assert not unit.norm3.weight.any()
    assert not model.head.logits.weight.any()
