"""Resizing a box of a picture, in the families that pre-trained models were made with.

Antialiased bilinear and bicubic are Pillow's. Plain bilinear and area are TensorFlow's, which the authors used:
half-pixel centres, and shrinking by plain bilinear does not smooth.
"""

import numpy as np
from PIL import Image

from vitlab.data.refusals import BadImage, Reason
from vitlab.spec import Interpolation

RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
LARGEST_RESULT = 16_000_000  # pixels of one resized picture
Box = tuple[int, int, int, int]  # left, upper, right, lower, as Pillow has it


def resized(
    image: Image.Image, size: tuple[int, int], how: Interpolation, *, antialias: bool, box: Box | None = None
) -> Image.Image:
    """The picture, or a box of it, at exactly (height, width) of 8-bit pixels."""
    height, width = size
    if height * width > LARGEST_RESULT:
        found = f"is {image.width} x {image.height}, which becomes {width} x {height} with its shape kept"
        raise BadImage(Reason.aspect_ratio, f"{found}; {LARGEST_RESULT:,} pixels are allowed; crop it or leave it out")
    left, upper, right, lower = box or (0, 0, image.width, image.height)
    if (right - left, lower - upper) == (width, height):
        return image.crop((left, upper, right, lower)) if box else image
    if antialias and how in RESAMPLING:
        return image.resize((width, height), RESAMPLING[how], box=(left, upper, right, lower))
    pixels = np.asarray(image.crop((left, upper, right, lower)) if box else image)
    if how == "bicubic":
        raise ValueError("bicubic resizing is antialiased here")
    return Image.fromarray(_area(pixels, height, width) if how == "area" else _bilinear(pixels, height, width))


def _bilinear(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Between the two old pixels around each new centre, along each axis.

    Differs from the paper: the result is rounded to 8 bits, TensorFlow keeps floats.
    """
    above, below, down = _neighbours(pixels.shape[0], height)
    left, right, across = _neighbours(pixels.shape[1], width)
    across = across[:, None]
    # Columns first on the few rows that are needed: (2 height, W, 3) -> (2 height, width, 3).
    upper, lower = (pixels[rows][:, left] * (1 - across) + pixels[rows][:, right] * across for rows in (above, below))
    down = down[:, None, None]
    return (upper * (1 - down) + lower * down).round().astype(np.uint8)


def _neighbours(old: int, new: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each new pixel the two old ones around its centre, and how far it is on the way to the second."""
    centre = np.clip((np.arange(new) + 0.5) * (old / new) - 0.5, 0, old - 1)
    first = np.floor(centre).astype(int)
    return first, np.minimum(first + 1, old - 1), (centre - first).astype(np.float32)


def _area(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Each new pixel is the mean of the old area under it, parts of pixels counted as parts."""
    rows = _area_means(pixels.astype(np.float64), height)
    return _area_means(rows.swapaxes(0, 1), width).swapaxes(0, 1).round().astype(np.uint8)


def _area_means(values: np.ndarray, new: int) -> np.ndarray:
    """Means over `new` equal stretches of the first axis, from the running sum at their ends."""
    old = len(values)
    running = np.concatenate([np.zeros_like(values[:1]), values.cumsum(axis=0)])
    ends = np.arange(new + 1) * (old / new)
    whole = np.minimum(ends.astype(int), old - 1)
    part = (ends - whole).reshape(-1, *[1] * (values.ndim - 1))
    sums = running[whole] + part * values[whole]
    return np.diff(sums, axis=0) * (new / old)
