"""The choice of the best point on the development images, and its reason."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from vitlab.files.store import write_json
from vitlab.files.strict_json import read_json
from vitlab.report.tables import Results
from vitlab.require import require
from vitlab.run_dir import CHOICE, DIVERGED, RESULT, RunSpec
from vitlab.runs.sweep.grid import Point
from vitlab.spec.recipe import measure_of

METRICS = {"top1": "top-1", "map": "mAP"}  # names in tables
TIE = "the smaller learning rate wins, then the earlier point"
HOPELESS = 10  # times the loss of guessing, ln K or K ln 2: the weights have exploded
RULES = {"top1": "highest accuracy on the development images", "map": "highest mean average precision on them"}


@dataclass(frozen=True)
class Judged:
    """A point with its results on the development images; `diverged` says how it failed, if it did."""

    point: Point
    learning_rate: float
    numbers: Mapping[str, float] | None = None
    diverged: str = ""

    @property
    def measured(self) -> float | None:
        """The accuracy, or the mean average precision, 0..1; None for a point that diverged."""
        return None if self.numbers is None or self.diverged else float(self.numbers[measure_of(self.numbers)])


def judged(point: Point, spec: RunSpec, folder: Path) -> Judged:
    """The results of a point's finished run."""
    rate = spec.recipe.schedule.peak
    if (folder / DIVERGED).exists():
        return Judged(point, rate, None, divergence(folder))
    numbers = numbers_of(folder, "validation")
    measure, loss, classes = measure_of(numbers), float(numbers["loss"]), spec.model.classes
    worst = HOPELESS * (math.log(classes) if measure == "top1" else classes * math.log(2))
    if math.isfinite(float(numbers.get(measure, "nan"))) and loss <= worst:
        return Judged(point, rate, numbers)
    why = f"loss {loss:.3g} on the development images; guessing has {worst / HOPELESS:.3g}"
    return Judged(point, rate, numbers, why)


def numbers_of(folder: Path, name: str) -> dict[str, Any]:
    """The validation or test numbers of a finished run."""
    result = cast(dict[str, Any], read_json(folder / RESULT))
    require(isinstance(result.get(name), dict), f"{folder / RESULT} has no {name} numbers")
    return result[name]


def divergence(folder: Path) -> str:
    """How a run diverged."""
    return str(cast(dict[str, Any], read_json(folder / DIVERGED)).get("diverged", ""))


def pick(points: Sequence[Judged]) -> tuple[Judged, str]:
    """Return the best point on the development images and the reason; raises if all diverged."""
    if len(points) == 1 and points[0].numbers is None and not points[0].diverged:
        return points[0], "the only point, so nothing was picked"
    alive = [one for one in points if one.measured is not None]
    if not alive:
        said = "; ".join(f"{one.point.name}: {one.diverged}" for one in points)
        raise ArithmeticError(f"every point of the sweep diverged; try smaller learning rates: {said}")
    order = sorted(enumerate(alive), key=lambda entry: (-(entry[1].measured or 0.0), entry[1].learning_rate, entry[0]))
    best = order[0][1]
    top, numbers = best.measured or 0.0, best.numbers or {}
    count = f"{int(numbers['count']):,} development images"
    why = f"{METRICS[measure_of(numbers)]} {100 * top:.1f} % on {count}, the best of {len(points)} points"
    ties = [one.point.name for _, one in order[1:] if one.measured == top]
    if ties:
        why += f"; {', '.join(ties)} tied: {TIE}"
    worst = [one.point.name for one in points if one.measured is None]
    if worst:
        why += f"; diverged: {', '.join(worst)}"
    return best, why


def table_of(points: Sequence[Judged]) -> Results:
    """The points in the order they were tried."""
    measure = _measure(points)
    rows = []
    for one in points:
        numbers = one.numbers or {}
        found = None if measure not in numbers else 100 * float(numbers[measure])
        remark = f"diverged: {one.diverged}" if one.diverged else ""
        rows.append((one.point.name, one.learning_rate, found, numbers.get("loss"), numbers.get("count"), remark))
    columns = ("point", "learning rate", f"development {METRICS[measure]} %", "loss", "count", "remark")
    return Results(columns, tuple(rows))


def _measure(points: Sequence[Judged]) -> str:
    return measure_of(next((one.numbers for one in points if one.numbers), {}))


def write_choice(out: Path, judged_on: str | None, points: Sequence[Judged], picked: Judged, why: str) -> None:
    """Write the points, their results, the rule, the pick and why; a single point is not judged."""
    listed = json.loads(table_of(points).to_json())
    choice = {
        "judged_on": judged_on,
        "rule": f"{RULES[_measure(points)]}; of ties {TIE}; a point that diverged is worst" if judged_on else None,
        "points": listed,
        "pick": picked.point.name,
        "why": why,
    }
    write_json(out / CHOICE, choice)
