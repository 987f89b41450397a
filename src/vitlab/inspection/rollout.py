"""Attention rollout (figures 6 and 14): how much each patch contributes to the output through all layers."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitlab.inspection.attention import (
    attentive,
    each_layer,
    from_query,
    mean_distance,
    patch_distances,
    small_batches,
)
from vitlab.require import require
from vitlab.spec import ViTSpec

LANCZOS = 3  # lobes of the kernel
BLUR_REACH = 4  # deviations of the Gaussian


def explain(model: nn.Module, images: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, H, W) of 0..1: the attention rollout as in figure 6.

    Images are normalised as for `model(images)`; see `vitlab.preprocess`. Computed layer by layer and a few images at a
    time. With mean pooling the rows of all patches are averaged. Raises ValueError for a model without attention
    between patches.
    """
    return rendered(rollout(model, images), attentive(model).spec)


def rollout(model: nn.Module, images: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, rows, columns): the rollout of each patch, before rendering."""
    spec = attentive(model).spec
    return torch.cat([_rolled(model, batch, spec) for batch in small_batches(model, images)])


def _rolled(model: nn.Module, images: Tensor, spec: ViTSpec) -> Tensor:
    rolling = Rolling()
    each_layer(model, images, rolling.add)
    return rolling.seen(spec)


class Look(NamedTuple):
    """`rollout` (B, rows, columns), `maps` (B, L, h, rows, columns) and `distance` (B, L, h) in pixels."""

    rollout: Tensor
    maps: Tensor
    distance: Tensor


def look(model: nn.Module, images: Tensor) -> Look:
    """(B, 3, H, W) -> the rollout, the map of every head of every layer, and attention distances, in one pass."""
    parts = [_look(model, batch) for batch in small_batches(model, images)]
    return Look(*(torch.cat(same) for same in zip(*parts, strict=True)))


def _look(model: nn.Module, images: Tensor) -> Look:
    spec = attentive(model).spec
    pixels, rolling = patch_distances(spec), Rolling()

    def reduced(attention: Tensor) -> tuple[Tensor, Tensor]:
        rolling.add(attention)
        return from_query(attention, spec).clone(), mean_distance(attention, pixels)

    maps, distances = zip(*each_layer(model, images, reduced), strict=True)
    return Look(rolling.seen(spec), torch.stack(maps, dim=1), torch.stack(distances, dim=1))


class Rolling:
    """The product of the attention of all layers so far."""

    def __init__(self) -> None:
        self.joint: Tensor | None = None

    def add(self, attention: Tensor) -> None:
        """Multiply by the attention (B, h, n, n) of the next layer."""
        a = attention.mean(dim=1)  # (B, n, n)
        a = a.to(torch.promote_types(a.dtype, torch.float32))
        # Differs from the paper: attention rollout adds the residual connection, which the text omits and the authors'
        # own code has.
        a = (a + torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)) / 2  # rows still sum to 1
        self.joint = a if self.joint is None else a @ self.joint

    def seen(self, spec: ViTSpec) -> Tensor:
        """The rollout of each patch, (B, rows, columns)."""
        assert self.joint is not None
        seen = from_query(self.joint, spec).clone()
        is_finite = bool(seen.isfinite().all())
        require(is_finite, "attention is not finite: the weights or the images contain NaN or infinity")
        return seen


def rendered(maps: Tensor, spec: ViTSpec) -> Tensor:
    """(..., rows, columns) -> (..., H, W) of 0..1 as the authors render it: Lanczos, a blur of one patch, min-max.

    They divide by the maximum first, which changes nothing: all steps before the min-max are linear.
    """
    height, width = (
        _blur(side, side / cells, maps) @ _enlargement(cells, side, maps)
        for side, cells in zip(spec.image, spec.grid, strict=True)
    )
    smooth = height @ maps @ width.mT  # (..., H, W)
    low, high = smooth.amin(dim=(-2, -1), keepdim=True), smooth.amax(dim=(-2, -1), keepdim=True)
    noise = 1000 * torch.finfo(smooth.dtype).eps * high.abs() + torch.finfo(smooth.dtype).tiny
    return (smooth - low) / torch.maximum(high - low, noise)  # a flat map is dark instead of magnified rounding


def _enlargement(cells: int, side: int, like: Tensor) -> Tensor:
    """(side, cells): Lanczos interpolation along one axis, half-pixel centres, weights normalised at the edges."""
    places = (torch.arange(side, dtype=torch.float64) + 0.5) * cells / side - 0.5
    x = places[:, None] - torch.arange(cells, dtype=torch.float64)
    kernel = torch.sinc(x) * torch.sinc(x / LANCZOS) * (x.abs() < LANCZOS)
    return (kernel / kernel.sum(dim=1, keepdim=True)).to(like)


def _blur(side: int, deviation: float, like: Tensor) -> Tensor:
    """(side, side): a Gaussian along one axis; edge pixels are repeated."""
    reach = math.ceil(BLUR_REACH * deviation)
    offsets = torch.arange(-reach, reach + 1)
    weights = torch.exp(-((offsets.double() / deviation) ** 2) / 2)
    places = (torch.arange(side)[:, None] + offsets).clamp(0, side - 1)  # (side, 2 reach + 1)
    matrix = torch.zeros(side, side, dtype=torch.float64)
    matrix.scatter_add_(1, places, (weights / weights.sum()).expand(side, -1))
    return matrix.to(like)
