"""An operation of RandAugment, of either flavour."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from numpy.random import Generator

Colour = tuple[int, int, int]
Apply = TypeVar("Apply")
HALF = 128  # SolarizeAdd changes values below this


@dataclass(frozen=True)
class Operation(Generic[Apply]):
    """`apply` changes a picture by the `amount` of a level from 0 to 1 or more, with a random sign if it has one."""

    apply: Apply
    amount: Callable[[float], float] = lambda level: 0.0
    has_sign: bool = False

    def drawn(self, level: float, rng: Generator) -> float:
        """Return the amount of a level, with its sign."""
        amount = self.amount(level)
        return -amount if self.has_sign and rng.random() < 0.5 else amount
