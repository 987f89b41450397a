"""Pictures side by side as one PNG; the same pictures give the same bytes."""

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

SMALLEST = 96  # pixels along the longer side of a picture on the sheet; smaller ones are enlarged
GAP = 4  # pixels


def sheet(rows: Sequence[Sequence[np.ndarray]]) -> bytes:
    """Arrange rows of (H, W, 3) pictures of uint8, all of the same size, on white."""
    height, width = rows[0][0].shape[:2]
    scale = max(-(-SMALLEST // max(height, width)), 1)  # a whole number, so that pixels stay square
    tall, wide = height * scale + GAP, width * scale + GAP
    canvas = np.full((tall * len(rows) + GAP, wide * len(rows[0]) + GAP, 3), 255, np.uint8)
    for row, pictures in enumerate(rows):
        for column, picture in enumerate(pictures):
            top, left = GAP + row * tall, GAP + column * wide
            large = picture.repeat(scale, axis=0).repeat(scale, axis=1)
            canvas[top : top + height * scale, left : left + width * scale] = large
    file = io.BytesIO()
    Image.fromarray(canvas).save(file, "PNG")
    return file.getvalue()
