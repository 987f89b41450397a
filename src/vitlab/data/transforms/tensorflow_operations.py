"""The operations of RandAugment with TensorFlow's arithmetic, as in the training of AugReg: own code on NumPy.

Pixels are (H, W, 3) of uint8. Results are truncated, not rounded, where TensorFlow casts. Geometric operations take
the nearest pixel; `fill` is the colour of what comes from outside the picture.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.random import Generator

from vitlab.data.transforms.operation import HALF, Colour, Operation

Apply = Callable[[np.ndarray, float, Colour], np.ndarray]
Row = tuple[float, float, float]  # of an affine map
GREY = np.array([0.2989, 0.5870, 0.1140], dtype=np.float32)  # shares of red, green and blue in brightness


def autocontrast(pixels: np.ndarray) -> np.ndarray:
    """Stretch each channel so that its darkest value is 0 and its brightest 255."""
    low, high = (end.astype(np.float32) for end in (pixels.min(axis=(0, 1)), pixels.max(axis=(0, 1))))
    scale = np.float32(255) / np.maximum(high - low, 1)
    stretched = np.clip(pixels.astype(np.float32) * scale - low * scale, 0, 255).astype(np.uint8)
    return np.where(high > low, stretched, pixels)


def equalize(pixels: np.ndarray) -> np.ndarray:
    """Map each channel so that its values are about equally frequent."""
    return np.stack([_equalized(pixels[..., channel]) for channel in range(3)], axis=-1)


def _equalized(values: np.ndarray) -> np.ndarray:
    counts = np.bincount(values.ravel(), minlength=256)
    step = (counts.sum() - counts[counts > 0][-1]) // 255
    if step == 0:
        return values
    darker = np.concatenate([[0], counts.cumsum()[:-1]])  # pixels below each value
    table = (darker + step // 2) // step
    return np.clip(table, 0, 255).astype(np.uint8)[values]


def posterize(pixels: np.ndarray, bits: int) -> np.ndarray:
    """Keep only the highest `bits` of each value; TensorFlow shifts by at most 7, so that 0 bits keep 1."""
    shift = min(max(8 - bits, 0), 7)
    return pixels >> shift << shift


def solarize(pixels: np.ndarray, threshold: int) -> np.ndarray:
    """Invert values from the threshold on; none if it is 256 or more."""
    # Magnitudes from 10 on give such thresholds, which are not bytes; AugReg's behaviour for them is unknown.
    return np.where(pixels < threshold, pixels, 255 - pixels)


def solarize_add(pixels: np.ndarray, addition: int) -> np.ndarray:
    """Brighten the values of the darker half."""
    return np.where(pixels < HALF, np.clip(pixels.astype(int) + addition, 0, 255), pixels).astype(np.uint8)


def colour(pixels: np.ndarray, factor: float) -> np.ndarray:
    """Change the saturation: 0 is grey, 1 the picture."""
    return _blend(np.repeat(_grey(pixels)[..., None], 3, axis=-1), pixels, factor)


def contrast(pixels: np.ndarray, factor: float) -> np.ndarray:
    """Change the contrast: 0 is one grey everywhere, 1 the picture."""
    # AugReg's models were trained by big_vision's code, whose "mean" is the sum of the grey histogram / 256, which is
    # the number of pixels / 256, whatever the picture shows. At 224 pixels that is 196; from 256 on it is cut at 255.
    height, width = pixels.shape[:2]
    return _blend(np.full_like(pixels, min(height * width // 256, 255)), pixels, factor)


def brightness(pixels: np.ndarray, factor: float) -> np.ndarray:
    """Change the brightness: 0 is black, 1 the picture."""
    return _blend(np.zeros_like(pixels), pixels, factor)


def sharpness(pixels: np.ndarray, factor: float) -> np.ndarray:
    """Change the sharpness: 0 is smoothed over the eight neighbours, 1 the picture; the border is unchanged."""
    if min(pixels.shape[:2]) < 3:
        return pixels
    whole = pixels.astype(int)
    rows, columns = whole.shape[:2]
    near = sum(whole[i : rows - 2 + i, j : columns - 2 + j] for i in range(3) for j in range(3))
    smooth = pixels.copy()
    smooth[1:-1, 1:-1] = (near + 4 * whole[1:-1, 1:-1]) // 13  # the pixel itself weighs 5, each neighbour 1
    return _blend(smooth, pixels, factor)


def rotate(pixels: np.ndarray, degrees: float, fill: Colour) -> np.ndarray:
    """Rotate about the centre."""
    down, across = pixels.shape[0] - 1, pixels.shape[1] - 1
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    right = (across - (cos * across - sin * down)) / 2
    low = (down - (sin * across + cos * down)) / 2
    return _moved(pixels, (cos, -sin, right), (sin, cos, low), fill)


def shear(pixels: np.ndarray, right: float, down: float, fill: Colour) -> np.ndarray:
    """Take pixels from `right` further right for every row down, and `down` further down for every column right."""
    return _moved(pixels, (1, right, 0), (down, 1, 0), fill)


def translate(pixels: np.ndarray, left: float, up: float, fill: Colour) -> np.ndarray:
    """Shift to the left and up, in pixels."""
    return _moved(pixels, (1, 0, left), (0, 1, up), fill)


def cutout(pixels: np.ndarray, half: int, fill: Colour, centre: tuple[int, int]) -> np.ndarray:
    """Paint over a square of 2 `half` pixels around (row, column)."""
    painted = pixels.copy()
    row, column = centre
    painted[max(row - half, 0) : row + half, max(column - half, 0) : column + half] = fill
    return painted


def _grey(pixels: np.ndarray) -> np.ndarray:
    """(H, W, 3) -> (H, W): brightness as in `tf.image.rgb_to_grayscale` for bytes."""
    parts = pixels.astype(np.float32) * np.float32(1 / 255) * GREY
    return ((parts[..., 0] + parts[..., 1] + parts[..., 2]) * np.float32(255.5)).astype(np.uint8)


def _blend(first: np.ndarray, second: np.ndarray, factor: float) -> np.ndarray:
    """Blend: the first for factor 0, the second for 1, extrapolated beyond; clipped to bytes."""
    start = first.astype(np.float32)
    return np.clip(start + np.float32(factor) * (second.astype(np.float32) - start), 0, 255).astype(np.uint8)


def _moved(pixels: np.ndarray, across: Row, down: Row, fill: Colour) -> np.ndarray:
    """Take the pixel at (x, y) from the nearest to column `across` . (x, y, 1) and row `down` . (x, y, 1)."""
    height, width = pixels.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    column, row = (np.float32(a) * x + np.float32(b) * y + np.float32(c) for a, b, c in (across, down))
    column, row = (np.trunc(place + np.copysign(np.float32(0.5), place)).astype(int) for place in (column, row))
    is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    found = pixels[np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)]
    return np.where(is_inside[..., None], found, np.array(fill, dtype=np.uint8))


def _factor(level: float) -> float:
    return level * 1.8 + 0.1


CUTOUT = "Cutout"  # the one with a random place
OPERATIONS: dict[str, Operation[Apply]] = {  # in the order of the random numbers
    "AutoContrast": Operation(lambda x, amount, fill: autocontrast(x)),
    "Equalize": Operation(lambda x, amount, fill: equalize(x)),
    "Invert": Operation(lambda x, amount, fill: 255 - x),
    "Rotate": Operation(rotate, lambda level: level * 30, has_sign=True),
    "Posterize": Operation(lambda x, amount, fill: posterize(x, int(amount)), lambda level: int(level * 4)),
    "Solarize": Operation(lambda x, amount, fill: solarize(x, int(amount)), lambda level: int(level * 256)),
    "Color": Operation(lambda x, amount, fill: colour(x, amount), _factor),
    "Contrast": Operation(lambda x, amount, fill: contrast(x, amount), _factor),
    "Brightness": Operation(lambda x, amount, fill: brightness(x, amount), _factor),
    "Sharpness": Operation(lambda x, amount, fill: sharpness(x, amount), _factor),
    "ShearX": Operation(lambda x, slope, fill: shear(x, slope, 0, fill), lambda level: level * 0.3, has_sign=True),
    "ShearY": Operation(lambda x, slope, fill: shear(x, 0, slope, fill), lambda level: level * 0.3, has_sign=True),
    "TranslateX": Operation(lambda x, by, fill: translate(x, by, 0, fill), lambda level: level * 100, has_sign=True),
    "TranslateY": Operation(lambda x, by, fill: translate(x, 0, by, fill), lambda level: level * 100, has_sign=True),
    CUTOUT: Operation(lambda x, amount, fill: x, lambda level: int(level * 40)),  # see `applied`
    "SolarizeAdd": Operation(lambda x, amount, fill: solarize_add(x, int(amount)), lambda level: int(level * 110)),
}


def applied(name: str, pixels: np.ndarray, level: float, fill: Colour, rng: Generator) -> np.ndarray:
    """Apply one operation at a level, with a random sign or place."""
    operation = OPERATIONS[name]
    amount = operation.drawn(level, rng)
    if name == CUTOUT:
        return cutout(pixels, int(amount), fill, (int(rng.integers(len(pixels))), int(rng.integers(pixels.shape[1]))))
    return operation.apply(pixels, amount, fill)
