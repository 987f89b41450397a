"""A run from Python: its model, its numbers, every event; how to continue it, and how to repeat it."""

import functools
import html
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from vitlab.files.store import MANIFEST
from vitlab.files.strict_json import read_json
from vitlab.files.user_files import as_path, read_regular
from vitlab.models.build import Model
from vitlab.report.tables import Cell, Results, Tabular
from vitlab.require import check_arguments, require
from vitlab.run_dir import CHECKPOINTS, CONTENTS, LARGEST_RECORD, MODEL, REPORT, RESULT, RUN, RunDir, RunSpec, check_new
from vitlab.runs.progress import default_console, describe, say
from vitlab.runs.training.data import Data, named_sources
from vitlab.runs.training.finishing import read_result
from vitlab.runs.training.trainer import InMemory, Watcher, check_watcher, train_or_stop
from vitlab.spec.changes import NO_CHANGES, flattened, with_fields
from vitlab.spec.recipe import VALIDATION, measure_of
from vitlab.train.checkpoints.files import STATE
from vitlab.train.streams import resolved
from vitlab.weights.load import load_model, located
from vitlab.world.device import differences
from vitlab.world.group import join

SHOWN = 12  # events in a notebook, the last


class History(list[dict[str, Any]]):
    """Every event of a run in order, each a dictionary with `event`, `time` and its values."""

    def of(self, kind: str) -> "History":
        """The events of one kind, such as "step" or "validation"."""
        return History(event for event in self if event["event"] == kind)

    def column(self, kind: str, name: str) -> dict[int, float]:
        """A value by step, such as `column("step", "loss")`; a step repeated after a crash counts once."""
        return {event["step"]: float(event[name]) for event in self if event["event"] == kind}

    def __repr__(self) -> str:
        kinds = dict.fromkeys(event["event"] for event in self)
        return f"History({len(self):,} events: {', '.join(f'{len(self.of(kind)):,} {kind}' for kind in kinds)})"

    def _repr_html_(self) -> str:
        shown = self[-SHOWN:]
        names = list(dict.fromkeys(name for event in shown for name in event if name != "time"))
        rows = tuple(tuple(_cell(event.get(name)) for name in names) for event in shown)
        return f"<p>{html.escape(repr(self))}, the last {len(shown)}:</p>{Results(tuple(names), rows)._repr_html_()}"


class Run:
    """A run folder, finished or not: `model`, `best`, `result`, `history`, and `resume` to continue it."""

    def __init__(self, path: str | Path) -> None:
        self.path = RunDir.open(as_path(path, "path")).path

    def __fspath__(self) -> str:
        """A run is also the path of its model: `vitlab.predict(run, images)`."""
        return str(self.path)

    @functools.cached_property
    def spec(self) -> RunSpec:
        """The run as it was requested: model, recipe, data, seed, execution."""
        return RunDir(self.path).spec()

    @property
    def is_finished(self) -> bool:
        """Whether the run has trained to its end and its result is written."""
        return (self.path / RESULT).is_file()

    @functools.cached_property
    def model(self) -> Model:
        """The trained model in evaluation mode, with class names and preprocessing; raises before the run has one."""
        require((self.path / MODEL).is_dir(), f"{self.path} has no model yet; finish the run with Run.resume()")
        return load_model(self.path / MODEL).eval()

    @property
    def result(self) -> dict[str, Any]:
        """The numbers at the end of the run; empty before."""
        return read_result(RunDir(self.path)) if self.is_finished else {}

    @property
    def best(self) -> dict[str, Any]:
        """The numbers of the best validation, with its step; empty without validation images."""
        return max(self.history.of(VALIDATION), key=_measured, default={})

    @property
    def history(self) -> History:
        """Every event so far."""
        return History(RunDir(self.path).events())

    @property
    def report(self) -> Path | None:
        """The page report.html of a finished run, if one was written."""
        return self.path / REPORT if (self.path / REPORT).is_file() else None

    def resume(
        self,
        *,
        data: Data = "",
        validation: Data = "",
        test: Data = "",
        teacher: str | Path | None = None,
        allow_changed: bool = False,
        on_event: Watcher | None = None,
        quiet: bool = False,
        console: Console | None = None,
        changes: Mapping[str, object] = NO_CHANGES,
        **fields: object,
    ) -> "Run":
        """Continue a run that was stopped or killed, from its newest checkpoint; it ends as if never interrupted.

        `data`, `validation`, `test` and `teacher` are needed if they have moved, or were torch Datasets. Other keywords
        are fields of the `Execution`, such as `workers=2`. See `vitlab resume --help`.
        """
        check_watcher(on_event)
        specs, sources = named_sources(data, validation, test)
        places = specs | {"teacher": "" if teacher is None else str(located(teacher).resolve())}
        run = RunDir(self.path)
        spec, given = run.spec(), flattened({**changes, **fields})
        execution = with_fields(spec.execution, given)
        if "streams" in dict(given):
            execution = replace(execution, streams=resolved(spec.model, spec.recipe, execution))
        with join(execution.device, execution.timeout) as world:
            run.writes = world.leads
            train_or_stop(
                run,
                default_console(console, quiet=quiet or not world.leads),
                memory=InMemory(sources=sources),
                places=places,
                execution=execution,
                allow_changed=allow_changed,
                world=world,
                on_event=on_event if world.leads else None,
            )
        return Run(self.path)

    def __repr__(self) -> str:
        state = "finished" if self.is_finished else "not finished"
        return f"Run({str(self.path)!r}, {self.spec.kind}, {state})"

    def _repr_html_(self) -> str:
        sets = {name: found for name, found in self.result.items() if isinstance(found, Mapping) and "count" in found}
        rows = tuple((name, describe(found)) for name, found in sets.items())
        recipe = self.spec.recipe
        about = f"{self!r}: {recipe.name}, {recipe.schedule.total:,} steps of {recipe.batch:,} images"
        return f"<p>{html.escape(about)}</p>" + (Results(("images", "result"), rows)._repr_html_() if rows else "")


