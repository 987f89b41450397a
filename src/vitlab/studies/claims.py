"""What the paper claims, as comparisons of cells; `verdicts.py` decides them from the runs of several seeds."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from vitlab.require import require

Levels = tuple[tuple[str, str], ...]  # (factor, level), those that a cell must have
Expectation = Literal["above", "within"]


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
class GridCell:
    """A cell of a grid: its levels, the value that tables show, and the number that the paper prints for it."""

    levels: dict[str, str]
    measure: str
    published: float | None = None


@dataclass(frozen=True)
class Term:
    """A weight, and the cells it applies to: the mean over all that have these levels."""

    weight: float
    levels: Levels

    def __post_init__(self) -> None:
        require(math.isfinite(self.weight), f"the weight of a term is {self.weight}; give a finite number")
        for pair in self.levels:
            is_pair = len(pair) == 2 and all(isinstance(one, str) for one in pair)
            require(is_pair, f"a term names {pair}; give a factor and its level, both as text")

    def __str__(self) -> str:
        return ", ".join(f"{factor} {level}" for factor, level in self.levels) or "all cells"

    def cells(self, grid: Sequence[GridCell]) -> list[GridCell]:
        """The cells of a grid that have these levels."""
        return [cell for cell in grid if all(cell.levels.get(factor) == level for factor, level in self.levels)]


@dataclass(frozen=True)
class Comparison:
    """A weighted sum of the `value` of cells, and what is expected of it.

    `about` tells it from the other comparisons of a claim, in a few words.
    """

    terms: tuple[Term, ...]
    value: str
    expects: Expectation
    threshold: float
    about: str = ""

    def __post_init__(self) -> None:
        known = get_args(Expectation)
        require(self.expects in known, f"a comparison expects {self.expects!r}; give one of {', '.join(known)}")
        require(math.isfinite(self.threshold), f"the threshold is {self.threshold}; give a finite number")
        is_margin = self.expects == "above" or self.threshold > 0
        require(is_margin, f"a value is within {self.threshold}; give a positive threshold")
        require(bool(self.terms), "a comparison has no terms; give at least one")
        is_balanced = math.isclose(sum(term.weight for term in self.terms), 0, abs_tol=1e-9)
        require(is_balanced or len(self.terms) == 1, "the weights of a comparison must add up to 0")

    def measured(self, grid: Sequence[GridCell]) -> list[GridCell]:
        """The cells that have the value: those that measure it, or all where it comes with another measure."""
        return [cell for cell in grid if cell.measure == self.value] or list(grid)

    def obstacle(self, grid: Sequence[GridCell]) -> str:
        """Why the cells of a grid cannot be compared; empty if they can.

        Every term needs cells. Of factors that are named by no term, all terms must have the same combinations of
        levels equally often: a mean over two tasks is not compared with one over three.
        """
        groups = [term.cells(self.measured(grid)) for term in self.terms]
        for term, cells in zip(self.terms, groups, strict=True):
            if not cells:
                return f"no cell has {term}"
        named = {factor for term in self.terms for factor, _ in term.levels}
        free = [factor for factor in groups[0][0].levels if factor not in named]
        varied = [one for one in free if any(len({cell.levels[one] for cell in cells}) > 1 for cells in groups)]
        first, *others = (_shares([tuple(cell.levels[one] for one in varied) for cell in cells]) for cells in groups)
        for term, other in zip(self.terms[1:], others, strict=True):
            if other != first:
                return f"cells with {self.terms[0]} and with {term} have different levels of {', '.join(varied)}"
        return ""

    def __str__(self) -> str:
        parts = []
        for place, term in enumerate(self.terms):
            sign = "-" if term.weight < 0 else "+" if place else ""
            size = "" if abs(term.weight) == 1 else f"{abs(term.weight):g} x "
            parts.append(f"{sign} {size}({term})".strip())
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

    def __post_init__(self) -> None:
        require(bool(self.comparisons), f"the claim {self.name!r:.80} has no comparisons; give at least one")


def _shares(combinations: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], float]:
    """How often each combination of levels occurs, as a share of all."""
    return {one: count / len(combinations) for one, count in Counter(combinations).items()}


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
