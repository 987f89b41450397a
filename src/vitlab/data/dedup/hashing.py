"""Perceptual hashes: 64 bits that hardly change if a picture is re-encoded, resized or made brighter."""

import hashlib

import numpy as np
from PIL import Image

SIDE = 32  # pixels of a thumbnail: the size of a CIFAR picture
BITS = 64
SCALE = 1024  # of the cosines, which are rounded to whole numbers so that every machine computes the same bits
SPREAD = (
    37  # odd: bit i of the list of frequencies becomes bit 37 i mod 64, so every part of a hash has all frequencies
)


def thumbnail(image: Image.Image) -> np.ndarray:
    """Shrink an RGB image to (32, 32) grey values of uint8, each the mean of its part; the shape is not kept."""
    return np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX))


def _lowest_frequencies() -> list[tuple[int, int]]:
    """The 64 lowest frequencies (vertical, horizontal) of the cosine transform, without the mean."""
    every = [(u, v) for u in range(SIDE) for v in range(SIDE) if (u, v) != (0, 0)]
    return sorted(every, key=lambda place: (place[0] ** 2 + place[1] ** 2, place))[:BITS]


FREQUENCIES = _lowest_frequencies()
_WAVES = max(max(place) for place in FREQUENCIES) + 1
COSINES = np.round(SCALE * np.cos(np.pi * np.outer(np.arange(_WAVES), 2 * np.arange(SIDE) + 1) / (2 * SIDE)))


def perceptual_hashes(thumbnails: np.ndarray) -> np.ndarray:
    """(n, 32, 32) of uint8 -> (n,) of uint64: the signs of the 64 lowest frequencies of the cosine transform.

    All sums are whole numbers below 2**53, so float64 adds them exactly in any order. The hash of a picture of one
    colour is 0.
    """
    waves = COSINES @ thumbnails.astype(np.float64) @ COSINES.T  # (n, waves, waves)
    rows, columns = np.array(FREQUENCIES).T
    signs = (waves[:, rows, columns] > 0).astype(np.uint64)  # (n, 64)
    places = np.arange(BITS, dtype=np.uint64) * np.uint64(SPREAD) % np.uint64(BITS)
    return np.bitwise_or.reduce(signs << places, axis=1) if len(signs) else np.zeros(0, np.uint64)


def digests(arrays: np.ndarray) -> np.ndarray:
    """(n, ...) of uint8 -> (n, 2) of uint64: a hash of the bytes of each array."""
    found = [hashlib.blake2b(one.tobytes(), digest_size=16).digest() for one in arrays]
    return np.frombuffer(b"".join(found), "<u8").reshape(-1, 2)
