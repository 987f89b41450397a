"""RandAugment, a few random operations of one strength, and random erasing."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.random import Generator
from PIL import Image
from torch import Tensor

from vitlab.data.transforms import pillow_operations, tensorflow_operations
from vitlab.data.transforms.resizing import RESAMPLING
from vitlab.spec.pixels import Erasing, Interpolation, RandAugment

SCALE = 10  # the magnitude that is level 1
ERASED_AREA = (0.02, 1 / 3)  # of the picture
ERASED_ASPECTS = (0.3, 1 / 0.3)  # height / width
ATTEMPTS = 10  # to find a box smaller than the picture; after that nothing is erased


def randaugmented(image: Image.Image, how: RandAugment, interpolation: Interpolation, rng: Generator) -> Image.Image:
    """Apply `how.layers` random operations of the flavour."""
    if how.flavour == "tf":
        pixels = np.asarray(image)
        for name, level in _drawn(how, list(tensorflow_operations.OPERATIONS), rng, most=math.inf):
            pixels = tensorflow_operations.applied(name, pixels, level, how.fill, rng)
        return Image.fromarray(pixels)
    resampling = RESAMPLING.get(interpolation, Image.Resampling.BILINEAR)
    for name, level in _drawn(how, list(pillow_operations.OPERATIONS), rng, most=1.0):
        image = pillow_operations.applied(name, image, level, how.fill, resampling, rng)
    return image


def _drawn(how: RandAugment, names: list[str], rng: Generator, most: float) -> Iterator[tuple[str, float]]:
    """Random operations and their levels. timm clips a level at 1, TensorFlow allows more."""
    for number in rng.integers(len(names), size=how.layers):
        assert how.magnitude is not None, "layers have a magnitude"
        if rng.random() < how.probability:
            magnitude = rng.normal(how.magnitude, how.deviation) if how.deviation else how.magnitude
            yield names[number], min(max(magnitude / SCALE, 0.0), most)


def erased(pixels: Tensor, how: Erasing, rng: Generator) -> Tensor:
    """(3, H, W) of uint8 -> the same, with the given probability with a box of noise."""
    if rng.random() >= how.probability:
        return pixels
    box = erased_box(pixels.shape[1], pixels.shape[2], rng)
    if box is None:
        return pixels
    top, left, rows, columns = box
    # Differs from DeiT: its noise is normal after normalisation. Here the same noise is converted back to pixels,
    # which are bytes until they are on the device: rounded, and clipped at black and white.
    noise = rng.normal(size=(3, rows, columns))
    mean, std = (np.array(values)[:, None, None] for values in (how.mean, how.std))
    values = np.clip(np.rint(255 * (mean + std * noise)), 0, 255).astype(np.uint8)
    changed = pixels.clone()
    changed[:, top : top + rows, left : left + columns] = torch.from_numpy(values)
    return changed


def erased_box(height: int, width: int, rng: Generator) -> tuple[int, int, int, int] | None:
    """Draw (top, left, rows, columns): uniform area, log-uniform aspect, uniform place."""
    for _ in range(ATTEMPTS):
        area = rng.uniform(*ERASED_AREA) * height * width
        aspect = math.exp(rng.uniform(math.log(ERASED_ASPECTS[0]), math.log(ERASED_ASPECTS[1])))
        rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < rows < height and 0 < columns < width:
            return int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1)), rows, columns
    return None
