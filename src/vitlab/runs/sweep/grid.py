"""The points of a sweep: what is tried, and under which name."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitlab.jobs.job import Here, Workers
from vitlab.paper.finetuning import HYPER_RULES, RUNS, finetuning_row, hyper_rule
from vitlab.paper.recipes.finetuning import BIT_SIZES, FINETUNING_RATE, QUICK, TRANSFER_SLUGS, finetuning_row_for
from vitlab.recipe import Execution, Recipe
from vitlab.require import require

PEAK = "schedule.peak"
BY_SIZE = "bit-hyperrule"  # the one of its sizes that the data has
MOST_POINTS = 1000


@dataclass(frozen=True)
class Point:
    """One thing that is tried: a recipe with changes."""

    name: str
    recipe: str
    changes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class SweepOptions:
    """What is tried and how. Without `rates`, `grid` and `trials` it is the grid of the recipe's row of table 4.

    `trials` is how many points optuna draws from `space`. `also` are recipes that compete as they are, such as
    bit-hyperrule for ResNets. `held_out` is the share to pick on, the recipe's if left out, or `validation` a set.
    """

    recipe: str = ""
    rates: tuple[float, ...] = ()
    grid: tuple[str, ...] = ()
    space: tuple[str, ...] = ()
    trials: int = 0
    also: tuple[str, ...] = ()
    seeds: int = RUNS
    image: tuple[int, int] | None = None
    validation: str = ""
    held_out: float | None = None
    teacher: str | Path | None = None
    epochs: int | None = None
    changes: tuple[tuple[str, object], ...] = ()  # of the recipe, at every point
    execution: Execution = field(default_factory=lambda: Execution(device="auto"))
    workers: Workers = field(default_factory=Here)
    is_confirmed: bool = False  # although it takes more than a day on a CPU


def points_of(recipe: Recipe, images: int, options: SweepOptions, space: Iterable[str] = ()) -> list[Point]:
    """What a sweep tries, all but what a search is going to draw; `space` are the fields it draws.

    Raises for words that mean nothing or too much.
    """
    others = [Point(name, name) for name in (_sized(other, images) for other in options.also)]
    if options.trials:
        require(not options.rates and not options.grid, "a search draws from its --space; leave out --rates and --grid")
        _refuse_set(options, space)
        check_names(others)
        return others
    require(not options.space, "--space is for --search optuna; a grid is given by --rates or --grid")
    grid = read_grid(options.grid)
    require(not (options.rates and PEAK in grid), f"--rates and --grid {PEAK} are the same; give one of them")
    if options.rates or not grid:
        is_set = PEAK in dict(options.changes)  # then one rate was asked for
        rates = options.rates or (() if is_set else row_rates(recipe, images))
        for rate in rates:
            require(0 < rate < float("inf"), f"a learning rate of {rate:g}; rates must be above 0 and finite")
        grid = {**({PEAK: tuple(f"{rate:g}" for rate in rates)} if rates else {}), **grid}
    _refuse_set(options, grid)
    points = [*grid_points(recipe.name, grid), *others]
    check_names(points)
    return points


def _refuse_set(options: SweepOptions, tried: Iterable[str]) -> None:
    twice = sorted(set(dict(options.changes)) & set(tried))
    require(not twice, f"{', '.join(twice)} is set and tried at the same time; do one of both")


def _sized(name: str, images: int) -> str:
    """BiT-HyperRule by the size of the data; any other recipe is what it is."""
    return BIT_SIZES[HYPER_RULES.index(hyper_rule(images))] if name == BY_SIZE else name


def row_rates(recipe: Recipe, images: int) -> tuple[float, ...]:
    """The learning rates of table 4 that belong to a recipe; a recipe of another batch moves them as it moves its own.

    BiT-HyperRule has one rate and no grid.
    """
    if recipe.name in BIT_SIZES:
        return (recipe.schedule.peak,)
    row = finetuning_row_for(images)[0] if recipe.name == QUICK else recipe.name.partition("-")[0]
    moved = recipe.schedule.peak / FINETUNING_RATE
    return tuple(float(f"{rate * moved:.3g}") for rate in finetuning_row(TRANSFER_SLUGS[row]).learning_rates)


def read_grid(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Fields and their values from `schedule.peak=0.001,0.003` and the like."""
    grid: dict[str, tuple[str, ...]] = {}
    for text in texts:
        field, _, listed = text.partition("=")
        values = tuple(value.strip() for value in listed.split(","))
        require(
            bool(field.strip()) and all(values),
            f"--grid {text!r} must be a field and its values, such as {PEAK}=0.001,0.003",
        )
        field = field.strip()
        require(field not in grid, f"--grid has {field} twice; list all its values in one")
        require(len(set(values)) == len(values), f"--grid {text!r} has a value twice")
        grid[field] = values
    return grid


def grid_points(recipe: str, grid: Mapping[str, Sequence[str]]) -> list[Point]:
    """Every combination of the values, the last field changing fastest."""
    number = math.prod(len(values) for values in grid.values())
    require(number <= MOST_POINTS, f"the grid has {number:,} points; at most {MOST_POINTS:,} are run")
    combined = itertools.product(*([(field, value) for value in values] for field, values in grid.items()))
    return [Point(point_name(changes) or recipe, recipe, changes) for changes in combined]


def point_name(changes: Iterable[tuple[str, str]]) -> str:
    """A name that is also the name of a folder."""
    return re.sub(r"[^\w.=,+-]+", "-", ",".join(f"{field}={value}" for field, value in changes)).strip(".")[:200]


def check_names(points: Iterable[Point]) -> None:
    """Raise when two points would share a folder."""
    seen: dict[str, Point] = {}
    for point in points:
        other = seen.setdefault(point.name.lower(), point)  # file systems that keep no case
        require(other is point, f"two points of the sweep are both named {point.name!r}; give each value once")
