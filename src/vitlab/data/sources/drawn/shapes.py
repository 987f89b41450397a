"""Structured shapes as a labelled image set: "heart", "3 striped triangles", "2 dotted stars in a column".

A class is a combination of a kind (KINDS), a texture (TEXTURES), a count and a layout (ARRANGEMENTS). Position, size,
turn, colours, texture width, background and noise vary from image to image and are independent of the class. Class k
takes kind k % 10, then texture, then arrangement, so that ten classes are ten solid shapes, one each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import ceil, floor, sqrt
from typing import ClassVar

import numpy as np

from vitlab.data.sources.drawn.procedural import Draws, ProceduralSource, Stream, blended, gradient

Field = Callable[[np.ndarray, np.ndarray], np.ndarray]  # x to the right and y down -> a number for each place

# Normals of the regular polygons; roots, not sines, are rounded alike everywhere.
C72, S72 = (sqrt(5) - 1) / 4, sqrt(10 + 2 * sqrt(5)) / 4
C36, S36 = (sqrt(5) + 1) / 4, sqrt(10 - 2 * sqrt(5)) / 4
FIVE = ((0, 1), (S72, C72), (-S72, C72), (S36, -C36), (-S36, -C36))
HALF_ROOT_3 = sqrt(3) / 2


def _distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.sqrt(x * x + y * y)


def _box(x: np.ndarray, y: np.ndarray, width: float, height: float) -> np.ndarray:
    return np.maximum(np.abs(x) - width, np.abs(y) - height)


def _star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A point is in a pentagram if it is on the inner side of at least four of its five lines."""
    first = second = np.full_like(x, -np.inf)
    for a, b in FIVE:
        line = x * a + y * b
        first, second = np.maximum(first, line), np.maximum(second, np.minimum(first, line))
    return second - 0.31


