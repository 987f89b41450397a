"""When the training loss has settled, so that a run may stop before its end.

The mean loss is taken over windows of steps, one after another. A window lowers it if its mean is below the lowest so
far by more than 1 % of the first window's. The loss has settled after three windows in a row that did not lower it;
those that end within the warm-up do not count. All numbers are part of a run's progress, so a resumed run stops at the
same step.
"""

import math
from dataclasses import dataclass

from vitlab.strict_json import check_fields

WINDOWS = 3  # in a row
SHARE = 0.01  # of the first window's mean, by which a window must lower the loss


@dataclass
class Settling:
    """The window that is being filled, and what the earlier ones have shown."""

    total: float = 0.0  # of the losses in this window
    steps: int = 0  # in this window
    first: float | None = None  # mean of the first window
    lowest: float | None = None  # mean of the last window that lowered the loss
    unchanged: int = 0  # windows in a row that did not

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def has_settled(self) -> bool:
        """Whether nothing is left to wait for."""
        return self.unchanged >= WINDOWS

    def add(self, loss: float, window: int, *, is_warming: bool) -> None:
        """The loss of one more step; one that is not finite has changed nothing and counts for nothing."""
        if not math.isfinite(loss):
            return
        self.total, self.steps = self.total + loss, self.steps + 1
        if self.steps == window:
            self._close(self.total / window, is_warming)

    def _close(self, mean: float, is_warming: bool) -> None:
        self.total, self.steps = 0.0, 0
        if self.first is None or self.lowest is None:
            self.first = self.lowest = mean
        elif mean < self.lowest - SHARE * abs(self.first):
            self.lowest, self.unchanged = mean, 0
        elif not is_warming:
            self.unchanged += 1
