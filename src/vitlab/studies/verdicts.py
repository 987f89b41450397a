"""The rule that decides claims from the runs of several seeds.

The rule, fixed before the runs: for every seed, a comparison is a weighted sum of measured values, paired by the seed.
Its mean over the seeds has a 95 % confidence interval by Student's t distribution.

    above     confirmed if the whole interval is above the threshold, not confirmed if all of it is at or below
    within    confirmed if the whole interval is inside -threshold..threshold, not confirmed if all of it is outside
    otherwise undecided, with the number of seeds that would decide it if mean and deviation stayed as they are

A seed counts if every cell of the grid that the comparison is about has a value. A claim of several comparisons is
confirmed if all are, not confirmed if one is not, and else undecided. Fewer than three seeds decide nothing, and
neither do groups of cells that cannot be compared (`Comparison.obstacle`).
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from vitlab.studies.claims import Claim, Comparison, GridCell, Row

Answer = Literal["confirmed", "not confirmed", "undecided", "not run yet"]
FEWEST = 3  # seeds
MOST = 1000  # seeds that are still worth naming
# 97.5 % points of Student's t distribution, by degrees of freedom from 1; beyond, a bound from above.
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class Interval:
    """The mean of a comparison over seeds, and half the width of its 95 % confidence interval."""

    mean: float
    half: float
    seeds: int

    @property
    def low(self) -> float:
        """The lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + self.half


@dataclass(frozen=True)
class Judged:
    """A comparison with its interval, None without enough seeds, and the answer."""

    comparison: Comparison
    interval: Interval | None
    answer: Answer
    seeds: int  # that have every cell
    seeds_needed: int | None = None  # that would decide an undecided one; None: more than are worth naming
    why: str = ""  # it is not run yet


@dataclass(frozen=True)
class Verdict:
    """The answer to a claim, with what it rests on, and what is shown beside it."""

    claim: Claim
    answer: Answer
    judged: tuple[Judged, ...]
    beside: tuple[Judged, ...] = ()

    @property
    def is_everywhere(self) -> bool:
        """Whether the comparisons beside the claim turned out as all of its own did."""
        return bool(self.beside) and {one.answer for one in (*self.judged, *self.beside)} == {"confirmed"}


def verdict(claim: Claim, rows: Sequence[Row], grid: Sequence[GridCell]) -> Verdict:
    """Decide a claim by the rule, from the rows of its study at one scale and the cells of its grid."""
    judged = tuple(judge(comparison, rows, grid) for comparison in claim.comparisons)
    beside = tuple(judge(comparison, rows, grid) for comparison in claim.beside)
    answers = [one.answer for one in judged]
    for answer in ("not run yet", "not confirmed", "undecided"):
        if answer in answers:
            return Verdict(claim, answer, judged, beside)
    return Verdict(claim, "confirmed", judged, beside)


def judge(comparison: Comparison, rows: Sequence[Row], grid: Sequence[GridCell]) -> Judged:
    """Decide one comparison."""
    obstacle = comparison.obstacle(grid)
    values = [] if obstacle else list(by_seed(comparison, rows, grid).values())
    if len(values) < FEWEST:
        why = obstacle or f"{len(values)} seeds have a value in every cell; it takes {FEWEST}"
        return Judged(comparison, None, "not run yet", len(values), why=why)
    found = interval(values)
    answer = _answer(comparison, found)
    needed = _seeds_needed(comparison, found.mean, statistics.stdev(values)) if answer == "undecided" else None
    return Judged(comparison, found, answer, len(values), needed)


def by_seed(comparison: Comparison, rows: Sequence[Row], grid: Sequence[GridCell]) -> dict[int, float]:
    """The comparison for every seed that has a value in every cell of its terms."""
    sums: dict[int, list[float]] = {}
    for term in comparison.terms:
        wanted = [cell.levels for cell in term.cells(comparison.measured(grid))]
        for seed, value in means_by_seed(rows, comparison.value, wanted).items():
            sums.setdefault(seed, []).append(term.weight * value)
    return {seed: sum(parts) for seed, parts in sorted(sums.items()) if len(parts) == len(comparison.terms)}


def means_by_seed(rows: Iterable[Row], value: str, cells: Sequence[Mapping[str, str]]) -> dict[int, float]:
    """The mean of a value over some cells, by seed; only seeds that have the value in every one of them."""
    wanted = {frozenset(levels.items()) for levels in cells}
    found: dict[int, dict[frozenset[tuple[str, str]], float]] = {}
    for row in rows:
        place = frozenset(row.levels.items())
        if value in row.values and place in wanted:
            found.setdefault(row.seed, {})[place] = row.values[value]
    return {seed: statistics.fmean(own.values()) for seed, own in found.items() if len(own) == len(wanted)}


def interval(values: Sequence[float]) -> Interval:
    """The 95 % confidence interval of a mean."""
    n = len(values)
    return Interval(statistics.fmean(values), _t(n - 1) * statistics.stdev(values) / math.sqrt(n), n)


def _answer(comparison: Comparison, found: Interval) -> Answer:
    limit = comparison.threshold
    if comparison.expects == "above":
        is_so, is_not = found.low > limit, found.high <= limit
    else:
        is_so, is_not = -limit < found.low and found.high < limit, found.low >= limit or found.high <= -limit
    return "confirmed" if is_so else "not confirmed" if is_not else "undecided"


def _seeds_needed(comparison: Comparison, mean: float, deviation: float) -> int | None:
    """The fewest seeds whose interval would decide, if mean and deviation stay as they are."""
    for n in range(FEWEST + 1, MOST + 1):
        wider = Interval(mean, _t(n - 1) * deviation / math.sqrt(n), n)
        if _answer(comparison, wider) != "undecided":
            return n
    return None


def _t(freedom: int) -> float:
    """The 97.5 % point of Student's t distribution; from 31 degrees of freedom on, that of 30."""
    return T_975[min(freedom, len(T_975)) - 1]
