"""The attention of one window of a Swin, on the picture."""

import torch
from torch import Tensor, nn

from vitlab.models.classifier import evaluating
from vitlab.models.swin import Swin, cut, windows_of
from vitlab.require import require


def window_attention(model: nn.Module, images: Tensor, *, layer: int, at: tuple[int, int]) -> Tensor:
    """(B, 3, H, W) -> (B, h, H, W): where the pixel `at`, (row, column), looks in one layer of a Swin.

    Layers are counted from 0 over all stages. Each pixel has the probability of its cell, which is 0 outside of the
    window. Over the cells they sum to 1, or to less at an edge where the window also has cells of padding.
    """
    if not isinstance(model, Swin):
        kind = type(model).__name__
        raise ValueError(f"{kind} has no windows; give a Swin, or a ViT or hybrid to vitlab.explain")
    spec, (y, x) = model.spec, at
    most = sum(spec.stages) - 1
    require(0 <= layer <= most, f"layer {layer} is outside 0..{most}")
    height, width = spec.image
    require(0 <= y < height and 0 <= x < width, f"pixel {at} is outside of the image of {height}x{width}")
    stage, within = _place(spec.stages, layer)
    windows, scale = windows_of(spec, stage, within), spec.patch * 2**stage
    rows, columns = windows.map
    cells = torch.arange(1, rows * columns + 1, device=images.device)  # 0 is padding
    cells = cut(cells[None, :, None], windows, spec.order)[:, :, 0]  # (windows, M)
    window, place = (cells == y // scale * columns + x // scale + 1).nonzero()[0]
    with evaluating(model), torch.no_grad():
        attention = next(a for number, a in enumerate(model.layer_attention(images)) if number == layer)
    seen = attention[:, window, :, place]  # (B, h, M)
    on_map = seen.new_zeros(*seen.shape[:2], 1 + rows * columns).index_add(2, cells[window], seen)[..., 1:]
    picture = on_map.unflatten(2, windows.map).repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    return picture[..., :height, :width]


def _place(stages: tuple[int, ...], layer: int) -> tuple[int, int]:
    """The stage of a layer, and its number in that stage."""
    for stage, number in enumerate(stages):
        if layer < number:
            return stage, layer
        layer -= number
    raise AssertionError("checked by the caller")