def open_run(path: str | Path) -> Run:
    """Open the run in a folder, finished or not."""
    check_arguments(open_run, locals())
    return Run(path)


def _measured(event: Mapping[str, Any]) -> float:
    """The number that decides which validation is best; NaN is the worst."""
    value = float(event[measure_of(event)])
    return value if value == value else float("-inf")


def _cell(value: object) -> Cell:
    return value if value is None or isinstance(value, int | float | str) else str(value)


# -- A second run of the same recipe -------------------------------------------------------------


@dataclass(frozen=True)
class Comparison(Tabular):
    """Two runs of the same recipe: how many steps had the same loss, and whether the last states are the same bits."""

    steps: int
    same_losses: int
    largest_difference: float
    same_bits: bool
    changed: tuple[str, ...]  # reasons why the bits may differ

    @property
    def table(self) -> Results:
        """The comparison as one row."""
        columns = ("steps", "equal losses", "largest difference", "same last state")
        cells = (self.steps, self.same_losses, self.largest_difference, "yes" if self.same_bits else "no")
        return Results(columns, (cells,))

    @property
    def is_same(self) -> bool:
        """Whether every loss and every bit of the last state is the same."""
        return self.same_bits and self.same_losses == self.steps

    def summary(self) -> str:
        """The comparison in a sentence or two."""
        equal = "identical" if self.same_bits else "not identical"
        said = (
            f"{self.same_losses:,} of {self.steps:,} losses are equal (largest difference "
            f"{self.largest_difference:g}); the last weights and optimizer state are {equal}, bit for bit"
        )
        reasons = "; ".join(self.changed)
        return f"{said}\nthey may differ because {reasons}" if reasons and not self.same_bits else said


def reproduce(
    path: str | Path,
    out: str | Path | None = None,
    *,
    allow_changed: bool = False,
    on_event: Watcher | None = None,
    quiet: bool = False,
    console: Console | None = None,
) -> Comparison:
    """Train the finished run of `path` again in the folder `out` (default: PATH-again), and compare step by step.

    A second run that was interrupted continues; one that is finished is compared as it is. The data must be what it was
    in the first run, unless `allow_changed`.
    """
    check_arguments(reproduce, locals())
    check_watcher(on_event)
    path, screen = Path(path), default_console(console, quiet=quiet)
    again = path.with_name(f"{path.name}-again") if out is None else Path(out)
    run = RunDir.open(path)
    spec = run.spec()
    require((path / RESULT).is_file(), f"{path} is not finished; finish it first with: {run.command}")
    if (again / RUN).is_file():
        twin = RunDir.open(again)
        require(twin.spec() == spec, f"{again} holds another run; choose another out=")
        if (again / RESULT).is_file():
            say(screen, f"comparing with the existing run in {again}; to train again, choose another out=")
    else:
        check_new(again)
        twin = RunDir.create(again, spec, cast(dict, run.card()))
    twin.command = f"vitlab reproduce {shlex.quote(str(path))}"
    if (path / CONTENTS).is_file() and not (again / CHECKPOINTS).exists():
        twin.write_bytes(CONTENTS, read_regular(path / CONTENTS, LARGEST_RECORD))  # what the data must still hold
    with twin.withdrawn_unless_begun():
        train_or_stop(twin, screen, allow_changed=allow_changed, on_event=on_event)
    return compare(run, twin)


def compare(run: RunDir, twin: RunDir) -> Comparison:
    """The losses step by step, and the hashes of the last checkpoints."""
    ours, theirs = run.history("step", "loss"), twin.history("step", "loss")
    steps = sorted(set(ours) | set(theirs))
    same = sum(str(ours.get(step)) == str(theirs.get(step)) for step in steps)  # NaN is NaN, a missing step is not
    largest = max((abs(ours[step] - theirs[step]) for step in steps if step in ours and step in theirs), default=0.0)
    return Comparison(len(steps), same, largest, _last_hashes(run) == _last_hashes(twin), _changed(run, twin))


def _changed(run: RunDir, twin: RunDir) -> tuple[str, ...]:
    """How the machine of the second run differs from that of the first, and what makes one of them not exact."""
    machines = [_read_last(one, STATE)["environment"] for one in (run, twin)]
    first = [f"the first run is not exact ({why})" for why in run.not_exact()]
    return (*differences(*machines), *first, *(f"the data has changed ({why})" for why in twin.not_exact()))


def _last_hashes(run: RunDir) -> dict[str, object]:
    """SHA-256 of the tensors of the last checkpoint."""
    return {name: entry for name, entry in _read_last(run, MANIFEST).items() if name.endswith(".safetensors")}


def _read_last(run: RunDir, name: str) -> dict[str, Any]:
    """A JSON file of the newest checkpoint."""
    return cast(dict[str, Any], read_json(max((run.path / CHECKPOINTS).glob("step-*")) / name))
