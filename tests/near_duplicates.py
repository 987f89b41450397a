"""Pictures that are unlike each other, and edits of a picture that must be recognised."""

import io

import numpy as np
from PIL import Image, ImageEnhance


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


def encoded(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(io.BytesIO(file.getvalue())).convert("RGB")


def scaled(image: Image.Image, scale: float, kind: Image.Resampling = Image.Resampling.BICUBIC) -> Image.Image:
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), kind)


def brighter(image: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(factor)


# name: the edit of a picture; all of them must be found
EDITS = {
    **{f"JPEG quality {q}": lambda image, q=q: encoded(image, q) for q in (30, 50, 75, 95)},
    **{f"scale {s}": lambda image, s=s: scaled(image, s) for s in (0.5, 0.71, 1.41, 2.0)},
    "scale 0.5, nearest": lambda image: scaled(image, 0.5, Image.Resampling.NEAREST),
    **{f"brightness {b:+.0%}": lambda image, b=b: brighter(image, 1 + b) for b in (-0.2, -0.1, 0.1, 0.2)},
    "scale 0.5, brightness +20%, JPEG quality 30": lambda image: encoded(brighter(scaled(image, 0.5), 1.2), 30),
    "scale 2, brightness -20%, JPEG quality 30": lambda image: encoded(brighter(scaled(image, 2.0), 0.8), 30),
}
