"""The paper's protocol of fine-tuning: try a grid on a development split, train the best on all images, test.

    OUT/sweep.json         what was asked for; a sweep that differs is refused in the same folder
    OUT/contents.npz       a record of the images, which must not change
    OUT/grid/POINT/        a run folder for each point, trained without the development images and judged on them
    OUT/choice.json        the points, their results, the pick and why; points.csv, .md and .json have the same table
    OUT/final/seed-N/      a run folder for each seed: the best point, trained on all images and tested
    OUT/result.json        mean and deviation; also .csv and .md

These files are the whole state: a sweep that was killed is started again, and finished runs are not repeated.
"""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from vitlab.data.source import Source
from vitlab.errors import InvalidValue
from vitlab.files.store import locked, refuse_strange, refuse_unwritable
from vitlab.jobs.job import Here
from vitlab.jobs.mapping import workers_of
from vitlab.paper.finetuning import RUNS
from vitlab.report.ledger import check_ledger
from vitlab.require import check_arguments, require
from vitlab.run_dir import RESULT, SWEEP
from vitlab.runs.progress import default_console, say
from vitlab.runs.sweep.grid import SweepOptions
from vitlab.runs.sweep.plan import make_plan
from vitlab.runs.sweep.request import remember, remember_contents
from vitlab.runs.sweep.results import Outcome, record
from vitlab.runs.sweep.selection import pick, table_of, write_choice
from vitlab.runs.training.data import NO_SOURCES, Data, named_sources
from vitlab.runs.training.request import Request
from vitlab.runs.training.start import split_changes
from vitlab.spec import Image, image_size
from vitlab.spec.changes import NO_CHANGES
from vitlab.spec.recipe import AUTOMATIC, Execution


def sweep(
    model: str | Path,
    data: Data,
    test: Data,
    out: str | Path = "sweep",
    *,
    recipe: str = "",
    rates: Sequence[float] = (),
    grid: Mapping[str, Sequence[object]] | Sequence[str] = (),
    search: Literal["grid", "optuna"] = "grid",
    trials: int = 20,
    space: Mapping[str, str] | Sequence[str] = (),
    also: Sequence[str] = (),
    seeds: int = RUNS,
    jobs: int | None = None,
    ray: str = "",
    image: Image | None = None,
    epochs: int | None = None,
    validation: Data = "",
    held_out: float | None = None,
    teacher: str | Path | None = None,
    execution: Execution = AUTOMATIC,
    ledger: str | Path | None = None,
    command: str = "vitlab.sweep",
    yes: bool = False,
    quiet: bool = False,
    console: Console | None = None,
    changes: Mapping[str, object] = NO_CHANGES,
    **fields: object,
) -> Outcome:
    """Fine-tune as in the paper: try a grid on a development split, train the best on all images, and test.

    `grid` gives the values of fields to try, `{"schedule.peak": (1e-3, 3e-3)}`; `rates` is short for that field. The
    search "optuna" draws `trials` points from `space`, `{"schedule.peak": "log:1e-4:1e-1"}`. `jobs` runs train at a
    time, each in its own process, or on `ray`. `finetune` describes the other arguments. If it is stopped or killed,
    the same call continues.
    """
    check_arguments(sweep, locals())
    require(search == "grid" or trials >= 1, f"{trials} trials; a search needs at least 1")
    specs, sources = named_sources(data, validation, test)
    execution, changed = split_changes(execution, {**changes, **fields})
    size = None if image is None else image_size(image)
    request = Request(
        specs["data"], size, specs["validation"], held_out, specs["test"], 0, changed, teacher, epochs, is_swept=True
    )
    options = SweepOptions(
        request=request,
        recipe=recipe,
        rates=_rates(rates),
        grid=_texts(grid),
        space=_texts(space),
        trials=trials if search == "optuna" else 0,
        also=tuple(also),
        seeds=seeds,
        execution=execution,
        workers=workers_of(jobs, ray),
        is_confirmed=yes,
    )
    is_readable = not sources or isinstance(options.workers, Here)
    require(is_readable, "jobs= and ray= need data that other processes can open: a string such as folder:photos")
    ledger = None if ledger is None else Path(ledger)
    check_ledger(ledger)
    outcome = run_sweep(model, Path(out), options, default_console(console, quiet=quiet), sources=sources)
    if ledger is not None:
        record([outcome], ledger, command)
    return outcome


def run_sweep(
    model: str | Path,
    out: Path,
    options: SweepOptions,
    console: Console,
    task: str = "",
    sources: Mapping[str, Source] = NO_SOURCES,
) -> Outcome:
    """Pick a point on a development split, train it on all images with every seed, and test; raises Stopped.

    `task` is the paper's name of the data, if it is one of its data sets.
    """
    require(bool(options.request.test), "a sweep reports on test images; give test=")
    refuse_unwritable(out)
    refuse_strange(out, (SWEEP,))
    plan = make_plan(model, out, options, console, sources)
    plan.announce()
    with locked(out), plan.crew:
        remember(out, plan.asked())
        remember_contents(out, plan.data.sets, plan.fingerprints, console)
        points = plan.judge_all()
        picked, why = pick(points)
        table = table_of(points)
        table.save(out / "points")
        write_choice(out, plan.split if plan.is_picking else None, points, picked, why)
        if len(points) > 1:
            console.print(table.terminal())
        say(console, f"pick    {picked.point.name}: {why}")
        outcome = plan.finish(picked, len(points), task)
        outcome.table.save(out / Path(RESULT).stem)
    return outcome


def _rates(given: Sequence[float]) -> tuple[float, ...]:
    rates: tuple[Any, ...] = (None,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if not all(isinstance(rate, Real) and not isinstance(rate, bool) for rate in rates):
        raise InvalidValue(f"is {given!r}; expected a list of learning rates, such as [0.001, 0.003]", field="rates")
    return rates


def _texts(given: Mapping[str, object] | Sequence[str]) -> tuple[str, ...]:
    """FIELD=VALUES, as on a command line."""
    if not isinstance(given, Mapping):
        return tuple(given)
    return tuple(
        f"{field}={values if isinstance(values, str) else ','.join(map(str, values))}"  # pyrefly: ignore - a sequence then
        for field, values in given.items()
    )
