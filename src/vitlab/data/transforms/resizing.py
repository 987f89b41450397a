"""Resizing of a box of a picture, with the methods that pre-trained models use.

Antialiased bilinear and bicubic are Pillow's. Plain bilinear and area are TensorFlow's, which the authors used, with
half-pixel centres; plain bilinear does not smooth when it shrinks.
"""

import math

import numpy as np
from PIL import Image

from vitlab.data.images.refusals import BadImage, Reason
from vitlab.pixels import Interpolation
from vitlab.require import require

RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
LARGEST_RESULT = 16_000_000  # pixels of one resized picture
Box = tuple[int, int, int, int]  # left, upper, right, lower, as in Pillow


def check_result(size: tuple[int, int]) -> None:
    """Raise ValueError unless pictures may be resized to (height, width)."""
    height, width = size
    fits = min(size) >= 1 and height * width <= LARGEST_RESULT
    require(fits, f"size {height}x{width} must be 1x1 or more, and at most {LARGEST_RESULT:,} pixels")


def resized(
    image: Image.Image, size: tuple[int, int], how: Interpolation, *, antialias: bool, box: Box | None = None
) -> Image.Image:
    """Resize a picture, or a box of it, to exactly (height, width) of 8-bit pixels."""
    height, width = size
    if height * width > LARGEST_RESULT:  # the size was checked: the picture has an extreme aspect ratio
        found = f"is {image.width} x {image.height}, which becomes {width} x {height} with its shape kept"
        raise BadImage(Reason.aspect_ratio, f"{found}; {LARGEST_RESULT:,} pixels are allowed; crop it or leave it out")
    left, upper, right, lower = box or (0, 0, image.width, image.height)
    if (right - left, lower - upper) == (width, height):
        return image.crop((left, upper, right, lower)) if box else image
    if antialias and how in RESAMPLING:
        return image.resize((width, height), RESAMPLING[how], box=(left, upper, right, lower))
    pixels = np.asarray(image.crop((left, upper, right, lower)) if box else image)
    require(how != "bicubic", "bicubic resizing is always antialiased; set antialias, or use bilinear")
    return Image.fromarray(_area(pixels, height, width) if how == "area" else _bilinear(pixels, height, width))


def _bilinear(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Interpolate between the two old pixels around each new centre, along each axis.

    Differs from the paper: pixels are rounded to 8 bits after resizing; TensorFlow keeps floats.
    """
    above, below, down = _neighbours(pixels.shape[0], height)
    left, right, across = _neighbours(pixels.shape[1], width)
    across, down = across.repeat(3), down[:, None]  # channels are part of the rows: long rows are faster
    # Columns first on the few rows that are needed: (2 height, W, 3) -> (2 height, width * 3).
    upper, lower = (
        _columns(rows, left) * (1 - across) + _columns(rows, right) * across for rows in (pixels[above], pixels[below])
    )
    return (upper * (1 - down) + lower * down).round().astype(np.uint8).reshape(height, width, 3)


def _columns(rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """(h, W, 3) -> (h, columns * 3)."""
    return np.take(rows, numbers, axis=1).reshape(len(rows), -1)


def _neighbours(old: int, new: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each new pixel, the two old ones around its centre and the weight of the second."""
    centre = np.clip((np.arange(new) + 0.5) * (old / new) - 0.5, 0, old - 1)
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
    return np.tensordot(weights, values[first:last], axes=1) / (end - begin)
