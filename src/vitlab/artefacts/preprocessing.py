"""The preprocessing of evaluation as tensor operations that can be exported: the gate's resize, crop and normalisation.

Sizes are tensors, because exporters know little but operations on tensors, and only the pixels inside the crop are
computed. A side that keeps its length needs no case of its own: its weights are those of the identity.
"""

from functools import cache
from typing import NamedTuple, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitlab.spec.pixels import Preprocessing

# Pillow's antialiased filters as polynomials of the distance from a pixel in units of the filter's scale: up to 1, and
# from 1 on, where the distance is counted from there.
FILTERS = {
    "bilinear": ((1.0, -1.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)),
    "bicubic": ((1.0, 0.0, -2.5, 1.5), (0.0, -0.5, 1.0, -0.5)),
}
UNIT = 2.0**22  # Pillow's weights are whole numbers of 1 / UNIT
HALF = 2.0**11  # a weight is split into two parts of 11 bits, whose products with pixels are exact in float32
STEP = 2**10  # a distance is split into a whole number of 1 / STEP and a rest


class Axis(NamedTuple):
    """One side of a resize: places of the `old` pixels, those of the `new` ones inside the crop, and both lengths."""

    old: Tensor  # (n,) of int64
    new: Tensor  # (m,) of int64
    from_length: Tensor  # () of int64
    to_length: Tensor  # () of int64


