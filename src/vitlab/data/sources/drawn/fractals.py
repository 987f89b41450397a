"""Fractals as a labelled image set: a class is an iterated function system, an image is a noisy view of its attractor.

After "Pre-training without Natural Images" (Kataoka et al. 2020): random affine maps, accepted where the attractor
fills enough of the picture; images of a class differ in slightly perturbed maps. Maps are drawn by singular values, as
in "Improving Fractal Pre-training" (Anderson and Farrell 2022), so that few candidates are refused; colours as well.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from math import fsum

import numpy as np

from vitlab.data.sources.drawn.procedural import Draws, ProceduralSource, Stream, blended, gradient

Map = tuple[float, ...]  # (a, b, c, d, e, f): (x, y) -> (a x + b y + e, c x + d y + f)

FEWEST_MAPS, MOST_MAPS = 2, 8
STRONGEST = 0.85  # largest singular value of a class; see PERTURBATION
PERTURBATION = 0.1  # of each coefficient; adds at most 0.1 * 0.85 * sqrt(2) to a singular value: still contracting
FILL = 0.3  # share of the cells of a coarse picture that an accepted class touches
PROBE_SIZE, PROBE_POINTS = 32, 2048
WALKERS, SETTLING = 4096, 12  # points that move together (a power of two), and their steps before they are drawn
POINTS_PER_PIXEL = 4
TURN = 0.268  # tangent of half the largest turn, 30 degrees
CACHED_CLASSES = 16_384  # about 1 kB each


@dataclass(kw_only=True, repr=False, unsafe_hash=True)
class FractalSource(ProceduralSource):
    """Coloured fractals on a gradient; class k is the first accepted system of the draws of (seed, k).

    Images of a class differ by coefficients perturbed by up to 10 %, a turn of up to 30 degrees, a mirror, zoom, place
    and colours. The parts of a fractal, one for each map, have a colour each.
    """

    def class_name(self, label: int) -> str:
        return f"fractal {label}"

    def pixels(self, index: int) -> np.ndarray:
        draws = Draws(self.seed, Stream.FRACTAL_IMAGE, index)
        maps = _perturbed(fractal(self.seed, index % self.classes), draws)
        background, colours = _palette(len(maps), draws)
        view = _View.drawn(draws)
        steps = -(-POINTS_PER_PIXEL * self.size**2 // WALKERS)
        x, y, starts = _chaos_game(maps, WALKERS, steps, draws)
        counts = _counts(*view.cells(x, y, self.size), starts, self.size)  # (maps, H W)
        return _painted(counts, colours, gradient(background, self.size))


@lru_cache(maxsize=CACHED_CLASSES)
def fractal(seed: int, label: int) -> tuple[Map, ...]:
    """The maps of a class: the first candidate that contracts and fills enough of a coarse picture."""
    for attempt in count():
        draws = Draws(seed, Stream.FRACTAL_CLASS, label, attempt)
        maps = _candidate(draws)
        if maps and _fill(maps, draws) >= FILL:
            return maps
    raise AssertionError("about every third candidate is accepted")


def _candidate(draws: Draws) -> tuple[Map, ...] | None:
    """Turn, scale by two singular values, turn, shift; None where a singular value is too large."""
    number = FEWEST_MAPS + draws.below(MOST_MAPS - FEWEST_MAPS + 1)
    long = draws.uniform(0.3, 1, number)
    short = [s * ratio for s, ratio in zip(long, draws.uniform(0.3, 1, number), strict=True)]
    # Anderson and Farrell: attractors are neither dust nor a blob where the sum of s1 + 2 s2 is about (5.5 + n) / 2.
    (wanted,) = draws.uniform((5 + number) / 2, (6 + number) / 2, 1)
    scale = wanted / fsum(s1 + 2 * s2 for s1, s2 in zip(long, short, strict=True))
    if max(long) * scale > STRONGEST:
        return None
    return tuple(_map(s1 * scale, s2 * scale, draws) for s1, s2 in zip(long, short, strict=True))


def _map(long: float, short: float, draws: Draws) -> Map:
    (c1, s1), (c2, s2) = draws.any_turn(), draws.any_turn()
    short = short if draws.below(2) else -short
    a, b = c1 * long * c2 - s1 * short * s2, -c1 * long * s2 - s1 * short * c2
    c, d = s1 * long * c2 + c1 * short * s2, -s1 * long * s2 + c1 * short * c2
    e, f = draws.uniform(-1, 1, 2)
    return a, b, c, d, e, f


def _perturbed(maps: tuple[Map, ...], draws: Draws) -> tuple[Map, ...]:
    factors = draws.uniform(1 - PERTURBATION, 1 + PERTURBATION, 6 * len(maps))
    return tuple(map(tuple, (np.array(maps) * np.array(factors).reshape(-1, 6)).tolist()))


def _chaos_game(
    maps: tuple[Map, ...], walkers: int, steps: int, draws: Draws
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Points on the attractor, x and y of (steps, walkers), and where each map's walkers start.

    Map j moves walkers starts[j]..starts[j+1], as many as its share of the area, each from the place of a random one.
    """
    areas = [abs(a * d - b * c) + 0.01 for a, b, c, d, _, _ in maps]  # a flat map still gets a few
    starts = [int(walkers * (fsum(areas[:j]) / fsum(areas))) for j in range(len(maps))] + [walkers]
    parents = draws.bytes(2 * (SETTLING + steps) * walkers).view("<u2") & np.uint16(walkers - 1)
    parents = parents.reshape(-1, walkers).astype(np.intp)
    a, b, c, d, e, f = np.repeat(np.array(maps, np.float32).T, np.diff(starts), axis=1)  # (walkers,) each
    x, y = np.zeros((2, steps + 1, walkers), np.float32)  # row 0 is where the crowd settles
    for step, chosen in enumerate(parents, 1 - SETTLING):
        old_x, old_y = x[max(step - 1, 0)][chosen], y[max(step - 1, 0)][chosen]
        x[max(step, 0)] = old_x * a + old_y * b + e
        y[max(step, 0)] = old_x * c + old_y * d + f
    return x[1:], y[1:], starts


