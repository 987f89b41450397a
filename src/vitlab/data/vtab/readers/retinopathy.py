"""The normalisation of fundus photographs by the winner of Kaggle's competition of 2015, as TFDS has it (btgraham-300).

The eye is scaled to a radius of 300 pixels, the local mean colour is subtracted, and the image is cut to nine tenths of
the radius.

Differs from the paper: resizing, blur, the edge of the circle and the JPEG encoder of these images are not OpenCV's, so
that pixels differ slightly from those of TFDS.
"""

from functools import lru_cache

import numpy as np
from PIL import Image

from vitlab.data.images.gate import read_image
from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.transforms.resizing import resized
from vitlab.data.vtab.listing import jpeg

RADIUS = 300  # pixels
BLUR = RADIUS / 30  # standard deviation of the blur, in pixels
CONTRAST, GREY = 4, 128
KEPT = int(0.9 * RADIUS)  # pixels; outside of this radius the image is grey
QUALITY = 72  # of the JPEG that is stored
REACH = 3  # standard deviations that the blur extends to


def as_stored(data: bytes) -> bytes:
    """A fundus photograph as TFDS stores it."""
    return jpeg(Image.fromarray(normalised(read_image(data).image)), QUALITY)


def normalised(image: Image.Image) -> np.ndarray:
    """(H, W, 3) of uint8; at most 540 x 540."""
    pixels = np.asarray(image)
    scale = RADIUS / eye_radius(pixels)
    size = max(round(image.height * scale), 1), max(round(image.width * scale), 1)
    if size[0] * size[1] > 16_000_000:  # a nearly black photograph
        raise BadImage(Reason.corrupt, "shows no eye; leave it out")
    return cut(without_local_mean(np.asarray(resized(image, size, "bilinear", antialias=False))))


def eye_radius(pixels: np.ndarray) -> float:
    """Half the pixels of the middle row that are brighter than a tenth of its mean; half the height if none is."""
    row = pixels[len(pixels) // 2].astype(np.int64).sum(axis=1)
    radius = float((row > row.mean() / 10).sum()) / 2
    return radius if radius >= 1 else len(pixels) / 2


def without_local_mean(pixels: np.ndarray) -> np.ndarray:
    """4 (pixels - blurred) + 128, of uint8; the blurred image is rounded too."""
    height, width, channels = pixels.shape
    rows = _blurring(height) @ pixels.reshape(height, -1).astype(np.float32)  # (H, W * 3)
    columns = _blurring(width) @ rows.reshape(height, width, channels).swapaxes(0, 1).reshape(width, -1)  # (W, H * 3)
    blurred = np.rint(columns.reshape(width, height, channels).swapaxes(0, 1))
    return np.clip(np.rint(CONTRAST * (pixels - blurred) + GREY), 0, 255).astype(np.uint8)


@lru_cache(maxsize=8)
def _blurring(length: int) -> np.ndarray:
    """(n, n): a Gaussian blur as a matrix; beyond the border the image is mirrored, without its border pixel."""
    reach = int(REACH * BLUR)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / BLUR) ** 2)
    weights /= weights.sum()
    places = np.arange(length)[:, None] + np.arange(-reach, reach + 1)  # (n, taps)
    mirrored = np.abs((places + length - 1) % max(2 * length - 2, 1) - (length - 1))
    matrix = np.zeros((length, length))
    np.add.at(matrix, (np.arange(length)[:, None], mirrored), weights)
    return matrix.astype(np.float32)


def cut(pixels: np.ndarray) -> np.ndarray:
    """Make everything outside of 270 pixels around the centre grey, and crop to that circle."""
    height, width = pixels.shape[:2]
    y, x = height // 2, width // 2
    outside = (np.arange(height)[:, None] - y) ** 2 + (np.arange(width) - x) ** 2 > KEPT**2
    masked = np.where(outside[..., None], np.uint8(GREY), pixels)
    return masked[max(y - KEPT, 0) : y + KEPT, max(x - KEPT, 0) : x + KEPT]
