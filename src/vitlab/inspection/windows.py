"""The attention of one window of a Swin, on the picture."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.drawing.canvas import coloured
from vitlab.models.classifier import evaluating
from vitlab.models.swin import Swin, cut, windows_of
from vitlab.require import require
from vitlab.spec import SwinSpec

UNSEEN = 1e-20  # a smaller probability is that of cells which the mask of a shifted window keeps apart
OUTSIDE, INSIDE = 0.35, 0.45  # how much of the picture stays outside of the window, and under the colours within it
POINT = (255, 64, 64)  # red, which the colour map of attention does not have


def window_attention(model: nn.Module, images: Tensor, *, layer: int, at: tuple[int, int]) -> Tensor:
    """(B, 3, H, W) -> (B, h, H, W): where the pixel `at`, (row, column), looks in one layer of a Swin.

    Layers are counted from 1 over all stages, as in the figures; rows and columns from 0. Each pixel has the
    probability of its cell, which is 0 outside of the window. Over the cells they sum to 1, or to less at an edge
    where the window also has cells of padding.
    """
    if not isinstance(model, Swin):
        kind = type(model).__name__
        raise ValueError(f"{kind} has no windows; give a Swin, or a ViT or hybrid to vitlab.explain")
    check_place(model.spec, layer, at)
    with evaluating(model), torch.no_grad():
        return next(islice(each_window(model, images, at), layer - 1, None))


def check_place(spec: SwinSpec, layer: int | None, at: tuple[int, int]) -> None:
    """Raise a ValueError for a layer, counted from 1, or a pixel that this Swin does not have."""
    most, (height, width), (y, x) = sum(spec.stages), spec.image, at
    require(layer is None or 1 <= layer <= most, f"layer {layer} is outside 1..{most}")
    inside = 0 <= y < height and 0 <= x < width
    require(inside, f"pixel {at} is outside of the image of {height}x{width}: rows 0..{height - 1}, then columns")


def each_window(model: Swin, images: Tensor, at: tuple[int, int]) -> Iterator[Tensor]:
    """Yield `window_attention` of each layer, one layer in memory at a time."""
    places = [(stage, layer) for stage, layers in enumerate(model.spec.stages) for layer in range(layers)]

    def on_picture(place: tuple[int, int], attention: Tensor) -> Tensor:
        return _on_picture(model.spec, *place, attention, at)

    return map(on_picture, places, model.layer_attention(images))


def _on_picture(spec: SwinSpec, stage: int, layer: int, attention: Tensor, at: tuple[int, int]) -> Tensor:
    """The attention (B, windows, h, M, M) of a layer of a stage -> (B, h, H, W), of the pixel `at`."""
    windows, scale = windows_of(spec, stage, layer), spec.patch * 2**stage
    rows, columns = windows.map
    cells = torch.arange(1, rows * columns + 1, device=attention.device)  # 0 is padding
    cells = cut(cells[None, :, None], windows, spec.order)[:, :, 0]  # (windows, M)
    window, place = (cells == at[0] // scale * columns + at[1] // scale + 1).nonzero()[0]
    seen = attention[:, window, :, place]  # (B, h, M)
    on_map = seen.new_zeros(*seen.shape[:2], 1 + rows * columns).index_add(2, cells[window], seen)[..., 1:]
    picture = on_map.unflatten(2, windows.map).repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    return picture[..., : spec.image[0], : spec.image[1]]


def window_picture(picture: np.ndarray, seen: np.ndarray, at: tuple[int, int]) -> np.ndarray:
    """(H, W, 3) of uint8 and (H, W) -> (H, W, 3) of uint8: dark outside of the window, coloured within it.

    Colours run from zero to the largest probability. A red square marks the pixel `at`.
    """
    colours = coloured(seen / max(seen.max(), UNSEEN))
    within = INSIDE * picture + (1 - INSIDE) * colours
    drawn = np.where((seen > UNSEEN)[..., None], within, OUTSIDE * picture)
    reach = min(picture.shape[:2]) // 60
    drawn[max(at[0] - reach, 0) : at[0] + reach + 1, max(at[1] - reach, 0) : at[1] + reach + 1] = POINT
    return np.rint(drawn).astype(np.uint8)
