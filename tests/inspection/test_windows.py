"""The attention of one window of a Swin, put where it belongs on the picture."""

import copy

import pytest
import torch

import vitlab
from agreement import randomised
from families import FAMILIES, images
from vitlab import build_model
from vitlab.models.build import build_from_spec


@pytest.fixture(params=["Swin", "Swin of timm"])
def model(request):
    return randomised(build_from_spec(FAMILIES[request.param]))


@pytest.mark.parametrize("layer", range(4))
def test_the_cells_seen_are_those_that_move_the_output_of_the_layer(model, layer):
    """Independently of the windows: a cell is seen if changing it in the layer's input changes the attended value."""
    block, scale = model.blocks[layer], 4 * 2 ** (layer // 2)
    rows, columns = block.attention.windows.map
    z = torch.randn(1, rows * columns, block.attention.out.in_features, dtype=torch.float64, requires_grad=True)
    answer = copy.deepcopy(block).double().attention(z)
    for y, x in ((0, 0), (31, 39), (17, 22), (3, 39)):
        cell = y // scale * columns + x // scale
        (gradient,) = torch.autograd.grad(answer[0, cell].square().sum(), z, retain_graph=True)
        moves = (gradient[0].abs().amax(dim=1) > 1e-20).unflatten(0, (rows, columns))
        seen = vitlab.window_attention(model, images(2), layer=layer + 1, at=(y, x))
        assert seen.shape == (2, block.attention.heads, 32, 40)
        on_map = seen[:, :, ::scale, ::scale]
        assert torch.equal(on_map.amin(dim=(0, 1)) > 1e-20, moves)
        total = on_map.sum(dim=(2, 3))
        assert (total <= 1 + 1e-5).all()
        if not any(block.attention.windows.padding):
            assert torch.allclose(total, torch.ones(()))


def test_the_probabilities_are_those_of_the_layer():
    model = randomised(build_model("Swin-T", image=112, classes=3))
    given = torch.randn(1, 3, 112, 112)
    first = next(iter(model.layer_attention(given)))  # (1, windows, h, 49, 49)
    seen = vitlab.window_attention(model, given, layer=1, at=(30, 5))  # row 7, column 1: window 4 of 4x4, its cell 1
    assert torch.allclose(seen[0, :, 28:56:4, 0:28:4], first[0, 4, :, 1].unflatten(1, (7, 7)))


def test_what_is_outside_is_refused():
    model = build_from_spec(FAMILIES["Swin"])
    for layer in (0, 5):
        with pytest.raises(ValueError, match=rf"layer {layer} is outside 1\.\.4"):
            vitlab.window_attention(model, images(1), layer=layer, at=(0, 0))
    with pytest.raises(ValueError, match=r"pixel \(32, 0\) is outside of the image of 32x40"):
        vitlab.window_attention(model, images(1), layer=1, at=(32, 0))
    with pytest.raises(ValueError, match=r"ViT has no windows; give a Swin"):
        vitlab.window_attention(build_from_spec(FAMILIES["ViT"]), images(1), layer=1, at=(0, 0))
