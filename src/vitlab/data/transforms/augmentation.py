"""Random augmentation of training pictures; every draw is a function of (seed, epoch, sample id, repeat)."""

import hashlib
import math

from numpy.random import Generator, Philox
from PIL import Image
from torch import Tensor

from vitlab.data.images.gate import Box, FloatBox, Opened, part_of
from vitlab.data.transforms.pillow_operations import jittered
from vitlab.data.transforms.randaugment import erased, randaugmented
from vitlab.data.transforms.resizing import resized, resized_pixels, support, to_tensor
from vitlab.spec.pixels import Augmentation

ATTEMPTS = 100  # of the inception crop; after that the whole picture is used
ASPECTS = (0.75, 1.33)  # width / height


def draws(seed: int, epoch: int, sample: str, repeat: int = 0) -> Generator:
    """Return the random generator of a sample in one epoch and `repeat`: the same on any worker, rank and order."""
    when = f"{epoch}.{repeat}" if repeat else f"{epoch}"
    text = f"{seed}/{when}/{sample}".encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(text, digest_size=16).digest()
    return Generator(Philox(key=int.from_bytes(digest, "little")))


def training_pixels(picture: Image.Image | Opened, size: tuple[int, int], how: Augmentation, rng: Generator) -> Tensor:
    """RGB picture -> (3, H, W) of 0..255 in uint8; `size` is (H, W)."""
    image, box = _cropped(picture, size, how, rng)
    if how.randaugment.layers or how.colour_jitter:
        image = resized(image, size, how.interpolation, antialias=how.antialias, box=box)
        pixels = to_tensor(_changed(image, how, rng))
    else:
        pixels = resized_pixels(image, size, how.interpolation, antialias=how.antialias, box=box)
        pixels = pixels.flip(2) if _is_flipped(how, rng) else pixels
    return erased(pixels, how.erasing, rng) if how.erasing.probability else pixels


def _changed(image: Image.Image, how: Augmentation, rng: Generator) -> Image.Image:
    """Flip, and apply the operations that need a picture."""
    if _is_flipped(how, rng):
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if how.randaugment.layers:
        image = randaugmented(image, how.randaugment, how.interpolation, rng)
    return jittered(image, how.colour_jitter, rng) if how.colour_jitter else image


def _is_flipped(how: Augmentation, rng: Generator) -> bool:
    return how.flip and rng.random() < 0.5


def inception_box(width: int, height: int, smallest: float, rng: Generator) -> Box:
    """Draw a random box like TensorFlow's `sample_distorted_bounding_box`.

    The aspect is uniform; then the height is a uniform whole number between that of the smallest area and the largest
    that fits. Smaller boxes are more frequent than with uniform areas.
    """
    for _ in range(ATTEMPTS):
        aspect = rng.uniform(*ASPECTS)
        tallest = min(round(math.sqrt(width * height / aspect)), height)
        if round(tallest * aspect) > width:
            tallest = int((width + 0.5 - 1e-7) / aspect)
        shortest = min(round(math.sqrt(smallest * width * height / aspect)), tallest)
        rows = int(rng.integers(shortest, tallest + 1))
        columns = round(rows * aspect)
        if columns * rows < smallest * width * height:  # rounding may miss the area by a row
            rows += 1
            columns = round(rows * aspect)
        if 0 < rows <= height and 0 < columns <= width and columns * rows >= smallest * width * height:
            upper = int(rng.integers(height - rows)) if rows < height else 0
            left = int(rng.integers(width - columns)) if columns < width else 0
            return left, upper, left + columns, upper + rows
    return 0, 0, width, height


def uniform_area_box(width: int, height: int, smallest: float, rng: Generator) -> Box:
    """Draw a random box of uniform area and log-uniform aspect, like torchvision's RandomResizedCrop."""
    for _ in range(10):
        area = width * height * rng.uniform(smallest, 1.0)
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        columns, rows = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < columns <= width and 0 < rows <= height:
            left, upper = int(rng.integers(width - columns + 1)), int(rng.integers(height - rows + 1))
            return left, upper, left + columns, upper + rows
    columns, rows = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, upper = (width - columns) // 2, (height - rows) // 2
    return left, upper, left + columns, upper + rows


def _cropped(
    picture: Image.Image | Opened, size: tuple[int, int], how: Augmentation, rng: Generator
) -> tuple[Image.Image, FloatBox]:
    """The picture, enlarged first by two of the crops, and the box to cut out of it."""
    width, height = picture.size
    beyond = support(how.interpolation, antialias=how.antialias)
    match how.crop:
        case "inception":
            return part_of(picture, inception_box(width, height, how.smallest_area, rng), size, beyond)
        case "uniform-area":
            return part_of(picture, uniform_area_box(width, height, how.smallest_area, rng), size, beyond)
        case "none":
            return part_of(picture, (0, 0, width, height), size, 0)
        case "square-crop":  # BiT's: stretch to a larger square, then cut a random piece of the final size
            larger = (round(size[0] * how.enlarged), round(size[1] * how.enlarged))
        case "shorter-crop":  # big_vision's: the same, but keep the aspect ratio
            scale = max(size[0] * how.enlarged / height, size[1] * how.enlarged / width)
            larger = (max(size[0], round(height * scale)), max(size[1], round(width * scale)))
    image, whole = part_of(picture, (0, 0, width, height), larger, 0)
    image = resized(image, larger, how.interpolation, antialias=how.antialias, box=whole)
    upper = int(rng.integers(image.height - size[0] + 1))
    left = int(rng.integers(image.width - size[1] + 1))
    return image, (left, upper, left + size[1], upper + size[0])