@dataclass(frozen=True)
class _View:
    """How an attractor is placed in the picture."""

    cosine: float = 1
    sine: float = 0
    mirror: bool = False
    zoom: float = 1
    right: float = 0  # shifts in sides of the picture
    down: float = 0

    @staticmethod
    def drawn(draws: Draws) -> "_View":
        turn = draws.turn(TURN)
        return _View(*turn, draws.below(2) == 1, *draws.uniform(0.75, 1, 1), *draws.uniform(-0.06, 0.06, 2))

    def cells(self, x: np.ndarray, y: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Pixel of each point and whether it is inside; zoom 1 shows 99 % of the first crowd in both directions."""
        cosine, sine = np.float32(self.cosine), np.float32(self.sine)
        across, along = x * cosine - y * sine, x * sine + y * cosine
        across = -across if self.mirror else across
        ends = [np.sort(one[0])[[len(one[0]) // 200, -len(one[0]) // 200]].tolist() for one in (across, along)]
        scale = self.zoom * size / max(max(high - low for low, high in ends), 1e-6)
        column, row = (
            np.floor((one - np.float32((low + high) / 2)) * np.float32(scale) + np.float32((0.5 + shift) * size))
            for one, (low, high), shift in zip((across, along), ends, (self.right, self.down), strict=True)
        )
        inside = (column >= 0) & (column < size) & (row >= 0) & (row < size)
        return np.where(inside, row * np.float32(size) + column, 0).astype(np.intp), inside


def _counts(cells: np.ndarray, inside: np.ndarray, starts: list[int], size: int) -> np.ndarray:
    """(maps, H W): how many points each map put into each pixel."""
    maps = len(starts) - 1
    cells = cells + np.repeat(np.arange(maps) * size**2, np.diff(starts))
    return np.bincount(cells[inside], minlength=maps * size**2).reshape(maps, size**2)


def _fill(maps: tuple[Map, ...], draws: Draws) -> float:
    """Share of the coarse picture's cells with a point."""
    x, y, _ = _chaos_game(maps, PROBE_POINTS, 1, draws)
    cells, inside = _View().cells(x, y, PROBE_SIZE)
    return np.count_nonzero(np.bincount(cells[inside], minlength=1)) / PROBE_SIZE**2


def _palette(maps: int, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
    """Colours of the four corners (2, 2, 3) and of the maps (maps, 3): in each channel on opposite sides of grey."""
    side = np.array([draws.below(2) for _ in range(3)], np.int32)  # 1: the background is bright in this channel
    values = draws.bytes(3 * (4 + maps)).astype(np.int32).reshape(-1, 3)
    background = np.where(side, 160 + values[:4] * 3 // 8, values[:4] * 3 // 8)  # 160..255 or 0..95
    colours = np.where(side, values[4:] * 5 // 8, 96 + values[4:] * 5 // 8)  # 0..159 or 96..255
    return background.reshape(2, 2, 3), colours


def _painted(counts: np.ndarray, colours: np.ndarray, background: np.ndarray) -> np.ndarray:
    """Each pixel in the mean colour of its points, the more opaque the more there are: (H, W, 3) of uint8."""
    total = counts.sum(0)  # (H W,)
    touched = np.flatnonzero(total)
    counts, total = counts[:, touched], total[touched]
    usual = int(total.sum()) // max(len(touched), 1)
    share = 256 * total // (total + usual // 4 + 1)  # half opaque at a quarter of the usual, rising smoothly
    ink = np.zeros((len(touched), 3), np.int64)
    for one, colour in zip(counts, colours, strict=True):
        ink += one[:, None] * colour
    pixels = background.reshape(-1, 3).astype(np.uint8)
    pixels[touched] = blended(pixels[touched], ink // total[:, None], share[:, None])
    return pixels.reshape(background.shape)
