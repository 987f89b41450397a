"""The typical size of the pictures of a data set, from a few of them."""

import contextlib

from torch import Tensor

from vitlab.data.images.refusals import BadImage
from vitlab.data.source import Source, decode
from vitlab.require import require

LOOKED_AT = 9  # pictures, evenly spaced
TRIED = 90  # pictures at most, if some are bad


def typical_size(source: Source) -> tuple[int, int]:
    """Return height and width of the picture of median area among nine; raises ValueError if none can be read."""
    found: list[tuple[int, int]] = []
    samples, tried = len(source), min(len(source), TRIED)
    for place in range(tried):
        with contextlib.suppress(BadImage):
            # All ninths of the set come before their neighbours.
            row, column = divmod(place, LOOKED_AT)
            found.append(_size(source, min(column * samples // LOOKED_AT + row, samples - 1)))
        if len(found) == LOOKED_AT:
            break
    require(bool(found), f"none of {tried} pictures could be read; vitlab data check says why")
    return sorted(found, key=lambda size: size[0] * size[1])[len(found) // 2]


def _size(source: Source, number: int) -> tuple[int, int]:
    sample = source.item(number)
    if isinstance(sample.data, Tensor):
        return sample.data.shape[1], sample.data.shape[2]
    image = decode(sample, source.max_pixels).image
    return image.height, image.width
