"""Ranks that work together; alone, every exchange is the identity."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class World:
    """This process among `ranks`."""

    rank: int = 0
    ranks: int = 1

    def total(self, value: int) -> int:
        """The sum over all ranks of a number that each has."""
        return value

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all ranks."""
        return value

    def agree(self, wish: int) -> int:
        """The largest wish of any rank: what all do."""
        return wish
