"""Which batch to try next: for the most images per second, and for the largest batch that fits into memory.

Pure functions of what was measured so far.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

FIRST = 8  # batches up to this are tried in any case: images per second rise in steps
RUNS = 4  # of a batch at least, if there is time: one to warm up, three that are timed
REACH = 8  # times the largest batch that ran: no try goes further, nor does a line whose growth may be noise
GROWTH = 64 * 10**6  # bytes between two peaks that are no noise, which is about 15 MB
FAR = 4  # steps from the largest batch that ran
EXACT = 64  # batches up to this are found exactly, larger ones to one part in this many


def next_batch(seconds: Mapping[int, float], left: float) -> int | None:
    """The power of two to time after those whose `seconds` are known, in `left` seconds; None to stop.

    The search stops when time is short, and beyond FIRST when neither of the last two was the fastest per image.
    """
    if not seconds:
        return 1
    batches = sorted(seconds)
    fastest = min(batches, key=lambda batch: seconds[batch] / batch)
    largest = batches[-1]
    if fastest not in batches[-2:] and largest >= FIRST:
        return None
    return 2 * largest if expected_seconds(2 * largest, seconds) * RUNS <= left else None


def expected_seconds(batch: int, seconds: Mapping[int, float]) -> float:
    """The time of a batch at the pace of the largest one that was timed."""
    largest = max(seconds)
    return seconds[largest] * batch / largest


@dataclass(frozen=True)
class Largest:
    """The largest batch; `is_tried` if it ran and the next larger one did not fit, else it is extrapolated."""

    batch: int
    is_tried: bool


def largest_batch(
    peak: Callable[[int], int | None],
    limit: int,
    known: Mapping[int, int],
    *,
    too_large: int | None = None,
    is_affordable: Callable[[int], bool] = lambda batch: True,
) -> Largest | None:
    """Find the largest batch whose peak memory is within `limit`.

    `peak` tries a batch and returns its peak in bytes, or None if it does not fit. `known` are peaks of some batches,
    and `too_large` is a batch that did not fit. Tries begin where a line through two peaks reaches the limit, and end
    when the next larger batch does not fit, to the resolution of `EXACT`. If a try is not affordable, the answer is
    that of the line, or None if the line says too little.
    """
    fits = {batch: size for batch, size in known.items() if size <= limit}
    failed = min({*known, too_large or math.inf, math.inf} - set(fits))
    misses = 0  # tries in a row that did not fit
    while True:
        low = max(fits, default=0)
        step = max(low // EXACT, 1)
        if failed - low <= step:
            return Largest(low, is_tried=True)
        line = _line(fits, limit)
        guess = 2 * low or 1 if line is None else min(line.batch, REACH * low)
        if guess - low > FAR * step:  # a miss costs a new process, so stay below the line while it is rough
            guess -= (guess - low) // 16
        if misses:  # the line was too high: an eighth of the interval below, a quarter, ...
            guess = int(failed) - max(step, (int(failed) - low) * 2**misses // 16)
        batch = int(min(max(guess, low + step), failed - 1))
        is_sure = line is not None and (line.growth >= GROWTH or line.batch <= REACH * low)
        if not is_affordable(batch) and not is_sure:
            batch = min(batch, 2 * low or 1)  # makes the line surer
        if not is_affordable(batch):
            return Largest(int(min(max(line.batch, low), failed - 1)), is_tried=False) if line and is_sure else None
        found = peak(batch)
        if found is None or found > limit:
            failed, misses = batch, misses + 1
        else:
            fits[batch], misses = found, 0


class _Line(NamedTuple):
    """The `batch` at which a line through two peaks reaches the limit, and the `growth` between the two in bytes."""

    batch: int
    growth: int


def _line(fits: Mapping[int, int], limit: int) -> _Line | None:
    """The line through the peaks of the largest batch and of one about half its size; None if it does not rise."""
    if len(fits) < 2:
        return None
    last = max(fits)
    first = max((batch for batch in fits if 2 * batch <= last), default=min(fits))
    growth = fits[last] - fits[first]
    return _Line(last + (limit - fits[last]) * (last - first) // growth, growth) if growth > 0 else None
