"""Images that are a function of their number: what fractals, shapes and letters share.

They have the same bytes on every machine and in every process, because only operations with exact results are used.
Random numbers are raw words of Philox (numpy guarantees its bit generators, but not the distributions of `Generator`).
Floats see only + - * / sqrt, floor and comparisons, element by element, which IEEE 754 defines exactly: no sine, power,
matrix product or sum of floats. Counting, blending and colours use integers.
"""

from abc import abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from math import sqrt
from typing import ClassVar

import numpy as np

from vitlab.data.source import Sample, Source, check_index
from vitlab.require import require

SMALLEST, LARGEST = 16, 1024  # pixels of a side
MOST_IMAGES, MOST_SEED = 2**63 - 1, 2**64 - 1


class Stream(IntEnum):
    """The uses of random numbers, each with a key of its own, so that no two uses share a number."""

    FRACTAL_CLASS = 1
    FRACTAL_IMAGE = 2
    SHAPE_IMAGE = 3
    LETTER_IMAGE = 4


class Draws:
    """Random numbers as a function of (seed, stream, index, attempt).

    Seed and stream are the key of Philox, index and attempt the upper words of its counter. The lowest word counts the
    draws, so two sequences cannot overlap.
    """

    def __init__(self, seed: int, stream: Stream, index: int, attempt: int = 0) -> None:
        counter = np.array([0, attempt, index, 0], np.uint64)
        self._bits = np.random.Philox(counter=counter, key=np.array([seed, stream], np.uint64))

    def words(self, count: int) -> np.ndarray:
        """(count,) of uint64."""
        return self._bits.random_raw(count)

    def bytes(self, count: int) -> np.ndarray:
        """(count,) of uint8, in little-endian order of the words."""
        return self.words(-(-count // 8)).astype("<u8", copy=False).view(np.uint8)[:count]

    def uniform(self, low: float, high: float, count: int) -> list[float]:
        """`count` numbers in [low, high)."""
        return [low + (high - low) * (word * 2.0**-53) for word in (self.words(count) >> np.uint64(11)).tolist()]

    def below(self, bound: int) -> int:
        """A whole number in 0..bound-1; its bias is under bound / 2**64."""
        return self._bits.random_raw() % bound

    def shuffled(self, count: int) -> list[int]:
        """The numbers 0..count-1 in random order."""
        return sorted(range(count), key=self.words(count).tolist().__getitem__)

    def turn(self, largest: float) -> tuple[float, float]:
        """(cosine, sine) of an angle up to 2 atan(largest) either way; nearly uniform, and without trigonometry."""
        (t,) = self.uniform(-largest, largest, 1)
        return (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)

    def any_turn(self) -> tuple[float, float]:
        """(cosine, sine) of any angle: up to 45 degrees either way, then some quarter turns."""
        cosine, sine = self.turn(sqrt(2) - 1)
        return ((cosine, sine), (-sine, cosine), (-cosine, -sine), (sine, -cosine))[self.below(4)]


@dataclass(kw_only=True, repr=False, unsafe_hash=True)
class ProceduralSource(Source):
    """`images` pictures of `size` x `size` pixels; image i belongs to class i % classes.

    Image i does not depend on `images`: to hold out images of the same classes, open a longer source and take its tail.
    Another seed gives other images, and for fractals other classes.
    """

    most_classes: ClassVar[int] = 10**7
    known_classes: ClassVar[str] = ""  # ends the error of too many

    classes: int = 1000
    images: int = 1_000_000
    size: int = 224
    seed: int = 0

    def __post_init__(self) -> None:
        _check("classes", self.classes, 1, self.most_classes, self.known_classes)
        _check("images", self.images, 1, MOST_IMAGES)
        _check("size", self.size, SMALLEST, LARGEST)
        _check("seed", self.seed, 0, MOST_SEED)

    @abstractmethod
    def class_name(self, label: int) -> str:
        """The name of one class."""

    @abstractmethod
    def pixels(self, index: int) -> np.ndarray:
        """(size, size, 3) of uint8; the index has been checked."""

    @property
    def identity(self) -> str:  # pyrefly: ignore[bad-override] - made when asked for
        """What decides the pixels besides a sample's number; ids and labels alone do not distinguish two seeds."""
        return f"{type(self).__name__} {self.classes} {self.size} {self.seed}"

    @cached_property
    def class_names(self) -> tuple[str, ...]:  # pyrefly: ignore[bad-override] - made when asked for
        """All names, made on first use: opening costs the same for any number of classes."""
        return tuple(map(self.class_name, range(self.classes)))

    def __len__(self) -> int:
        return self.images

    def item(self, index: int) -> Sample:
        return Sample(self.pixels(check_index(index, self.images)), self.label(index), self.id(index))

    def label(self, index: int) -> tuple[int, ...]:
        """Return index % classes: classes have equal shares, and any `classes` neighbours contain each class once."""
        return (check_index(index, self.images) % self.classes,)


def blended(below: np.ndarray, above: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Integers of 0..255 mixed pixel by pixel: `share` / 256 of `above`, the rest of `below`."""
    return (below * (256 - share) + above * share) >> 8


def gradient(corners: np.ndarray, size: int) -> np.ndarray:
    """(2, 2, 3) colours of the corners -> (size, size, 3) of int32 between them."""
    way = (np.arange(size, dtype=np.int32) * 256 // (size - 1))[:, None]  # 0..256
    left, right = (blended(corners[0, side], corners[1, side], way) for side in (0, 1))  # (size, 3)
    return blended(left[:, None], right[:, None], way)  # (size, size, 3)


def _check(name: str, value: int, low: int, high: int, known: str = "") -> None:
    is_allowed = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    require(is_allowed, f"{name} is {value!r}; it must be a whole number from {low} to {high}{known}")
