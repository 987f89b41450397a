"""From an upright RGB picture to the pixels a model was trained to see."""

import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitlab.spec import Preprocessing

RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
LARGEST_RESULT = 16_000_000  # pixels of one resized picture


def evaluation_pixels(image: Image.Image, size: tuple[int, int], how: Preprocessing) -> Tensor:
    """RGB picture -> (3, H, W) of 0..255 in uint8; `size` is (H, W)."""
    height, width = size
    if how.resize == "square":
        return _tensor(_resized(image, height, width, how))
    target = (math.floor(height / how.fraction), math.floor(width / how.fraction))
    scale = max(target[0] / image.height, target[1] / image.width)
    # The side that decides is exact; the other is rounded down, as the reference loaders do.
    rows, columns = (max(t, int(scale * s + 1e-6)) for t, s in zip(target, (image.height, image.width), strict=True))
    image = _resized(image, rows, columns, how)
    top, left = round((rows - height) / 2), round((columns - width) / 2)
    return _tensor(image.crop((left, top, left + width, top + height)))


def normalised(pixels: Tensor, how: Preprocessing) -> Tensor:
    """(..., 3, H, W) of 0..255 -> float32 with the model's mean and deviation, on the device of `pixels`."""
    mean = torch.tensor(how.mean, device=pixels.device)[:, None, None]
    std = torch.tensor(how.std, device=pixels.device)[:, None, None]
    return (pixels.float() / 255 - mean) / std


def _resized(image: Image.Image, height: int, width: int, how: Preprocessing) -> Image.Image:
    """To exactly (height, width)."""
    if height * width > LARGEST_RESULT:
        raise ValueError(f"resizing to {width}x{height} makes more than {LARGEST_RESULT:,} pixels")
    if image.size == (width, height):
        return image
    return (
        image.resize((width, height), RESAMPLING[how.interpolation])
        if how.antialias
        else _sampled(image, height, width)
    )


def _sampled(image: Image.Image, height: int, width: int) -> Image.Image:
    """Bilinear between the old pixels around each new centre, as TensorFlow's resize: shrinking does not smooth.

    Differs from the paper: the result is rounded to 8 bits, TensorFlow keeps floats.
    """
    pixels = np.asarray(image)
    above, below, down = _neighbours(image.height, height)
    rows = pixels[above] * (1 - down[:, None, None]) + pixels[below] * down[:, None, None]  # (height, W, 3)
    left, right, across = _neighbours(image.width, width)
    mixed = rows[:, left] * (1 - across[:, None]) + rows[:, right] * across[:, None]  # (height, width, 3)
    return Image.fromarray(mixed.round().astype(np.uint8))


def _neighbours(old: int, new: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each new pixel the two old ones around its centre, and how far it is on the way to the second."""
    centre = np.clip((np.arange(new) + 0.5) * (old / new) - 0.5, 0, old - 1)
    first = np.floor(centre).astype(int)
    return first, np.minimum(first + 1, old - 1), (centre - first).astype(np.float32)


def _tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
