"""From an upright RGB picture to the input of a model in evaluation."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitlab.data.source import Source
from vitlab.data.transforms.resizing import resized
from vitlab.pixels import Preprocessing


def evaluation_pixels(image: Image.Image, size: tuple[int, int], how: Preprocessing) -> Tensor:
    """RGB picture -> (3, H, W) of 0..255 in uint8; `size` is (H, W)."""
    height, width = size
    rows, columns = (int(side / how.fraction + 1e-6) for side in size)  # 224 / (224 / 248) is 248
    if how.resize == "shorter":
        scale = max(rows / image.height, columns / image.width)
        # The deciding side is exact; the other is rounded down, as in the reference loaders.
        rows, columns = max(rows, int(scale * image.height + 1e-6)), max(columns, int(scale * image.width + 1e-6))
    image = resized(image, (rows, columns), how.interpolation, antialias=how.antialias)
    top, left = round((rows - height) / 2), round((columns - width) / 2)
    return to_tensor(image.crop((left, top, left + width, top + height)))


def to_tensor(image: Image.Image) -> Tensor:
    """RGB picture -> (3, H, W) of uint8."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def as_model_input(source: Source, how: Preprocessing) -> Callable[[Tensor], Tensor]:
    """Return the function from a source's pixels to model inputs: `normalised`, or the identity for float tensors."""
    return _unchanged if source.is_prepared else partial(normalised, how=how)


def _unchanged(pixels: Tensor) -> Tensor:
    return pixels


def normalised(pixels: Tensor, how: Preprocessing) -> Tensor:
    """(..., 3, H, W) of 0..255 -> float32, normalised with the model's mean and standard deviation."""
    mean = torch.tensor(how.mean, device=pixels.device)[:, None, None]
    std = torch.tensor(how.std, device=pixels.device)[:, None, None]
    scaled = pixels.float() / 255  # new memory, which the rest may change
    return scaled.sub_(mean).div_(std)
