"""Points that a sampler of optuna chooses from what it has seen, instead of a grid; needs the extra `search`."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitlab.require import require
from vitlab.runs.sweep.grid import PEAK, Point, point_name
from vitlab.runs.sweep.selection import Judged

KINDS = ("log:LOW:HIGH", "linear:LOW:HIGH", "whole:LOW:HIGH", "choice:A,B,...")
SEED = 0  # of the sampler
DIGITS = 4  # of a number that is drawn: what stands in the run's recipe is exactly what was judged


@dataclass(frozen=True)
class Range:
    """The values of a field that may be drawn."""

    kind: str
    low: float = 0.0
    high: float = 0.0
    values: tuple[str, ...] = ()


def read_space(texts: Iterable[str]) -> dict[str, Range]:
    """Fields and their ranges from `schedule.peak=log:1e-4:1e-1` and the like."""
    space: dict[str, Range] = {}
    for text in texts:
        field, _, rest = text.partition("=")
        kind, _, listed = rest.partition(":")
        field = field.strip()
        require(bool(field), f"--space {text!r} names no field; write {PEAK}=log:1e-4:1e-1")
        require(field not in space, f"--space has {field} twice")
        space[field] = _range(text, kind, listed)
    require(bool(space), f"a search needs a --space, such as {PEAK}=log:1e-4:1e-1")
    return space


def _range(text: str, kind: str, listed: str) -> Range:
    if kind == "choice":
        values = tuple(value.strip() for value in listed.split(","))
        require(all(values) and len(set(values)) == len(values), f"--space {text!r} needs different values")
        return Range(kind, values=values)
    known = f"--space {text!r}: after the field comes one of {', '.join(KINDS)}"
    require(kind in ("log", "linear", "whole"), known)
    try:
        low, high = map(int if kind == "whole" else float, listed.split(":"))
    except ValueError:
        raise ValueError(known) from None
    require(low < high < float("inf"), f"--space {text!r}: {low:g} is not below {high:g}")
    require(kind != "log" or low > 0, f"--space {text!r}: a logarithm needs a low end above 0")
    return Range(kind, low, high)


def corners(recipe: str, space: Mapping[str, Range]) -> list[Point]:
    """The two ends of every range, and every value of a choice: what can be tried out before anything is drawn."""
    ends = {field: _ends(values) for field, values in space.items()}
    number = max(map(len, ends.values()))
    return [_point(recipe, n, {field: own[n % len(own)] for field, own in ends.items()}) for n in range(number)]


def _ends(values: Range) -> Sequence[int | float | str]:
    return values.values or (values.low, values.high)


def require_optuna() -> Any:
    """The optuna module, or an error that names the extra."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it imports
            import optuna
    except ImportError:
        raise ModuleNotFoundError("--search optuna needs optuna: pip install 'vitlab[search]'") from None
    return optuna


def search(
    recipe: str,
    space: Mapping[str, Range],
    trials: int,
    at_once: int,
    judge: Callable[[list[Point]], Sequence[Judged]],
) -> list[Judged]:
    """Draw `trials` points, `at_once` of them before the next are drawn, and have them judged; all of them in order.

    Everything the sampler knows is its seed and what was judged, told in order: a search that was killed is drawn again
    from the first trial on, finds the runs of the points it draws, and so continues exactly.
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
            study.tell(trial, judged.measured or 0.0)  # a point that diverged is as bad as one that is always wrong
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
