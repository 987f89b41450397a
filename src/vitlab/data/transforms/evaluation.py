"""From an upright RGB picture to the input of a model in evaluation."""

from collections.abc import Callable
from functools import partial

import torch
from PIL import Image
from torch import Tensor

from vitlab.data.images.gate import Opened, part_of
from vitlab.data.source import Source
from vitlab.data.transforms.resizing import check_shape, resized_pixels
from vitlab.spec.pixels import Preprocessing


def evaluation_pixels(picture: Image.Image | Opened, size: tuple[int, int], how: Preprocessing) -> Tensor:
    """RGB picture -> (3, H, W) of 0..255 in uint8; `size` is (H, W)."""
    height, width = size
    rows, columns = (int(side / how.fraction + 1e-6) for side in size)  # 224 / (224 / 248) is 248
    old_width, old_height = picture.size
    if how.resize == "shorter":
        scale = max(rows / old_height, columns / old_width)
        # The deciding side is exact; the other is rounded down, as in the reference loaders.
        rows, columns = max(rows, int(scale * old_height + 1e-6)), max(columns, int(scale * old_width + 1e-6))
    check_shape(picture.size, (rows, columns))
    image, box = part_of(picture, (0, 0, old_width, old_height), (rows, columns), 0)
    pixels = resized_pixels(image, (rows, columns), how.interpolation, antialias=how.antialias, box=box)
    top, left = round((rows - height) / 2), round((columns - width) / 2)
    return pixels[:, top : top + height, left : left + width]


def as_model_input(source: Source, how: Preprocessing) -> Callable[[Tensor], Tensor]:
    """Return the function from a source's pixels to model inputs: `normalised`, or the identity for float tensors."""
    return _unchanged if source.is_prepared else partial(normalised, how=how)


def _unchanged(pixels: Tensor) -> Tensor:
    return pixels


def normalised(pixels: Tensor, how: Preprocessing) -> Tensor:
    """(..., 3, H, W) of 0..255 -> float32, normalised with the model's mean and standard deviation."""
    mean = torch.tensor(how.mean, device=pixels.device)[:, None, None]
    std = torch.tensor(how.std, device=pixels.device)[:, None, None]
    return pixels.float().div_(255).sub_(mean).div_(std)  # `float` makes the only new memory
