"""Resizing of a box of a picture, with the methods that pre-trained models use.

Antialiased bilinear and bicubic are Pillow's. Plain bilinear and area are TensorFlow's, which the authors used, with
half-pixel centres; plain bilinear does not smooth when it shrinks.
"""

import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitlab.data.images.gate import Box, FloatBox
from vitlab.data.images.refusals import BadImage, Reason
from vitlab.require import require
from vitlab.spec.pixels import Interpolation

RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
SUPPORT = {"bilinear": 1, "bicubic": 2}  # how far an antialiased filter reaches, in pixels of the result
ROWS = "RGB;L"  # Pillow's name of a layout: all red values of a row, then all green, then all blue
LARGEST_RESULT = 16_000_000  # pixels of one resized picture


def check_result(size: tuple[int, int]) -> None:
    """Raise ValueError unless pictures may be resized to (height, width)."""
    height, width = size
    fits = min(size) >= 1 and height * width <= LARGEST_RESULT
    require(fits, f"size {height}x{width} must be 1x1 or more, and at most {LARGEST_RESULT:,} pixels")


def support(how: Interpolation, *, antialias: bool) -> int:
    """Return how many pixels of the result beyond a box `resized` looks: Pillow's filters do not end at the box."""
    return SUPPORT.get(how, 0) if antialias else 0


def resized(
    image: Image.Image, size: tuple[int, int], how: Interpolation, *, antialias: bool, box: FloatBox | None = None
) -> Image.Image:
    """Resize a picture, or a box of it, to exactly (height, width) of 8-bit pixels."""
    height, width = size
    check_shape(image.size, size)
    left, upper, right, lower = around = box or (0, 0, image.width, image.height)
    if (right - left, lower - upper) == (width, height) and around == tuple(map(int, around)):
        return image.crop(_whole(around)) if box else image
    if antialias and how in RESAMPLING:
        return image.resize((width, height), RESAMPLING[how], box=around)
    require(how != "bicubic", "bicubic resizing is always antialiased; set antialias, or use bilinear")
    if how == "area":
        pixels = np.asarray(image.crop(_whole(around)) if box else image)
        return Image.fromarray(_area(pixels, height, width))
    return Image.frombytes("RGB", (width, height), _bilinear(image, height, width, around).tobytes(), "raw", ROWS)


def resized_pixels(
    image: Image.Image, size: tuple[int, int], how: Interpolation, *, antialias: bool, box: FloatBox | None = None
) -> Tensor:
    """Resize like `resized`, to (3, H, W) of uint8."""
    around = box or (0, 0, image.width, image.height)
    is_resized = (around[2] - around[0], around[3] - around[1]) != (size[1], size[0])
    if how == "bilinear" and not antialias and is_resized:
        check_shape(image.size, size)
        return torch.from_numpy(_bilinear(image, *size, around)).permute(1, 0, 2)
    return to_tensor(resized(image, size, how, antialias=antialias, box=box))


def to_tensor(image: Image.Image) -> Tensor:
    """RGB picture -> (3, H, W) of uint8."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def check_shape(old: tuple[int, int], new: tuple[int, int]) -> None:
    """Raise BadImage if a picture of (width, height) becomes too large: it has an extreme aspect ratio."""
    height, width = new
    if height * width > LARGEST_RESULT:  # the size was checked
        found = f"is {old[0]} x {old[1]}, which becomes {width} x {height} with its shape kept"
        raise BadImage(Reason.aspect_ratio, f"{found}; {LARGEST_RESULT:,} pixels are allowed; crop it or leave it out")


def _whole(box: FloatBox) -> Box:
    """Return the whole pixels that a box touches."""
    return math.floor(box[0]), math.floor(box[1]), math.ceil(box[2]), math.ceil(box[3])


def _bilinear(image: Image.Image, height: int, width: int, box: FloatBox) -> np.ndarray:
    """Interpolate between the two old pixels around each new centre, along each axis: (height, 3, width).

    Differs from the paper: pixels are rounded to 8 bits after resizing; TensorFlow keeps floats.
    """
    outside = _whole(box)
    image = image.crop(outside)
    # Each row is its red, green and blue values: bytes move several times faster one by one than in threes.
    rows = np.frombuffer(image.tobytes("raw", ROWS), np.uint8).reshape(image.height, 3, image.width)
    above, below, down = _neighbours(image.height, height, box[1] - outside[1], box[3] - outside[1])
    left, right, across = _neighbours(image.width, width, box[0] - outside[0], box[2] - outside[0])
    if image.height > 2 * height:  # most rows are not needed
        rows = rows[np.concatenate([above, below])]
        above, below = np.arange(height), np.arange(height, 2 * height)
    # Columns first, once per row: (rows, 3, W) -> (rows, 3, width).
    first, second = (rows.take(columns, axis=2).astype(np.float32) for columns in (left, right))
    mixed = _blend(first, second, across)
    mixed = _blend(mixed[above], mixed[below], down[:, None, None])
    return np.rint(mixed, out=mixed).astype(np.uint8)


def _blend(first: np.ndarray, second: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return first * (1 - share) + second * share, in the memory of the first."""
    first *= 1 - share
    second *= share
    first += second
    return first


def _neighbours(old: int, new: int, begin: float, end: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each new pixel between `begin` and `end`, the two old ones around its centre and the weight of the second."""
    centre = np.clip((np.arange(new) + 0.5) * ((end - begin) / new) - 0.5 + begin, 0, old - 1)
    first = np.floor(centre).astype(int)
    return first, np.minimum(first + 1, old - 1), (centre - first).astype(np.float32)


def _area(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Make each new pixel the mean of the old area under it, with fractions of pixels.

    Rows are processed a few at a time, so that memory is that of the result, not of the picture in floats.
    """
    rows = np.stack([_strip_mean(pixels, *ends) for ends in _stretches(len(pixels), height)])  # (height, W, 3)
    columns = rows.swapaxes(0, 1)
    means = np.stack([_strip_mean(columns, *ends) for ends in _stretches(len(columns), width)])  # (width, height, 3)
    return means.swapaxes(0, 1).round().astype(np.uint8)


def _stretches(old: int, new: int) -> list[tuple[float, float]]:
    """Start and end of each of `new` equal parts of 0..old."""
    return [(old * part / new, old * (part + 1) / new) for part in range(new)]


def _strip_mean(values: np.ndarray, begin: float, end: float) -> np.ndarray:
    """The mean over a stretch of the first axis, with fractions of its first and last entries."""
    first, last = int(begin), min(max(math.ceil(end), int(begin) + 1), len(values))
    weights = np.minimum(np.arange(first, last) + 1, end) - np.maximum(np.arange(first, last), begin)
    total = weights[0] * values[first]
    for weight, row in zip(weights[1:], values[first + 1 : last], strict=True):
        total += weight * row  # one after the other: the order in a library's product depends on the processor
    return total / (end - begin)