class Preprocess(nn.Module):
    """From decoded pictures (B, H, W, 3) of uint8, of any H and W, to the inputs (B, 3, *size) of a model.

    Pixels are rounded to 8 bits where the gate rounds them. Weights of an antialiased resize are computed in
    `precision`: float64 gives Pillow's, and with float32 about one in a thousand is off by 1 / UNIT.
    """

    def __init__(self, how: Preprocessing, size: tuple[int, int], precision: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.how, self.size, self.precision = how, size, precision
        self.register_buffer("mean", torch.tensor(how.mean)[:, None, None])
        self.register_buffer("std", torch.tensor(how.std)[:, None, None])

    def forward(self, pictures: Tensor) -> Tensor:
        """(B, H, W, 3) of uint8 -> (B, 3, *size), normalised."""
        return (self.pixels(pictures) / 255 - cast(Tensor, self.mean)) / cast(Tensor, self.std)

    def pixels(self, pictures: Tensor) -> Tensor:
        """(B, H, W, 3) of uint8 -> (B, 3, *size) of whole numbers from 0 to 255 in float32."""
        _, height, width, _ = pictures.shape
        down, across = self._axes(torch.arange(height), torch.arange(width))
        pixels = pictures.permute(0, 3, 1, 2)  # (B, 3, H, W)
        if self.how.interpolation == "area":
            return area(pixels, down, across, self.precision)
        if not self.how.antialias:
            return bilinear(pixels.float(), down, across)
        weights = (pillow_weights(axis, self.how.interpolation, self.precision) for axis in (down, across))
        given = (pixels.float(), *weights)
        if not turns_tall_pictures():
            return columns_first(*given)[0]
        lost_rows, lost_columns = (axis.from_length - axis.to_length for axis in (down, across))
        is_tall = lost_rows > 2 * lost_columns.clamp(min=0)
        if torch.compiler.is_exporting():  # the operator of torch.cond, which would compile the branches first
            return torch.ops.higher_order.cond(is_tall, rows_first, columns_first, given)[0]
        return (rows_first if is_tall else columns_first)(*given)[0]

    def _axes(self, rows: Tensor, columns: Tensor) -> tuple[Axis, Axis]:
        """How both sides are resized and cropped; the arithmetic is that of `evaluation_pixels` in whole numbers."""
        height, width = rows[-1] + 1, columns[-1] + 1
        least = [int(side / self.how.fraction + 1e-6) for side in self.size]
        tall, wide = (torch.full_like(height, side) for side in least)
        if self.how.resize == "shorter":  # the deciding side is exact, the other is rounded down
            tall, wide = torch.maximum(tall, height * wide // width), torch.maximum(wide, width * tall // height)
        return self._cropped(rows, height, tall, self.size[0]), self._cropped(columns, width, wide, self.size[1])

    def _cropped(self, old: Tensor, from_length: Tensor, to_length: Tensor, kept: int) -> Axis:
        begin = ((to_length - kept).float() / 2).round().long()  # half to even, as in Python
        return Axis(old, begin + torch.arange(kept), from_length, to_length)


# -- Pillow's bilinear and bicubic, which smooth when they shrink ---------------------------------------------


def pillow_weights(axis: Axis, how: str, precision: torch.dtype) -> Tensor:
    """(m, n): the weight of each old pixel in each new one, in whole numbers of 1 / UNIT.

    Pillow computes in float64. Here every number is the sum of a part of few bits, which is exact also in float32, and
    a small rest, so that runtimes without float64 come close.
    """
    scale = 2 * torch.maximum(axis.from_length, axis.to_length)
    offset = (2 * axis.old + 1) * axis.to_length - ((2 * axis.new + 1) * axis.from_length)[:, None]
    away = torch.minimum(offset.abs(), 2 * scale)  # (m, n): the distance times `scale`; from 2 on all weights are 0
    whole = (away.to(precision) * STEP / scale.to(precision)).floor().long()  # or one off, which `rest` makes up for
    rest = (away * STEP - whole * scale).to(precision) / scale.to(precision) / STEP
    is_near = whole < STEP
    v = torch.where(is_near, whole, whole - STEP).to(precision) / STEP  # the distance is v + rest

    near, far = FILTERS[how]
    a, b, c, d = (torch.where(is_near, x, y) for x, y in zip(near, far, strict=True))
    square = v * v  # the square of the distance is square + square_rest
    square_rest = rest * (2 * v + rest)
    cut = (square * STEP).floor() / STEP
    cube = cut * v
    cube_rest = cut * rest + (square - cut + square_rest) * (v + rest)
    weight = a + b * v + c * square + d * cube
    weight_rest = b * rest + c * square_rest + d * cube_rest

    # Times the reciprocal of their sum: the product of both first parts is a whole number of 1 / UNIT.
    first = (weight * HALF).floor() / HALF
    second = weight - first + weight_rest
    total, total_rest = first.sum(dim=1, keepdim=True), second.sum(dim=1, keepdim=True)
    share = (HALF / total).floor() / HALF
    share_rest = (1 - share * total - share * total_rest) / (total + total_rest)
    remainder = (second * share + (first + second) * share_rest) * UNIT
    rounded = torch.where(is_near, (remainder + 0.5).floor(), (remainder - 0.5).ceil())  # halves away from zero
    return first * share * UNIT + rounded


def columns_first(pixels: Tensor, down: Tensor, across: Tensor) -> tuple[Tensor]:
    """(B, 3, H, W), (h, H) and (w, W) -> (B, 3, h, w): the order of passes for most pictures."""
    return (pass_down(pass_across(pixels, across), down),)


def rows_first(pixels: Tensor, down: Tensor, across: Tensor) -> tuple[Tensor]:
    """(B, 3, H, W), (h, H) and (w, W) -> (B, 3, h, w): the order for pictures that lose far more rows than columns."""
    return (pass_across(pass_down(pixels, down), across),)


def pass_across(pixels: Tensor, weights: Tensor) -> Tensor:
    """(B, 3, H, W) of whole numbers and (w, W) -> (B, 3, H, w)."""
    return rounded(*(pixels @ halves(weights).mT).chunk(2, dim=3))


def pass_down(pixels: Tensor, weights: Tensor) -> Tensor:
    """(B, 3, H, W) of whole numbers and (h, H) -> (B, 3, h, W)."""
    return rounded(*(halves(weights) @ pixels).chunk(2, dim=2))


def halves(weights: Tensor) -> Tensor:
    """(m, n) -> (2m, n): the weights as whole numbers of HALF, then what is left of them.

    Sums of products of the rest with pixels are below 2**24, and so exact in float32, for up to 64 old pixels per new
    one. Larger sums are rounded by a few 1 / UNIT, which changes a pixel only where it is that close to a half.
    """
    high = (weights / HALF).round()
    return torch.cat([high, weights - high * HALF]).float()


def rounded(high: Tensor, low: Tensor) -> Tensor:
    """Round high * HALF + low, in units of 1 / UNIT, to whole numbers from 0 to 255; halves are rounded up."""
    return ((high + (low / HALF).floor() + HALF / 2) / HALF).floor().clamp(0, 255)


@cache
def turns_tall_pictures() -> bool:
    """Whether this version of Pillow resizes rows before columns if a picture loses more than twice as many rows."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 8, 3), np.uint8))
    bicubic = Image.Resampling.BICUBIC
    by_rows = picture.resize((8, 7), bicubic).resize((5, 7), bicubic)
    return picture.resize((5, 7), bicubic).tobytes() == by_rows.tobytes()


# -- TensorFlow's bilinear, which does not smooth, and area ---------------------------------------------------


def bilinear(pixels: Tensor, down: Axis, across: Axis) -> Tensor:
    """(B, 3, H, W) -> (B, 3, h, w): interpolate between the two old pixels around each new centre, along each axis."""
    above, below, lower = neighbours(down)
    left, right, later = neighbours(across)
    rows = (pixels.index_select(2, one) for one in (above, below))  # (B, 3, h, W)
    top, bottom = (between(one.index_select(3, left), one.index_select(3, right), later) for one in rows)
    return between(top, bottom, lower[:, None]).round()


def between(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    """The mean of two numbers; `weight` is that of the second."""
    return first * (1 - weight) + second * weight


def neighbours(axis: Axis) -> tuple[Tensor, Tensor, Tensor]:
    """For each new pixel, the places of the two old ones around its centre and the weight of the second; all (m,)."""
    last, twice = axis.from_length - 1, 2 * axis.to_length
    centre = (2 * axis.new + 1) * axis.from_length - axis.to_length  # times `twice`
    centre = torch.minimum(centre.clamp(min=0), last * twice)
    first = centre // twice
    return first, torch.minimum(first + 1, last), quotient((centre - first * twice).float(), twice.float())


def quotient(a: Tensor, b: Tensor) -> Tensor:
    """a / b for 0 <= a < b, rounded to the nearest float32 also where a runtime multiplies by the reciprocal.

    Many means are halves up to rounding, so that the last bit of a weight decides how they are rounded.
    """
    near = a / b
    high = (near * STEP).floor() / STEP
    return near + (a - high * b - (near - high) * b) / b


def area(pixels: Tensor, down: Axis, across: Axis, precision: torch.dtype) -> Tensor:
    """(B, 3, H, W) -> (B, 3, h, w): the mean of the old area under each new pixel, with fractions of pixels."""
    rows = overlaps(down).to(precision) @ pixels.to(precision)  # (B, 3, h, W)
    both = rows @ overlaps(across).to(precision).mT  # (B, 3, h, w)
    return (both / (down.from_length * across.from_length).to(precision)).round().float()


def overlaps(axis: Axis) -> Tensor:
    """(m, n): the length that each new pixel shares with each old one, in units of 1 / `to_length`."""
    new = axis.new[:, None]
    end = torch.minimum((axis.old + 1) * axis.to_length, (new + 1) * axis.from_length)
    return (end - torch.maximum(axis.old * axis.to_length, new * axis.from_length)).clamp(min=0)
