"""Points that optuna draws from the results so far, instead of a grid; needs the extra `search`."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitlab.require import require
from vitlab.runs.sweep.grid import PEAK, Point, point_name
from vitlab.runs.sweep.selection import Judged

KINDS = ("log:LOW:HIGH", "linear:LOW:HIGH", "whole:LOW:HIGH", "choice:A,B,...")
SEED = 0  # of the sampler
DIGITS = 4  # of a number that is drawn, in the run's recipe as in the point's name


@dataclass(frozen=True)
class Range:
    """The values of a field that may be drawn."""

    kind: str
    low: float = 0.0
    high: float = 0.0
    values: tuple[str, ...] = ()


def read_space(texts: Iterable[str]) -> dict[str, Range]:
    """Fields and their ranges from texts such as `schedule.peak=log:1e-4:1e-1`."""
    space: dict[str, Range] = {}
    for text in texts:
        field, _, rest = text.partition("=")
        kind, _, listed = rest.partition(":")
        field = field.strip()
        require(bool(field), f"space {text!r} names no field; write {PEAK}=log:1e-4:1e-1")
        require(field not in space, f"space has {field} twice")
        space[field] = _range(text, kind, listed)
    require(bool(space), f"a search needs space=, such as {PEAK}=log:1e-4:1e-1")
    return space


def _range(text: str, kind: str, listed: str) -> Range:
    if kind == "choice":
        values = tuple(value.strip() for value in listed.split(","))
        require(all(values) and len(set(values)) == len(values), f"space {text!r} needs different values")
        return Range(kind, values=values)
    known = f"space {text!r}: after the field comes one of {', '.join(KINDS)}"
    require(kind in ("log", "linear", "whole"), known)
    try:
        low, high = map(int if kind == "whole" else float, listed.split(":"))
    except ValueError:
        raise ValueError(known) from None
    require(low < high < float("inf"), f"space {text!r}: {low:g} is not below {high:g}")
    require(kind != "log" or low > 0, f"space {text!r}: a logarithm needs a low end above 0")
    return Range(kind, low, high)


def corners(recipe: str, space: Mapping[str, Range]) -> list[Point]:
    """Points at both ends of every range and at every value of a choice, to check before anything is drawn."""
    ends = {field: values.values or (values.low, values.high) for field, values in space.items()}
    number = max(map(len, ends.values()))
    return [_point(recipe, n, {field: own[n % len(own)] for field, own in ends.items()}) for n in range(number)]


def require_optuna() -> Any:
    """The optuna module, or an error that names the extra."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it imports
            import optuna
    except ImportError:
        raise ModuleNotFoundError("search='optuna' needs optuna: pip install 'vitlab[search]'") from None
    return optuna


def search(
    recipe: str,
    space: Mapping[str, Range],
    trials: int,
    at_once: int,
    judge: Callable[[list[Point]], Sequence[Judged]],
) -> list[Judged]:
    """Draw `trials` points, `at_once` at a time, and return them judged, in order.

    The sampler depends only on its seed and on the results in order. A killed search therefore draws the same points
    again, finds their runs, and continues exactly.
    """
    optuna = require_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=SEED))
    allowed = {field: _distribution(optuna, values) for field, values in space.items()}
    found: list[Judged] = []
    while len(found) < trials:
        asked = [study.ask(allowed) for _ in range(min(at_once, trials - len(found)))]
        points = [_point(recipe, trial.number, trial.params) for trial in asked]
        for trial, judged in zip(asked, judge(points), strict=True):
            study.tell(trial, judged.measured or 0.0)  # a point that diverged counts as always wrong
            found.append(judged)
    return found


def _distribution(optuna: Any, values: Range) -> Any:
    kinds = optuna.distributions
    if values.kind == "choice":
        return kinds.CategoricalDistribution(values.values)
    if values.kind == "whole":
        return kinds.IntDistribution(int(values.low), int(values.high))
    return kinds.FloatDistribution(values.low, values.high, log=values.kind == "log")


def _point(recipe: str, number: int, drawn: Mapping[str, Any]) -> Point:
    words = [(field, f"{v:.{DIGITS}g}" if isinstance(v, float) else str(v)) for field, v in drawn.items()]
    return Point(f"trial-{number:03},{point_name(words)}"[:200], recipe, tuple(words))
