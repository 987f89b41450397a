"""The operations of RandAugment as in timm for DeiT (`inc1`), own code on Pillow: no effect at level 0."""

from collections.abc import Callable
from functools import partial

from numpy.random import Generator
from PIL import Image, ImageEnhance, ImageOps

from vitlab.data.transforms.operation import HALF, Colour, Operation

# The colour fills what comes from outside the picture; the last argument is the interpolation.
Apply = Callable[[Image.Image, float, Colour, Image.Resampling], Image.Image]
Row = tuple[float, float, float]  # of an affine map
LEAST_FACTOR = 0.1  # of an enhancement, so that a picture is never entirely grey or black


def posterize(image: Image.Image, bits: int) -> Image.Image:
    """Keep only the highest `bits` of each value; with 0, which newer Pillows refuse, the picture is black."""
    return image.point([value >> 8 - bits << 8 - bits for value in range(256)] * 3)


def solarize_add(image: Image.Image, addition: int) -> Image.Image:
    """Brighten the values of the darker half."""
    return image.point([min(value + addition, 255) if value < HALF else value for value in range(256)] * 3)


def _moved(
    across: Row, down: Row, image: Image.Image, amount: float, fill: Colour, how: Image.Resampling
) -> Image.Image:
    """Apply an affine map: the identity plus `amount` times the rows given."""
    # The last column moves by shares of the picture's sides.
    matrix = (
        *(1 + amount * across[0], amount * across[1], amount * across[2] * image.width),
        *(amount * down[0], 1 + amount * down[1], amount * down[2] * image.height),
    )
    return image.transform(image.size, Image.Transform.AFFINE, matrix, how, fillcolor=fill)


def _enhanced(
    kind: Callable[[Image.Image], ImageEnhance._Enhance],
    image: Image.Image,
    amount: float,
    fill: Colour,
    how: Image.Resampling,
) -> Image.Image:
    """Enhance by a factor of 1 + `amount`."""
    return kind(image).enhance(max(1 + amount, LEAST_FACTOR))


OPERATIONS: dict[str, Operation[Apply]] = {  # in the order of the random numbers
    "AutoContrast": Operation(lambda x, amount, fill, how: ImageOps.autocontrast(x)),
    "Equalize": Operation(lambda x, amount, fill, how: ImageOps.equalize(x)),
    "Invert": Operation(lambda x, amount, fill, how: ImageOps.invert(x)),
    "Rotate": Operation(
        lambda x, amount, fill, how: x.rotate(amount, how, fillcolor=fill), lambda level: level * 30, has_sign=True
    ),
    "Posterize": Operation(lambda x, amount, fill, how: posterize(x, int(amount)), lambda level: 4 - int(level * 4)),
    "Solarize": Operation(
        lambda x, amount, fill, how: ImageOps.solarize(x, int(amount)), lambda level: 256 - min(int(level * 256), 256)
    ),
    "SolarizeAdd": Operation(
        lambda x, amount, fill, how: solarize_add(x, int(amount)), lambda level: min(int(level * 110), HALF)
    ),
    "Color": Operation(partial(_enhanced, ImageEnhance.Color), lambda level: level * 0.9, has_sign=True),
    "Contrast": Operation(partial(_enhanced, ImageEnhance.Contrast), lambda level: level * 0.9, has_sign=True),
    "Brightness": Operation(partial(_enhanced, ImageEnhance.Brightness), lambda level: level * 0.9, has_sign=True),
    "Sharpness": Operation(partial(_enhanced, ImageEnhance.Sharpness), lambda level: level * 0.9, has_sign=True),
    "ShearX": Operation(partial(_moved, (0, 1, 0), (0, 0, 0)), lambda level: level * 0.3, has_sign=True),
    "ShearY": Operation(partial(_moved, (0, 0, 0), (1, 0, 0)), lambda level: level * 0.3, has_sign=True),
    "TranslateX": Operation(partial(_moved, (0, 0, 1), (0, 0, 0)), lambda level: level * 0.45, has_sign=True),
    "TranslateY": Operation(partial(_moved, (0, 0, 0), (0, 0, 1)), lambda level: level * 0.45, has_sign=True),
}


def applied(
    name: str, image: Image.Image, level: float, fill: Colour, how: Image.Resampling, rng: Generator
) -> Image.Image:
    """Apply one operation at a level, with a random sign."""
    operation = OPERATIONS[name]
    return operation.apply(image, operation.drawn(level, rng), fill, how)


def jittered(image: Image.Image, most: float, rng: Generator) -> Image.Image:
    """Change brightness, contrast and saturation by factors from 1 - `most` to 1 + `most`, in random order."""
    factors = rng.uniform(max(1 - most, 0), 1 + most, 3)
    kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for number in rng.permutation(3):
        image = kinds[number](image).enhance(float(factors[number]))
    return image
