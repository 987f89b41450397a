"""A model on the 19 tasks of VTAB-1k: `vitlab.vtab`, `vitlab vtab`.

    OUT/request.json              what was asked for
    OUT/TASK/seed-0/              a run folder for each task and seed
    OUT/light/SET/                with `light`: features of an image set, and the numbers of its tasks
    OUT/vtab.json, .csv, .md      the table

These files are the whole state: the same call continues, and finished tasks are not repeated.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from vitlab.data.vtab.image_sets import image_set
from vitlab.engines.engine import EngineName
from vitlab.errors import Stopped
from vitlab.files.store import locked, refuse_strange, refuse_unwritable, write_json
from vitlab.files.strict_json import read_json
from vitlab.jobs.job import Here, Job, Ray
from vitlab.jobs.mapping import Crew, Event, workers_of
from vitlab.models.fingerprint import fingerprint_of
from vitlab.paper.finetuning import RUNS
from vitlab.paper.models import name_of
from vitlab.paper.vtab import VtabTask
from vitlab.report.ledger import Entry, append, check_ledger
from vitlab.require import check_arguments, require
from vitlab.run_dir import weights_name
from vitlab.runs.measure.inputs import ModelOptions, open_model
from vitlab.runs.progress import Tally, announced, default_console, duration, say
from vitlab.runs.training.request import Request
from vitlab.runs.training.start import split_changes
from vitlab.runs.training.time_estimate import DAY
from vitlab.runs.vtab import light as lightly
from vitlab.runs.vtab.check import state_of
from vitlab.runs.vtab.finetuning import plan_task
from vitlab.runs.vtab.problems import PROBLEM, UNREADABLE, forget_problem, problem_of, said
from vitlab.runs.vtab.results import Score, VtabResult
from vitlab.runs.vtab.tasks import TaskLike, chosen_tasks
from vitlab.spec import Image, image_size
from vitlab.spec.changes import NO_CHANGES
from vitlab.spec.recipe import AUTOMATIC, CHOSEN, Execution
from vitlab.weights.load import load_start, located
from vitlab.world.device import default_workers, pick_device

REQUEST = "request.json"
BATCH = 32  # images per batch of a light evaluation


@dataclass(frozen=True)
class Measurement:
    """Jobs that measure a model, how long they take, and how to read the score of a task when they are done."""

    name: str  # of the model
    weights: str  # their hash
    device: str
    seconds: float
    jobs: Mapping[str, Sequence[Job]]  # by the key of the task; tasks may share a job
    score: Callable[[VtabTask], Score]


def vtab(
    model: str | Path,
    root: str | Path,
    out: str | Path = "vtab",
    *,
    tasks: Sequence[TaskLike] = (),
    light: bool = False,
    test_images: int | None = None,
    runs: int = RUNS,
    jobs: int | None = None,
    ray: str = "",
    image: Image | None = None,
    engine: EngineName = "torch",
    execution: Execution = AUTOMATIC,
    ledger: str | Path | None = None,
    command: str = "vitlab.vtab",
    yes: bool = False,
    quiet: bool = False,
    console: Console | None = None,
    changes: Mapping[str, object] = NO_CHANGES,
    **fields: object,
) -> VtabResult:
    """Measure a model on the tasks of VTAB-1k whose files are in `root`, and return the table beside the paper's.

    Every task is fine-tuned `runs` times with the recipe `vtab` and tested. With `light`, features are computed once,
    and a ridge regression and a linear probe learn from the same 1000 images; they are tested on `test_images` of each
    task, drawn at random (default: all). `tasks` are names of tasks or groups (default: all). Tasks whose files are
    missing or damaged are reported, and the others run. If it is stopped or killed, the same call continues. `finetune`
    describes the other arguments.
    """
    check_arguments(vtab, locals())
    require(runs >= 1, f"{runs} runs; give at least 1")
    execution, changed = split_changes(execution, {**changes, **fields})
    unused = ", ".join(field for field, _ in changed)
    require(not (light and unused), f"light=True trains no weights, so {unused} has no effect; leave it out")
    require(test_images is None or light, "test_images is for light=True; a fine-tuned model is tested on all images")
    require(test_images is None or test_images >= 1, f"test_images {test_images} must be at least 1")
    size = None if image is None else image_size(image)
    workers, folder, place = workers_of(jobs, ray), Path(out), Path(root)
    ledger = None if ledger is None else Path(ledger)
    check_ledger(ledger)
    screen = default_console(console, quiet=quiet)
    refuse_unwritable(folder)
    refuse_strange(folder, (REQUEST,))
    chosen = chosen_tasks(tasks)
    with locked(folder):
        ready, problems = _ready(place, chosen, screen)
        if light:
            asked = {"light": True, "image": size, "engine": engine, "test_images": test_images}
            loading = ModelOptions(image=size, device=execution.device)
            made = _light(model, loading, place, ready, folder, engine, execution, test_images)
        else:
            asked = {"light": False, "image": size, "runs": runs, "changes": dict(changed)}
            request = Request("", size, changes=changed, is_swept=True)
            made = _finetuning(model, request, place, ready, folder, execution, runs)
        _remember(folder, {**asked, "weights": made.weights})
        _announce(made, ready, screen, is_confirmed=yes)
        if isinstance(workers, Ray):
            workers = replace(workers, gpus=int(made.device.startswith("cuda")))
        with Crew(workers) as crew:
            result = _run(made, ready, crew, folder, screen, problems)
    result.table.save(folder / "vtab")
    if ledger is not None:
        _record(result, ledger, command, made.name, weights_name(located(model)))
    return result


def _ready(root: Path, tasks: Sequence[VtabTask], console: Console) -> tuple[tuple[VtabTask, ...], dict[str, str]]:
    """The tasks whose files are complete, and what is wrong with the others; raises if there are none."""
    ready, problems = [], {}
    for task in tasks:
        with announced(console, f"opening {task.name} ...", is_brief=True):
            found = state_of(root, task)
        if found.state == "ready":
            ready.append(task)
        else:
            problems[task.key] = found.problem
            say(console, f"{task.name} is not run, its files are {found.state}: {found.problem}", "yellow")
    advice = f"vitlab data check vtab {root} says what to download"
    require(bool(ready), f"none of the {len(tasks)} tasks can run; {advice}")
    return tuple(ready), problems


def _light(
    model: str | Path,
    loading: ModelOptions,
    root: Path,
    tasks: Sequence[VtabTask],
    out: Path,
    engine: EngineName,
    execution: Execution,
    test_images: int | None,
) -> Measurement:
    loaded = open_model(model, replace(loading, image=None), Console(quiet=True))
    weights = fingerprint_of(loaded)
    if loading.image is not None:
        loaded.resize(loading.image)
    sets: dict[str, list[VtabTask]] = {}
    for task in tasks:
        sets.setdefault(image_set(task).key, []).append(task)
    device = pick_device(loading.device)
    workers = default_workers(device) if execution.workers == CHOSEN else execution.workers
    how = (located(model), loading, engine, execution.micro_batch or BATCH, workers, execution.max_bad, test_images)
    found, images = {}, 0
    for key, own in sets.items():
        folder = out / "light" / key
        job = Job(key, lightly.run_light, lightly.LightWork(root, tuple(own), folder, *how), folder, DONE_LIGHTLY)
        found |= {task.key: [job] for task in own}
        if not job.is_done():
            tested = own[0].test.images
            tested = tested if test_images is None else min(tested, test_images)
            images += own[0].train.images + own[0].validation.images + tested
    return Measurement(
        name_of(loaded.spec),
        weights,
        str(device),
        lightly.estimated_seconds(loaded, images),
        found,
        lambda task: lightly.read_light(out / "light" / image_set(task).key, task),
    )


DONE_LIGHTLY = (lightly.RESULT, PROBLEM)


def _finetuning(
    model: str | Path,
    request: Request,
    root: Path,
    tasks: Sequence[VtabTask],
    out: Path,
    execution: Execution,
    runs: int,
) -> Measurement:
    start = load_start(model)
    plans = {task.key: plan_task(start, root, task, out / task.key, request, execution, range(runs)) for task in tasks}
    jobs = {key: plan.jobs() for key, plan in plans.items()}
    seconds = sum(plan.seconds * sum(not job.is_done() for job in jobs[key]) for key, plan in plans.items())
    device = next(iter(plans.values())).specs[0].execution.device
    return Measurement(
        name_of(start.model.spec), start.sha256, device, seconds, jobs, lambda task: plans[task.key].score()
    )


def _remember(out: Path, asked: dict[str, object]) -> None:
    """Write what is asked for; if the folder holds another measurement, raise."""
    wanted = json.loads(json.dumps(asked, allow_nan=False, default=str))
    if not (out / REQUEST).exists():
        write_json(out / REQUEST, wanted)
    before = read_json(out / REQUEST)
    require(isinstance(before, dict), f"{out / REQUEST} does not describe a measurement; choose another out=")
    assert isinstance(before, dict)
    other = sorted(name for name in {**before, **wanted} if before.get(name) != wanted.get(name))
    require(not other, f"{out} holds another measurement: {', '.join(other)} differ; choose another out=")


def _announce(made: Measurement, tasks: Sequence[VtabTask], console: Console, *, is_confirmed: bool) -> None:
    """Print what will be done and how long it takes; raise if that is days on a CPU and not confirmed."""
    jobs = {job.name: job for own in made.jobs.values() for job in own}
    left = sum(not job.is_done() for job in jobs.values())
    what = f"tasks: {len(tasks)}; {left} of {len(jobs)} jobs to do"
    say(console, f"vtab    {what}, about {duration(made.seconds)} on {made.device}")
    remedy = "confirm with yes=True, or give light=True, tasks=, runs=1, image= or schedule.total="
    is_allowed = made.seconds < DAY or not made.device.startswith("cpu") or is_confirmed
    require(is_allowed, f"this would take about {duration(made.seconds)} on this CPU; {remedy}")


def _run(
    made: Measurement,
    tasks: Sequence[VtabTask],
    crew: Crew,
    out: Path,
    console: Console,
    problems: dict[str, str],
) -> VtabResult:
    jobs = list({job.name: job for own in made.jobs.values() for job in own}.values())
    for job in jobs:
        forget_problem(job)
    done = sum(job.is_done() for job in jobs)
    with Tally(console, len(jobs), done, has_bar=not isinstance(crew.workers, Here)) as tally:
        code = crew.map(jobs, console, partial(_tell, tally))
    if code:
        raise Stopped(code, out, "the same command")
    scores = []
    for task in tasks:
        wrong = next((problem for job in made.jobs[task.key] if (problem := problem_of(job))), "")
        try:
            scores += [] if wrong else [made.score(task)]
        except UNREADABLE as error:
            wrong = said(error)
        if wrong:
            problems[task.key] = wrong
    return VtabResult(tuple(scores), problems)


def _tell(tally: Tally, job: Job, event: Event, words: str) -> None:
    tally.tell(job.name, event, words or (problem_of(job) if event == "finished" else ""))


def _record(result: VtabResult, ledger: Path, command: str, model: str, weights: str) -> None:
    entries = [
        Entry(
            model=model,
            data=f"VTAB-1k, {score.task.name}",
            metric=f"top-1 %, {method}",
            got=score.mean(method),
            n=score.count,
            command=command,
            runs=len(values),
            weights=weights,
            task=score.task.name,
        )
        for score in result.scores
        for method, values in score.runs.items()
    ]
    append(ledger, entries)
