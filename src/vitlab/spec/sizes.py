"""Image sizes as users write them, and upper bounds of everything in a specification."""

import math
import operator
import re

from vitlab.require import require

Image = int | tuple[int, int]

# Upper bounds, checked before anything is allocated, because specs may come from untrusted files.
LIMITS = {"patch": 1024, "layers": 200, "width": 16_384, "mlp": 131_072, "heads": 256}
LARGEST_IMAGE = 32_768
LARGEST_MERGE = 1_000_000
LARGEST_WINDOW = 128


def image_size(image: Image) -> tuple[int, int]:
    """Return (H, W): 224 becomes (224, 224)."""
    sides = image if isinstance(image, tuple | list) else (image, image)
    try:
        height, width = (operator.index(side) for side in sides)
    except (TypeError, ValueError):
        raise ValueError(f"image {image!r} is not a size; give one side, 384, or both, (384, 512)") from None
    return height, width


def parse_size(text: str) -> tuple[int, int]:
    """Parse a size that a user typed: one side, `384`, or height and width, `384x512`."""
    if not (match := re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", text, re.ASCII)):
        raise ValueError(f"--image {text!r} is not a size; give one side (384), or height and width (384x512)")
    return int(match[1]), int(match[2] or match[1])


def check_image(image: tuple[int, int], patch: int) -> None:
    """Raise a ValueError with the nearest sizes unless (H, W) is a whole number of patches."""
    height, width = image
    require(min(image) > 0 and max(image) <= LARGEST_IMAGE, f"image {height}x{width} is outside 1..{LARGEST_IMAGE}")
    if height % patch == 0 and width % patch == 0:
        return
    below = [max(side // patch, 1) * patch for side in image]
    above = [math.ceil(side / patch) * patch for side in image]
    near = " or ".join(dict.fromkeys(f"{h}x{w}" for h, w in (below, above)))
    given = f"image {height}x{width} is not a whole number of {patch}x{patch} patches"
    raise ValueError(f"{given}; the nearest sizes are {near}")


def check_classes(classes: int) -> None:
    """Raise a ValueError for an impossible number of classes."""
    require(0 <= classes <= 1_000_000, f"classes {classes} is outside 0..1,000,000")
