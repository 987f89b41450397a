"""Measure one model at one image size: first the speed of its batches, then the largest batch."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from vitlab.costing.child import OPEN_AT_ONCE, TRIES, Report, Task
from vitlab.costing.children import Child, TooLong, TooMuchMemory
from vitlab.costing.memory import show_memory
from vitlab.costing.search import Largest, expected_seconds, largest_batch
from vitlab.errors import InvalidValue

SPEED_SHARE = 0.6  # of the time, for the speed; the rest is for the largest batch
CAUTION = 1.5  # a try is made if this many times its expected duration is left


@dataclass(frozen=True)
class Timing:
    """A batch with its median time, and the memory of the process at most: on a GPU that of its tensors there.

    `engine` is what computed it: an engine's name, or in training "2 streams" and so on, and "plain" without streams.
    """

    batch: int
    seconds: float
    held: int | None
    engine: str = ""

    @property
    def images_per_second(self) -> float:
        """Images per second."""
        return self.batch / self.seconds


class Measuring:
    """A task in `task.seconds`, apart from converting the model and from starting its first process, within `memory`
    bytes of this machine.

    `limit` is the memory that decides what fits: that of a GPU, or `memory`; None if it is unknown. `flops` is the
    speed of a large matrix product in the same process. At the end of the block no process is left.
    """

    def __init__(self, task: Task, memory: int | None) -> None:
        self.task, self.memory = task, memory
        self.limit = memory
        self.flops: float | None = None
        self.timings: list[Timing] = []
        self.too_large: int | None = None  # a batch that did not fit
        self._child: Child | None = None
        self._starting = self._deadline = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def time_batches(self) -> Iterator[Timing]:
        """Time batches until it no longer pays, or time or memory is used up."""
        try:
            if self.task.mode == "inference" and self.task.engine not in OPEN_AT_ONCE:
                self._convert()
            began = time.monotonic()
            self._child = Child(replace(self.task, seconds=SPEED_SHARE * self.task.seconds), self.memory)
            for report in self._child.reports(self.task.seconds):
                if report.event == "started":
                    self._check_start(report)
                elif report.event == "ready":
                    self.flops, self._starting = report.flops, time.monotonic() - began
                    self._deadline = time.monotonic() + self.task.seconds
                else:
                    self.timings.append(Timing(report.batch, report.seconds, report.held, report.engine))
                    yield self.timings[-1]
        except TooMuchMemory:
            self._end()
            largest = max((timing.batch for timing in self.timings), default=0)
            self.too_large = next((batch for batch in self.task.batches if batch > largest), 2 * largest or 1)
        except TooLong:
            self._end()

    def _convert(self) -> None:
        """Let the engine convert the model into its cache in a process of its own, whose memory is not measured."""
        self._child = Child(replace(self.task, only_requests=True), self.memory)
        for report in self._child.reports(self.task.seconds):
            if report.event == "started":
                self._check_start(report)
        self._end()

    def find_largest(self) -> Largest | None:
        """Search for the largest batch in the time that is left; None if nothing can be said."""
        if self.limit is None or any(timing.held is None for timing in self.timings):
            return None
        peaks = {timing.batch: timing.held or 0 for timing in self.timings}

        def peak(batch: int) -> int | None:
            found = self._try(batch)
            if found is None:
                self.too_large = min(batch, self.too_large or batch)
            else:
                peaks[batch] = found
            return found

        try:
            return largest_batch(peak, self.limit, peaks, too_large=self.too_large, is_affordable=self._is_affordable)
        except TooLong:
            return largest_batch(peak, self.limit, peaks, too_large=self.too_large, is_affordable=lambda _: False)

    def _check_start(self, report: Report) -> None:
        if self.memory is not None and report.held is not None and report.held > self.memory:
            alone = f"a process with PyTorch alone takes {show_memory(report.held)}"
            raise InvalidValue(f"is {show_memory(self.memory)}; {alone}, so give more", field="memory")
        self.limit = report.limit or self.limit

    def _is_affordable(self, batch: int) -> bool:
        times = {timing.batch: timing.seconds for timing in self.timings}
        needed = CAUTION * TRIES * expected_seconds(batch, times) if times else 0.0
        needed += self._starting if self._child is None else 0.0
        return needed <= self._deadline - time.monotonic()

    def _try(self, batch: int) -> int | None:
        """The peak memory of a batch; None if it does not fit. The process of smaller batches is used again."""
        if self._child is None:
            self._child = Child(replace(self.task, only_requests=True), self.memory)
        self._child.request(batch)
        found = None
        try:
            for report in self._child.reports(self._deadline - time.monotonic()):
                found = report.held if report.event == "batch" else found
            if found is None:  # that was the start of a new process
                for report in self._child.reports(self._deadline - time.monotonic()):
                    found = report.held
        except TooMuchMemory:
            self._end()
            return None
        return found

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
