"""A run from Python: its model, its numbers, every event, and how to continue it."""

import functools
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from rich.console import Console

from vitlab.changes import NO_CHANGES, flattened, with_fields
from vitlab.errors import Stopped
from vitlab.models.build import Model
from vitlab.report.tables import Cell, Results
from vitlab.require import require
from vitlab.run_dir import MODEL, REPORT, RESULT, RunDir, RunSpec
from vitlab.runs.progress import default_console
from vitlab.runs.training.data import Data, named_sources
from vitlab.runs.training.finishing import read_result
from vitlab.runs.training.trainer import Loaded, Places, Watcher, train_run
from vitlab.train.loop import JUDGE, measure_of
from vitlab.weights.load import load_model, located
from vitlab.world.group import join

SHOWN = 12  # events in a notebook, the last


class History(Sequence[dict[str, Any]]):
    """Every event of a run in order, each a dictionary with `event`, `time` and its values."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        self._events = list(events)

    @overload
    def __getitem__(self, index: int, /) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice, /) -> dict[str, Any] | list[dict[str, Any]]:
        return self._events[index]

    def __len__(self) -> int:
        return len(self._events)

    def of(self, kind: str) -> "History":
        """The events of one kind, such as "step" or "validation"."""
        return History([event for event in self._events if event["event"] == kind])

    def column(self, kind: str, name: str) -> dict[int, float]:
        """A value by step, such as `column("step", "loss")`; a step repeated after a crash counts once."""
        return {event["step"]: float(event[name]) for event in self._events if event["event"] == kind}

    def __repr__(self) -> str:
        kinds = dict.fromkeys(event["event"] for event in self._events)
        return f"History({len(self):,} events: {', '.join(f'{len(self.of(kind)):,} {kind}' for kind in kinds)})"

    def _repr_html_(self) -> str:
        shown = self._events[-SHOWN:]
        names = list(dict.fromkeys(name for event in shown for name in event if name != "time"))
        rows = tuple(tuple(_cell(event.get(name)) for name in names) for event in shown)
        return f"<p>{html.escape(repr(self))}, the last {len(shown)}:</p>{Results(tuple(names), rows)._repr_html_()}"


class Run:
    """A run folder, finished or not: `model`, `best`, `result`, `history`, and `resume` to continue it."""

    def __init__(self, path: str | Path) -> None:
        self.path = RunDir.open(Path(path)).path

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
        require(
            (self.path / MODEL).is_dir(),
            f"{self.path} has no model yet: the run is not finished; continue it with Run.resume()",
        )
        return load_model(self.path / MODEL).eval()

    @property
    def result(self) -> dict[str, Any]:
        """The numbers at the end of the run; empty before."""
        return read_result(RunDir(self.path)) if self.is_finished else {}

    @property
    def best(self) -> dict[str, Any]:
        """The numbers of the best validation, with its step; empty without validation images."""
        found = self.history.of(JUDGE)
        return max(found, key=_measured, default={})

    @property
    def history(self) -> History:
        """Every event so far."""
        return History(list(RunDir(self.path).events()))

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
        specs, sources = named_sources(data, validation, test)
        places = Places(**specs, teacher="" if teacher is None else str(located(teacher).resolve()))
        run = RunDir(self.path)
        execution = with_fields(run.spec().execution, flattened({**changes, **fields}))
        with join(execution.device, execution.timeout) as world:
            run.writes = world.leads
            try:
                code = train_run(
                    run,
                    default_console(console, quiet=quiet or not world.leads),
                    loaded=Loaded(sources=sources),
                    places=places,
                    execution=execution,
                    allow_changed=allow_changed,
                    world=world,
                    on_event=on_event if world.leads else None,
                )
            except KeyboardInterrupt:
                raise Stopped(path=self.path if world.leads else None, command=run.command) from None
        return ended(run, code)

    def __repr__(self) -> str:
        state = "finished" if self.is_finished else "not finished"
        return f"Run({str(self.path)!r}, {self.spec.kind}, {state})"

    def _repr_html_(self) -> str:
        sets = {name: found for name, found in self.result.items() if isinstance(found, Mapping)}
        names = list(dict.fromkeys(number for found in sets.values() for number in found))
        rows = tuple((name, *(_cell(found.get(number)) for number in names)) for name, found in sets.items())
        recipe = self.spec.recipe
        about = f"{self!r}: {recipe.name}, {recipe.schedule.total:,} steps of {recipe.batch:,} images"
        return f"<p>{html.escape(about)}</p>" + (Results(("set", *names), rows)._repr_html_() if rows else "")


def open_run(path: str | Path) -> Run:
    """Open the run in a folder, finished or not."""
    return Run(path)


def ended(run: RunDir, code: int) -> Run:
    """The run that has ended; raises Stopped where a signal stopped it. Only the rank that writes names its folder."""
    if code:
        raise Stopped(code, run.path if run.writes else None, run.command)
    return Run(run.path)


def _measured(event: Mapping[str, Any]) -> float:
    """The number that decides which validation is best; NaN is the worst."""
    value = float(event[measure_of(event)])
    return value if value == value else float("-inf")


def _cell(value: object) -> Cell:
    return value if value is None or isinstance(value, int | float | str) else str(value)
