"""What a sweep is going to do: every point and run resolved, checked and counted before the first begins."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from vitlab.data.fingerprint import fingerprint
from vitlab.data.source import Source
from vitlab.data.splits import development_split
from vitlab.errors import Stopped
from vitlab.jobs.job import Here, Job, Ray, Workers
from vitlab.jobs.mapping import Crew, Event
from vitlab.paper.models import name_of
from vitlab.require import require
from vitlab.run_dir import CONTENTS, RESULT, RunSpec
from vitlab.runs.progress import Tally, duration, say
from vitlab.runs.sweep.grid import Point, SweepOptions, points_of, read_grid
from vitlab.runs.sweep.point_run import check_same, reached, train_point
from vitlab.runs.sweep.request import FINGERPRINTS
from vitlab.runs.sweep.results import Outcome
from vitlab.runs.sweep.search import corners, read_space, require_optuna, search
from vitlab.runs.sweep.selection import DIVERGED, METRICS, Judged, divergence, judged, numbers_of
from vitlab.runs.training.data import NO_SOURCES, Opened, open_training_data, split_data
from vitlab.runs.training.request import Request, finetuning_spec
from vitlab.runs.training.time_estimate import DAY, estimated_seconds
from vitlab.runs.training.unused_settings import unread_fields
from vitlab.train.loop import measure_of
from vitlab.weights.load import StartWeights, load_start
from vitlab.world.device import pick_device


@dataclass(frozen=True)
class Plan:
    """All that was asked for, with the recipe resolved and the points listed; a search has none before it begins.

    Weights and data are loaded once, for all runs that are planned.
    """

    start: StartWeights
    taught: StartWeights | None  # the teacher
    opened: Opened
    out: Path
    options: SweepOptions
    base: RunSpec  # without anything that a point changes, on the split to pick on
    test: str
    sets: Mapping[str, Source]  # the images to train on, to pick on where they are a set of their own, and to test
    fingerprints: dict[str, str]  # of these
    points: tuple[Point, ...]
    seconds: float  # that the base may take
    console: Console
    crew: Crew
    sources: Mapping[str, Source] = field(default_factory=dict)  # sets that are objects of the caller, by name
    made: dict[tuple[Point, bool], RunSpec] = field(default_factory=dict)  # each is resolved once

    def asked(self) -> dict[str, object]:
        """What another sweep in this folder must agree on."""
        options, base = self.options, self.base
        found: dict[str, object] = {
            "format": "vitlab-sweep",
            "version": 1,
            "weights": base.start_sha256,
            "recipe": base.recipe.name,
            "image": list(base.recipe.image),
            "settings": dict(options.changes),
            "data": base.data,
            "validation": base.validation,
            "held_out": base.held_out,
            "test": self.test,
            FINGERPRINTS: self.fingerprints,
            "points": {point.name: {"recipe": point.recipe, **dict(point.changes)} for point in self.points},
            "seeds": options.seeds,
        }
        if base.teacher:
            found["teacher"] = base.teacher_sha256
        if options.trials:  # what is drawn depends on how many are judged before the next is drawn
            found["search"] = {"trials": options.trials, "space": list(options.space), "at_once": self.at_once}
        return found

    @property
    def at_once(self) -> int:
        """Runs at a time."""
        return 1 if isinstance(self.options.workers, Here) else self.options.workers.count

    @property
    def is_picking(self) -> bool:
        """Whether there is anything to judge."""
        return bool(self.options.trials) or len(self.points) > 1

    @property
    def split(self) -> str:
        """The images that points are judged on, in words."""
        return self.base.validation or f"{self.base.held_out:g} of the training images, held out"

    def judge_all(self) -> list[Judged]:
        """Every point with its development numbers."""
        options = self.options
        if not self.is_picking:
            point = self.points[0]
            return [Judged(point, self.run_of(point).recipe.schedule.peak)]
        found: list[Judged] = []
        if options.trials:
            space = read_space(options.space)
            found = search(self.base.recipe.name, space, options.trials, self.at_once, self.judge)
        return [*found, *self.judge(self.points)]

    def announce(self) -> None:
        """Say how much it is, and refuse what takes days on a CPU unless that is wanted."""
        tried, seeds = (len(self.points) + self.options.trials if self.is_picking else 0), self.options.seeds
        device = pick_device(self.base.execution.device)
        own = _images_seen(self.base)
        seen = [_images_seen(self.run_of(point)) for point in self.points] + [own] * self.options.trials
        seconds = self.seconds * ((sum(seen) if tried else 0) + seeds * max(seen)) / own
        what = f"{tried} points on {self.split}, then the best" if tried else "one point, nothing to pick;"
        say(
            self.console,
            f"sweep   {what} on everything, {seeds} x: {tried + seeds} runs, "
            f"about {duration(seconds)} on {device.type}",
        )
        require(
            seconds < DAY or device.type != "cpu" or self.options.is_confirmed,
            f"the sweep would take about {duration(seconds)} on this CPU; confirm with --yes, or reduce the number of "
            f"points or steps (--schedule.total), the resolution (--image) or the size of the model",
        )

    def run_of(self, point: Point, *, is_final: bool = False) -> RunSpec:
        """The run that judges a point, or that reports: on everything, and tested."""
        key = point, is_final
        if key not in self.made:
            base, options = self.base, self.options
            request = Request(
                base.data,
                options.image,
                base.validation,
                0.0 if is_final or base.validation else base.held_out,
                self.test if is_final else "",
                0,
                (*options.changes, *point.changes),
                options.teacher,
                options.epochs,
                is_swept=True,
            )
            if is_final:
                _check_validated(self.run_of(point))
            how = self.opened, request, options.execution, Console(quiet=True), self.taught
            self.made[key] = finetuning_spec(self.start, point.recipe, *how)
        return self.made[key]

    def judge(self, points: Sequence[Point]) -> list[Judged]:
        """Train the points that are not trained yet, and read what all of them reached."""
        runs = [self.run_of(point) for point in points]
        folders = [self.out / "grid" / point.name for point in points]
        self.train(folders, runs)
        return [judged(*one) for one in zip(points, runs, folders, strict=True)]

    def finish(self, picked: Judged, tried: int, task: str) -> Outcome:
        """Retrain what was picked with every seed, and test."""
        point, seeds = picked.point, range(self.options.seeds)
        runs = [replace(self.run_of(point, is_final=True), seed=seed) for seed in seeds]
        folders = [self.out / "final" / f"seed-{seed}" for seed in seeds]
        self.train(folders, runs)
        for folder in folders:
            if (folder / DIVERGED).exists():
                raise ArithmeticError(f"{point.name} diverged in {folder}: {divergence(folder)}")
        results = [numbers_of(folder, "test") for folder in folders]
        return Outcome(
            task=task,
            data=self.test,
            accuracies=tuple(100 * float(found[measure_of(found)]) for found in results),
            count=int(results[0]["count"]),
            recipe=point.recipe,
            learning_rate=picked.learning_rate,
            point=point.name,
            points=tried,
            metric=METRICS[measure_of(results[0])],
            model=name_of(self.start.model.spec),
            weights=self.start.path.name,
        )

    def train(self, folders: Sequence[Path], runs: Sequence[RunSpec]) -> None:
        """Bring the runs to their ends, wherever they run; raises Stopped."""
        for folder, spec in zip(folders, runs, strict=True):
            check_same(folder, spec)
        jobs = [
            Job(
                str(folder.relative_to(self.out)),
                train_point,
                (folder, spec, self.out / CONTENTS, self.sources),
                folder,
                (RESULT, DIVERGED),
            )
            for folder, spec in zip(folders, runs, strict=True)
        ]
        done = sum(job.is_done() for job in jobs)
        with Tally(self.console, len(jobs), done, has_bar=not isinstance(self.options.workers, Here)) as tally:
            code = self.crew.map(jobs, self.console, partial(_tell, tally))
        if code:
            raise Stopped(code, self.out, "the same command")


def _tell(tally: Tally, job: Job, event: Event, words: str) -> None:
    tally.tell(job.name, event, words or (reached(job.folder) if event == "finished" else ""))


def make_plan(
    model: str | Path,
    data: str,
    test: str,
    out: Path,
    options: SweepOptions,
    console: Console,
    sources: Mapping[str, Source] = NO_SOURCES,
) -> Plan:
    """Resolve recipe and points, and raise now what the last run would."""
    changes, validation = options.changes, options.validation
    request = Request(
        data,
        options.image,
        validation,
        options.held_out,
        "",
        0,
        changes,
        options.teacher,
        options.epochs,
        is_swept=True,
    )
    opened = open_training_data(data, sources.get("data"))
    start = load_start(model)
    taught = None if options.teacher is None else load_start(options.teacher)
    base = finetuning_spec(start, options.recipe, opened, request, options.execution, console, taught)
    _check_validated(base)
    found = split_data(replace(base, held_out=0.0, test=test), opened, sources=sources)  # raises if they do not fit
    images = len(found.train)
    space = read_space(options.space) if options.trials else {}
    if options.trials:
        require_optuna()
    points = points_of(base.recipe, images, options, space)
    is_picking = bool(options.trials) or len(points) > 1
    require(
        not is_picking or bool(base.held_out or base.validation),
        f"no development images to pick on: none of {images} training images is held out; give --held-out or "
        f"--validation",
    )
    if is_picking and base.held_out:
        development_split(found.train, base.held_out)
    others = {name: fingerprint(source) for name, source in found.sets.items() if name != "data"}
    crew = Crew(_with_gpus(options.workers, base))
    teacher = None if taught is None else taught.model.spec
    plan = Plan(
        start=start,
        taught=taught,
        opened=opened,
        out=out,
        options=options,
        base=base,
        test=test,
        sets=found.sets,
        fingerprints={"data": found.card.fingerprint, **others},
        points=tuple(points),
        seconds=estimated_seconds(base, pick_device(base.execution.device), found, teacher),
        console=console,
        crew=crew,
        sources=dict(sources),
    )
    runs = []
    for point in (*points, *(corners(base.recipe.name, space) if options.trials else ())):
        runs += [plan.run_of(point), plan.run_of(point, is_final=True)]
    _check_read(runs, options, space)
    return plan


def _check_validated(run: RunSpec) -> None:
    require(
        not run.recipe.validate_every or bool(run.validation),
        "the last runs of a sweep train on everything, so validate_every and patience need images of their own to "
        "validate on: give --validation",
    )


def _check_read(runs: Sequence[RunSpec], options: SweepOptions, space: Iterable[str]) -> None:
    """Raise for a setting that no point of the sweep reads; one that some do not read is a part of the grid."""
    fields = [*dict(options.changes), *read_grid(options.grid), *space]
    unread = [unread_fields(run, fields) for run in runs]
    for name, why in unread[0].items():
        require(not all(name in one for one in unread), why)


def _with_gpus(workers: Workers, base: RunSpec) -> Workers:
    """A cluster has to know that a run needs a GPU."""
    needed = int(base.execution.device.startswith("cuda"))
    return replace(workers, gpus=needed) if isinstance(workers, Ray) else workers


def _images_seen(run: RunSpec) -> int:
    return run.recipe.schedule.total * run.recipe.batch
