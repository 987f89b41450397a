"""The points of a sweep: what each one changes, and its name."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vitlab.jobs.job import Here, Workers
from vitlab.paper.finetuning import HYPER_RULES, RUNS, finetuning_row, hyper_rule
from vitlab.paper.recipes.finetuning import BIT_SIZES, FINETUNING_RATE, QUICK, TRANSFER_SLUGS, finetuning_row_for
from vitlab.require import require
from vitlab.runs.training.request import Request
from vitlab.spec.recipe import Execution, Recipe

PEAK = "schedule.peak"
BY_SIZE = "bit-hyperrule"  # the one of BIT_SIZES that fits the data
MOST_POINTS = 1000


@dataclass(frozen=True)
class Point:
    """One thing to try: a recipe with changes."""

    name: str
    recipe: str
    changes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class SweepOptions:
    """What to try and how. Without `rates`, `grid` and `trials`: the learning rates of the recipe's row of table 4.

    `request` is what all runs share; only the last ones use its `test`. `trials` is the number of points that optuna
    draws from `space`. `also` are recipes that compete unchanged, such as bit-hyperrule for ResNets.
    """

    request: Request
    recipe: str = ""
    rates: tuple[float, ...] = ()
    grid: tuple[str, ...] = ()
    space: tuple[str, ...] = ()
    trials: int = 0
    also: tuple[str, ...] = ()
    seeds: int = RUNS
    execution: Execution = field(default_factory=lambda: Execution(device="auto"))
    workers: Workers = field(default_factory=Here)
    is_confirmed: bool = False  # even if it takes more than a day on a CPU

    def __post_init__(self) -> None:
        require(self.seeds >= 1, f"{self.seeds} final runs; give at least 1 seed")
        for rate in self.rates:
            require(0 < rate < math.inf, f"a learning rate of {rate:g}; rates must be above 0 and finite")

    @property
    def changed(self) -> set[str]:
        """The fields that every point changes."""
        return set(dict(self.request.changes))


def points_of(recipe: Recipe, images: int, options: SweepOptions, space: Iterable[str] = ()) -> list[Point]:
    """The points of a sweep, except those that a search draws; `space` are the fields that it draws.

    Raises for a grid without meaning or with too many points.
    """
    others = [Point(name, name) for name in (_sized(other, images) for other in options.also)]
    if options.trials:
        require(not options.rates and not options.grid, "a search draws from space=; leave out rates= and grid=")
        _refuse_set(options, space)
        return _named_apart(others)
    require(not options.space, "space= is for search='optuna'; rates= or grid= give the points of a grid")
    grid = read_grid(options.grid)
    require(not (options.rates and PEAK in grid), f"rates= and a grid of {PEAK} are the same; give one of them")
    if options.rates or not grid:
        rates = options.rates or (() if PEAK in options.changed else row_rates(recipe, images))
        grid = {**({PEAK: tuple(f"{rate:g}" for rate in rates)} if rates else {}), **grid}
    _refuse_set(options, grid)
    return _named_apart([*grid_points(recipe.name, grid), *others])


def _refuse_set(options: SweepOptions, tried: Iterable[str]) -> None:
    twice = ", ".join(sorted(options.changed & set(tried)))
    require(not twice, f"{twice} is set and tried at the same time; do one of the two")


def _sized(name: str, images: int) -> str:
    """The recipe itself, or the BiT-HyperRule for this number of images."""
    return BIT_SIZES[HYPER_RULES.index(hyper_rule(images))] if name == BY_SIZE else name


def row_rates(recipe: Recipe, images: int) -> tuple[float, ...]:
    """The learning rates of a recipe's row of table 4, scaled as the recipe's own; BiT-HyperRule has one rate."""
    if recipe.name in BIT_SIZES:
        return (recipe.schedule.peak,)
    row = finetuning_row_for(images)[0] if recipe.name == QUICK else recipe.name.partition("-")[0]
    moved = recipe.schedule.peak / FINETUNING_RATE
    return tuple(float(f"{rate * moved:.3g}") for rate in finetuning_row(TRANSFER_SLUGS[row]).learning_rates)


def read_grid(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Fields and their values from texts such as `schedule.peak=0.001,0.003`."""
    grid: dict[str, tuple[str, ...]] = {}
    for text in texts:
        field, _, listed = text.partition("=")
        values = tuple(value.strip() for value in listed.split(","))
        field = field.strip()
        is_whole = bool(field) and all(values)
        require(is_whole, f"grid {text!r} must be a field and its values, such as {PEAK}=0.001,0.003")
        require(field not in grid, f"grid has {field} twice; list all its values together")
        require(len(set(values)) == len(values), f"grid {text!r} has a value twice")
        grid[field] = values
    return grid


def grid_points(recipe: str, grid: Mapping[str, Sequence[str]]) -> list[Point]:
    """Every combination of the values, the last field changing fastest."""
    number = math.prod(len(values) for values in grid.values())
    require(number <= MOST_POINTS, f"the grid has {number:,} points; at most {MOST_POINTS:,} are allowed")
    combined = itertools.product(*([(field, value) for value in values] for field, values in grid.items()))
    return [Point(point_name(changes) or recipe, recipe, changes) for changes in combined]


def point_name(changes: Iterable[tuple[str, str]]) -> str:
    """A name for the changes that is safe as the name of a folder."""
    return re.sub(r"[^\w.=,+-]+", "-", ",".join(f"{field}={value}" for field, value in changes)).strip(".")[:200]


def _named_apart(points: list[Point]) -> list[Point]:
    """The points; raises if two would share a folder."""
    seen: dict[str, Point] = {}
    for point in points:
        other = seen.setdefault(point.name.lower(), point)  # some file systems ignore case
        require(other is point, f"two points of the sweep are named {point.name!r}; give each value once")
    return points
