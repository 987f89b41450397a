"""Pictures that are unlike each other; the edits that must be recognised are those of the experiment."""

import numpy as np
from PIL import Image

from bench.experiments.dedup import EDITS

__all__ = ["EDITS", "picture"]


def picture(seed: int, width: int = 96, height: int = 64) -> Image.Image:
    """Smooth colours with sharp edges and some noise, different for every seed."""
    rng = np.random.default_rng(seed)
    smooth = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((width, height), 3)
    pixels = np.asarray(smooth, np.int16).copy()
    for _ in range(6):
        x, y = rng.integers(0, width - 8), rng.integers(0, height - 8)
        pixels[y : y + rng.integers(8, 30), x : x + rng.integers(8, 30)] = rng.integers(0, 256, 3)
    pixels += rng.normal(0, 4, pixels.shape).astype(np.int16)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
