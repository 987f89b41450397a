"""What is kept of an evaluation: its numbers, classes, confusions and worst mistakes. No torch."""

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MOST = 12  # mistakes kept
RESULTS = "results.json"  # the rows of `vitlab evaluate`, in its folder


@dataclass(frozen=True)
class Mistake:
    """A sample whose prediction is not its label."""

    number: int  # in its source
    id: str
    label: int
    answer: int
    probability: float  # of the answer
    loss: float


@dataclass(frozen=True)
class ClassResult:
    """The result of a class: accuracy, or average precision and F1 with several labels per image."""

    number: int
    images: int
    right: int | None = None
    average_precision: float | None = None
    f1: float | None = None


@dataclass(frozen=True)
class Answers:
    """Numbers by name, classes that occur, (label, prediction, count), and the mistakes, the worst first."""

    numbers: dict[str, float]
    classes: tuple[ClassResult, ...]
    confusion: tuple[tuple[int, int, int], ...]
    mistakes: tuple[Mistake, ...]


@dataclass(frozen=True)
class NamedMistake:
    """A mistake with the names of its classes, as `vitlab evaluate` writes it."""

    number: int
    id: str
    label: str
    answer: str
    probability: float
    loss: float


@dataclass(frozen=True)
class MistakeList:
    """The worst mistakes of a row of an evaluation, and the data set that the samples are of."""

    data: str
    mistakes: tuple[NamedMistake, ...]


def mistakes_file(row: int) -> str:
    """The file with the worst mistakes of a row of an evaluation, counted from 1."""
    return f"{row:02d}-mistakes.json"


def worst(mistakes: Iterable[Mistake], most: int = MOST) -> list[Mistake]:
    """The mistakes with the largest loss, sorted by loss, then by number."""
    return heapq.nsmallest(most, mistakes, key=lambda mistake: (-mistake.loss, mistake.number))


def finite_numbers(numbers: Mapping[str, float]) -> dict[str, float]:
    """The numbers that can be written as JSON."""
    return {name: float(value) for name, value in numbers.items() if math.isfinite(float(value))}