def _crescent(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(_distance(x, y) - 0.95, 0.75 - _distance(x - 0.4, y))


def _heart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A square on its corner and a half disc on each of its upper sides."""
    x = np.abs(x)
    corner = (x + np.abs(y - 0.1)) * sqrt(0.5) - 0.52
    return np.minimum(corner, _distance(x - 0.368, y + 0.268) - 0.52)


# Singular and plural; the outline is where the field is 0 and the inside where it is negative, about as the distance.
KINDS: dict[str, tuple[str, Field]] = {
    "disc": ("discs", lambda x, y: _distance(x, y) - 0.85),
    "square": ("squares", lambda x, y: _box(x, y, 0.68, 0.68)),
    "triangle": ("triangles", lambda x, y: np.maximum(y, np.abs(x) * HALF_ROOT_3 - y * 0.5) - 0.5),
    "star": ("stars", _star),
    "ring": ("rings", lambda x, y: np.abs(_distance(x, y) - 0.7) - 0.22),
    "cross": ("crosses", lambda x, y: np.minimum(_box(x, y, 0.95, 0.28), _box(x, y, 0.28, 0.95))),
    "bar": ("bars", lambda x, y: _box(x, y, 0.95, 0.3)),
    "heart": ("hearts", _heart),
    "crescent": ("crescents", _crescent),
    "hexagon": ("hexagons", lambda x, y: np.maximum(np.abs(x), np.abs(x) * 0.5 + np.abs(y) * HALF_ROOT_3) - 0.8),
}


def _odd(steps: np.ndarray) -> np.ndarray:
    return np.floor(steps) % 2


# Share of the second colour, 0 to 1, from the place in units of the texture's width.
TEXTURES: dict[str, Field] = {
    "solid": lambda x, y: np.zeros_like(x),
    "striped": lambda x, y: _odd(x),
    "checked": lambda x, y: _odd(x) != _odd(y),
    "dotted": lambda x, y: _distance(x - np.floor(x) - 0.5, y - np.floor(y) - 0.5) < 0.33,
    "shaded": lambda x, y: np.clip(y * 0.25 + 0.5, 0, 1),
    "ringed": lambda x, y: _odd(_distance(x, y)),
    "outlined": lambda x, y: np.zeros_like(x),  # and the inside is left out, see _draw
}
OUTLINED = "outlined"
ROW, COLUMN = " in a row", " in a column"
ARRANGEMENTS = ((1, ""), *product((2, 3, 4, 5), ("", ROW, COLUMN)))
COMBINATIONS = len(KINDS) * len(TEXTURES) * len(ARRANGEMENTS)  # 910
OUTLINE = 0.12  # half the thickness of an outlined shape's line, in units of its size
NOISE = 16  # grey levels from the darkest to the brightest grain


@dataclass(kw_only=True, repr=False, unsafe_hash=True)
class ShapeSource(ProceduralSource):
    """One to five equal shapes, textured, on a noisy gradient; the first `classes` of the combinations of factors."""

    most_classes: ClassVar[int] = COMBINATIONS

    classes: int = COMBINATIONS

    def class_name(self, label: int) -> str:
        """As "1 solid disc" or "3 striped triangles in a row"."""
        kind, texture, (count, layout) = _factors(label)
        return f"{count} {texture} {kind if count == 1 else KINDS[kind][0]}{layout}"

    def pixels(self, index: int) -> np.ndarray:
        kind, texture, (count, layout) = _factors(index % self.classes)
        draws = Draws(self.seed, Stream.SHAPE_IMAGE, index)
        corners, main, second = _palette(draws)
        canvas = gradient(corners, self.size)
        (width,) = draws.uniform(2.5, 4, 1)  # stripes, checks or dots along the radius
        for x, y, radius in _places(count, layout, draws):
            _draw(canvas, KINDS[kind][1], texture, (x, y, radius), draws.any_turn(), width, (main, second))
        grain = draws.bytes(canvas.size).reshape(canvas.shape) % NOISE
        return np.clip(canvas + grain - NOISE // 2, 0, 255).astype(np.uint8)


def _factors(label: int) -> tuple[str, str, tuple[int, str]]:
    """Class number -> kind, texture, (count, layout)."""
    rest, kind = divmod(label, len(KINDS))
    arrangement, texture = divmod(rest, len(TEXTURES))
    return list(KINDS)[kind], list(TEXTURES)[texture], ARRANGEMENTS[arrangement]


def _palette(draws: Draws) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Corners of the background (2, 2, 3) and two colours (3,): in each channel one is dark, one medium, one bright."""
    values = draws.bytes(18).reshape(6, 3) % 64
    bands = np.array([draws.shuffled(3) for _ in range(3)], np.int32).T * 96  # (3 uses, 3 channels)
    return (values[:4] + bands[0]).reshape(2, 2, 3), values[4] + bands[1], values[5] + bands[2]


def _places(count: int, layout: str, draws: Draws) -> list[tuple[float, float, float]]:
    """Centre and radius of each shape, in sides of the picture; each in a cell of its own, so none overlap."""
    if layout:
        (across,) = draws.uniform(0.5 / count, 1 - 0.5 / count, 1)
        along = [(i + 0.5) / count for i in range(count)]
        centres = [(one, across) if layout == ROW else (across, one) for one in along]
        slack, side = 0.0, 1 / count  # a line stays straight
    else:
        grid = ceil(sqrt(count))
        # Two stand on a diagonal: side by side they would be a row.
        cells = ([0, 3], [1, 2])[draws.below(2)] if count == 2 else draws.shuffled(grid * grid)[:count]
        centres = [((cell % grid + 0.5) / grid, (cell // grid + 0.5) / grid) for cell in cells]
        slack, side = 1.0, 1 / grid
    places = []
    for x, y in centres:
        (radius,), (dx, dy) = draws.uniform(0.3 * side, 0.47 * side, 1), draws.uniform(-slack, slack, 2)
        room = side / 2 - radius
        places.append((x + dx * room, y + dy * room, radius))
    return places


def _draw(
    canvas: np.ndarray,
    outline: Field,
    texture: str,
    place: tuple[float, float, float],
    turn: tuple[float, float],
    width: float,
    colours: tuple[np.ndarray, np.ndarray],
) -> None:
    """One shape onto the canvas (H, W, 3), its edge smoothed over a pixel."""
    size, (cosine, sine) = len(canvas), turn
    x, y, radius = (number * size for number in place)
    rows, columns = (slice(max(floor(c - 1.1 * radius), 0), max(ceil(c + 1.1 * radius), 0)) for c in (y, x))
    down = ((np.arange(size, dtype=np.float32)[rows] + (0.5 - y)) / radius)[:, None]
    across = (np.arange(size, dtype=np.float32)[columns] + (0.5 - x)) / radius
    u, v = across * cosine + down * sine, down * cosine - across * sine
    field = outline(u, v)
    if texture == OUTLINED:
        field = np.abs(field + OUTLINE) - OUTLINE
    cover = np.rint(np.clip(0.5 - field * radius, 0, 1) * 256).astype(np.int32)[..., None]
    share = np.rint(TEXTURES[texture](u * width, v * width) * np.float32(256)).astype(np.int32)[..., None]
    canvas[rows, columns] = blended(canvas[rows, columns], blended(*colours, share), cover)
