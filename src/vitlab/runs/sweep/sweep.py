"""The paper's protocol of fine-tuning: try a grid on a development split, take the best, retrain on everything, test.

    OUT/sweep.json         what was asked for; something else in the same folder is refused
    OUT/contents.npz       what the images hold, which must not change
    OUT/grid/POINT/        a run folder for each point, trained without the development images and judged on them
    OUT/choice.json        the points, their numbers, the pick and why; points.csv, .md and .json are the table of it
    OUT/final/seed-N/      a run folder for each seed, trained on everything with what was picked, and tested
    OUT/result.json        mean and deviation; .csv and .md beside it

Nothing else is remembered: a sweep that was killed is started again, and what is finished is not run again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console

from vitlab.changes import NO_CHANGES
from vitlab.data.source import Source
from vitlab.jobs.job import Here, Processes, Ray, Workers
from vitlab.jobs.on_ray import require_ray
from vitlab.paper.finetuning import RUNS
from vitlab.recipe import AUTOMATIC, Execution
from vitlab.report.ledger import check_ledger
from vitlab.require import require
from vitlab.run_dir import RESULT
from vitlab.runs.progress import default_console, say
from vitlab.runs.sweep.grid import SweepOptions
from vitlab.runs.sweep.plan import make_plan
from vitlab.runs.sweep.request import SWEEP, remember, remember_contents
from vitlab.runs.sweep.results import Outcome, record, results_of, write_table
from vitlab.runs.sweep.selection import pick, table_of, write_choice
from vitlab.runs.training.data import NO_SOURCES, Data, named_sources
from vitlab.runs.training.start import split_changes
from vitlab.spec import Image, image_size
from vitlab.store import locked, refuse_strange, refuse_unwritable

RAY_JOBS = 2  # at a time, by default


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
    """Fine-tune as in the paper: try a grid on a development split, retrain the best on everything, and test.

    `grid` gives the values of fields to try, `{"schedule.peak": (1e-3, 3e-3)}`; `rates` is short for that field. The
    search "optuna" draws `trials` points from `space`, `{"schedule.peak": "log:1e-4:1e-1"}`. `jobs` runs train at a
    time, each in its own process, or on `ray`. `finetune` describes the other arguments. If it is stopped or killed,
    the same call continues.
    """
    require(search == "grid" or trials >= 1, f"{trials} trials; a search needs at least 1")
    specs, sources = named_sources(data, validation, test)
    execution, changed = split_changes(execution, {**changes, **fields})
    options = SweepOptions(
        recipe=recipe,
        rates=tuple(rates),
        grid=_texts(grid),
        space=_texts(space),
        trials=trials if search == "optuna" else 0,
        also=tuple(also),
        seeds=seeds,
        image=None if image is None else image_size(image),
        validation=specs["validation"],
        held_out=held_out,
        teacher=teacher,
        epochs=epochs,
        changes=changed,
        execution=execution,
        workers=workers_of(jobs, ray),
        is_confirmed=yes,
    )
    require(
        not sources or isinstance(options.workers, Here),
        "data that is a Python object is open in this process only; leave out jobs and ray, or give a string such as "
        "folder:photos",
    )
    ledger = None if ledger is None else Path(ledger)
    check_ledger(ledger)
    screen = default_console(console, quiet=quiet)
    outcome = run_sweep(model, specs["data"], specs["test"], Path(out), options, screen, sources=sources)
    if ledger is not None:
        record([outcome], ledger, command)
    return outcome


def run_sweep(
    model: str | Path,
    data: str,
    test: str,
    out: Path,
    options: SweepOptions,
    console: Console,
    task: str = "",
    sources: Mapping[str, Source] = NO_SOURCES,
) -> Outcome:
    """Pick on a development split, retrain on everything with every seed, and test; raises Stopped.

    `task` is the paper's name of the data, if it is one of its sets.
    """
    require(options.seeds >= 1, f"{options.seeds} seeds; at least 1 is needed to report anything")
    require(bool(test), "a sweep reports on test images; give --test")
    refuse_unwritable(out)
    refuse_strange(out, (SWEEP,))
    plan = make_plan(model, data, test, out, options, console, sources)
    plan.announce()
    with locked(out), plan.crew:
        remember(out, plan.asked())
        remember_contents(out, plan.sets, plan.fingerprints, console)
        points = plan.judge_all()
        picked, why = pick(points)
        write_table(table_of(points), out, "points")
        write_choice(out, plan.split if plan.is_picking else None, points, picked, why)
        if len(points) > 1:
            console.print(table_of(points).terminal())
        say(console, f"pick    {picked.point.name}: {why}")
        outcome = plan.finish(picked, len(points), task)
        write_table(results_of([outcome]), out, Path(RESULT).stem)
    return outcome


def workers_of(jobs: int | None, ray: str) -> Workers:
    """Where the runs of a sweep train."""
    require(jobs is None or jobs >= 1, f"--jobs {jobs}; at least 1 run at a time is needed")
    if ray:
        require_ray()  # before the weights take their time
        return Ray(ray, jobs or RAY_JOBS)
    return Processes(jobs) if jobs is not None and jobs > 1 else Here()


def _texts(given: Mapping[str, object] | Sequence[str]) -> tuple[str, ...]:
    """FIELD=VALUES as on a command line."""
    if not isinstance(given, Mapping):
        return tuple(given)
    return tuple(
        f"{field}={values if isinstance(values, str) else ','.join(map(str, values))}"  # pyrefly: ignore
        for field, values in given.items()
    )
