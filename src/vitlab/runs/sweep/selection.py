"""Which point of a sweep is best on the development images, and why."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from vitlab.report.tables import Results
from vitlab.require import require
from vitlab.run_dir import RESULT, RunSpec
from vitlab.runs.sweep.grid import Point
from vitlab.store import json_writer, replacing
from vitlab.strict_json import read_json
from vitlab.train.loop import measure_of

CHOICE, DIVERGED = "choice.json", "diverged.json"
METRICS = {"top1": "top-1", "map": "mAP"}  # how tables call what decides
TIE = "of equals the one with the smaller learning rate, then the earlier one"
HOPELESS = 10  # times the loss of guessing, ln K or K ln 2: the weights have exploded, whatever happens to be right
RULES = {"top1": "most development images right", "map": "highest mean average precision on the development images"}


@dataclass(frozen=True)
class Judged:
    """A point and how it did on the development images; `diverged` says how it failed, if it did."""

    point: Point
    learning_rate: float
    numbers: Mapping[str, float] | None = None
    diverged: str = ""

    @property
    def measured(self) -> float | None:
        """The accuracy, or the mean average precision, 0..1; None for a point that counts as worst."""
        return None if self.numbers is None or self.diverged else float(self.numbers[measure_of(self.numbers)])


def judged(point: Point, spec: RunSpec, folder: Path) -> Judged:
    """What a finished run of a point says."""
    rate = spec.recipe.schedule.peak
    if (folder / DIVERGED).exists():
        return Judged(point, rate, None, divergence(folder))
    numbers = numbers_of(folder, "validation")
    measure, loss, classes = measure_of(numbers), float(numbers["loss"]), spec.model.classes
    worst = HOPELESS * (math.log(classes) if measure == "top1" else classes * math.log(2))
    if math.isfinite(float(numbers.get(measure, "nan"))) and loss <= worst:
        return Judged(point, rate, numbers)
    return Judged(
        point, rate, numbers, f"loss {loss:.3g} on the development images; guessing has {worst / HOPELESS:.3g}"
    )


def numbers_of(folder: Path, name: str) -> dict[str, Any]:
    """The validation or test numbers of a finished run."""
    result = cast(dict[str, Any], read_json(folder / RESULT))
    require(isinstance(result.get(name), dict), f"{folder / RESULT} has no {name} numbers")
    return result[name]


def divergence(folder: Path) -> str:
    """How a run diverged."""
    return str(cast(dict[str, Any], read_json(folder / DIVERGED)).get("diverged", ""))


def pick(points: Sequence[Judged]) -> tuple[Judged, str]:
    """The point that does best on the development images, and why it is that one; raises if all diverged."""
    if len(points) == 1 and points[0].numbers is None and not points[0].diverged:
        return points[0], "it is the only point, so nothing was picked"
    alive = [one for one in points if one.measured is not None]
    if not alive:
        said = "; ".join(f"{one.point.name}: {one.diverged}" for one in points)
        raise ArithmeticError(f"every point of the sweep diverged; try smaller learning rates: {said}")
    order = sorted(enumerate(alive), key=lambda entry: (-(entry[1].measured or 0.0), entry[1].learning_rate, entry[0]))
    best = order[0][1]
    top, numbers = best.measured or 0.0, best.numbers or {}
    count = f"{int(numbers['count']):,} development images"
    found = f"{top:.2%} of {count} are right" if measure_of(numbers) == "top1" else f"mAP {top:.2%} on {count}"
    why = f"{found}, the most of {len(points)} points"
    ties = [one.point.name for _, one in order[1:] if one.measured == top]
    if ties:
        why += f"; {', '.join(ties)} had as many: {TIE}"
    worst = [one.point.name for one in points if one.measured is None]
    if worst:
        why += f"; worst, because diverged: {', '.join(worst)}"
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
    """The points, their numbers, the rule, the pick and why; one point alone is judged on nothing, by no rule."""
    listed = json.loads(table_of(points).to_json())
    choice = {
        "judged_on": judged_on,
        "rule": f"{RULES[_measure(points)]}; {TIE}; what diverged counts as worst" if judged_on else None,
        "points": listed,
        "pick": picked.point.name,
        "why": why,
    }
    with replacing(out / CHOICE) as temporary:
        json_writer(choice)(temporary)
