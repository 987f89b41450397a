"""What the paper claims, as comparisons of cells, and the rule that decides each claim from the runs of several seeds.

The rule, fixed before the runs: for every seed, a comparison is a weighted sum of measured values, paired by the seed.
Its mean over the seeds has a 95 % confidence interval by Student's t distribution.

    above     confirmed if the whole interval is above the threshold, not confirmed if all of it is at or below
    within    confirmed if the whole interval is inside -threshold..threshold, not confirmed if all of it is outside
    otherwise undecided, with the number of seeds that would decide it if mean and deviation stayed as they are

A claim of several comparisons is confirmed if all are, not confirmed if one is not, and else undecided. Fewer than
three seeds decide nothing.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from vitlab.require import require

Levels = tuple[tuple[str, str], ...]  # (factor, level), those that a row must have
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
class Row:
    """One run of a study in the ledger: a cell and a seed, what was measured, and how.

    `data` names places instead of paths, so that a row is the same on every machine.
    """

    study: str
    scale: str
    levels: dict[str, str]
    seed: int
    measure: str  # the one of the values that tables and figures show
    values: dict[str, float]  # empty if the run diverged
    model: str = ""
    recipe: str = ""
    data: str = ""
    images: int = 0  # seen in all trainings behind the cell
    exaflops: float = 0.0  # of the first training, which is pre-training where there is one
    seconds: float = 0.0  # of all trainings behind the cell
    published: float | None = None
    weights: str = ""  # SHA-256
    command: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    when: str = ""  # UTC


@dataclass(frozen=True)
class Term:
    """A weight, and the rows it applies to: the mean over all that have these levels."""

    weight: float
    levels: Levels


@dataclass(frozen=True)
class Comparison:
    """A weighted sum of the `value` of cells, and what is expected of it.

    `about` tells it from the other comparisons of a claim, in a few words.
    """

    terms: tuple[Term, ...]
    value: str
    expects: Literal["above", "within"]
    threshold: float
    about: str = ""

    def __post_init__(self) -> None:
        require(math.isclose(sum(term.weight for term in self.terms), 0, abs_tol=1e-9) or len(self.terms) == 1,
                "the weights of a comparison add up to 0")  # fmt: skip
        require(self.expects == "above" or self.threshold > 0, "a value is within a positive threshold")

    def by_seed(self, rows: Sequence[Row]) -> dict[int, float]:
        """The comparison for every seed that all its terms have."""
        sums: dict[int, list[float]] = {}
        for term in self.terms:
            for seed, value in _means(rows, term.levels, self.value).items():
                sums.setdefault(seed, []).append(term.weight * value)
        return {seed: sum(parts) for seed, parts in sorted(sums.items()) if len(parts) == len(self.terms)}

    def __str__(self) -> str:
        parts = []
        for place, term in enumerate(self.terms):
            sign = "-" if term.weight < 0 else "+" if place else ""
            size = "" if abs(term.weight) == 1 else f"{abs(term.weight):g} x "
            named = ", ".join(f"{factor} {level}" for factor, level in term.levels) or "all cells"
            parts.append(f"{sign} {size}({named})".strip())
        how = "above" if self.expects == "above" else "within ±"
        space = " " if self.expects == "above" else ""
        return f"{self.value}: {' '.join(parts)} {how}{space}{self.threshold:g}"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper about a study's cells, decided by comparisons at the scale of our own runs.

    Comparisons in `beside` are measured and shown, but decide nothing. `everywhere` says what it means if they turn
    out like those of the claim.
    """

    name: str  # what the comparisons test
    says: str  # what the paper says, which may be more
    source: str  # where in the paper
    comparisons: tuple[Comparison, ...]
    beside: tuple[Comparison, ...] = ()
    everywhere: str = ""


def above(value: str, more: Mapping[str, str], less: Mapping[str, str], by: float = 0.0, about: str = "") -> Comparison:
    """Expect the cells of the first levels to have more than those of the second."""
    terms = (Term(1.0, tuple(more.items())), Term(-1.0, tuple(less.items())))
    return Comparison(terms, value, "above", by, about)


def alike(value: str, one: Mapping[str, str], other: Mapping[str, str], within: float, about: str = "") -> Comparison:
    """Expect two groups of cells to differ by less than `within`."""
    terms = (Term(1.0, tuple(one.items())), Term(-1.0, tuple(other.items())))
    return Comparison(terms, value, "within", within, about)


def gains_more(
    value: str, one: Mapping[str, str], other: Mapping[str, str], to: Mapping[str, str], of: Mapping[str, str]
) -> Comparison:
    """Expect `one` to gain more than `other` on the way from the levels `of` to the levels `to`."""
    pairs = ((1.0, one, to), (-1.0, one, of), (-1.0, other, to), (1.0, other, of))
    return Comparison(tuple(Term(w, tuple({**who, **where}.items())) for w, who, where in pairs), value, "above", 0.0)


# -- Verdicts --------------------------------------------------------------------------------------


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
    seeds_needed: int | None = None  # that would decide an undecided one; None: more than are worth naming


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


def verdict(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """Decide a claim by the rule, from the rows of its study at one scale."""
    judged = tuple(judge(comparison, rows) for comparison in claim.comparisons)
    beside = tuple(judge(comparison, rows) for comparison in claim.beside)
    answers = [one.answer for one in judged]
    for answer in ("not run yet", "not confirmed", "undecided"):
        if answer in answers:
            return Verdict(claim, answer, judged, beside)
    return Verdict(claim, "confirmed", judged, beside)


def judge(comparison: Comparison, rows: Sequence[Row]) -> Judged:
    """Decide one comparison."""
    values = list(comparison.by_seed(rows).values())
    if len(values) < FEWEST:
        return Judged(comparison, None, "not run yet")
    found = interval(values)
    answer = _answer(comparison, found)
    if answer != "undecided":
        return Judged(comparison, found, answer)
    return Judged(comparison, found, answer, _seeds_needed(comparison, found.mean, statistics.stdev(values)))


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


def _means(rows: Iterable[Row], levels: Levels, value: str) -> dict[int, float]:
    """The mean of a value over all rows with these levels, by seed; only seeds that have every such cell."""
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        if value in row.values and all(row.levels.get(factor) == level for factor, level in levels):
            found.setdefault(row.seed, {})[str(sorted(row.levels.items()))] = row.values[value]
    cells = {cell for own in found.values() for cell in own}
    return {seed: statistics.fmean(own.values()) for seed, own in found.items() if set(own) == cells}
