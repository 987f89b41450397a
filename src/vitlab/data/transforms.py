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
    """To exactly (height, width).

    Without antialiasing each new pixel samples the old ones around its centre, as TensorFlow's resize does.
    Differs from the paper: the result is rounded to 8 bits, TensorFlow keeps floats.
    """
    if height * width > LARGEST_RESULT:
        raise ValueError(f"resizing to {width}x{height} makes more than {LARGEST_RESULT:,} pixels")
    if image.size == (width, height):
        return image
    resample = RESAMPLING[how.interpolation]
    if how.antialias:
        return image.resize((width, height), resample)
    steps = (image.width / width, 0, 0, 0, image.height / height, 0)
    return image.transform((width, height), Image.Transform.AFFINE, steps, resample)


def _tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
