"""The plan of a sweep: every point and run resolved, checked and counted before the first one starts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from vitlab.data.fingerprint import fingerprint
from vitlab.data.source import Source
from vitlab.data.splits import development_split
from vitlab.errors import Stopped
from vitlab.jobs.job import Here, Job, Ray
from vitlab.jobs.mapping import Crew, Event
from vitlab.paper.models import name_of
from vitlab.require import require
from vitlab.run_dir import CONTENTS, DIVERGED, RESULT, RunSpec, weights_name
from vitlab.runs.progress import Tally, duration, say
from vitlab.runs.sweep.grid import Point, SweepOptions, points_of, read_grid
from vitlab.runs.sweep.point_run import check_same, reached, train_point
from vitlab.runs.sweep.request import FINGERPRINTS
from vitlab.runs.sweep.results import Outcome
from vitlab.runs.sweep.search import corners, read_space, require_optuna, search
from vitlab.runs.sweep.selection import METRICS, Judged, divergence, judged, numbers_of
from vitlab.runs.training.data import RunData, TrainingData, open_training_data, split_data
from vitlab.runs.training.request import finetuning_spec, unused_settings
from vitlab.runs.training.time_estimate import DAY, estimated_seconds
from vitlab.spec.recipe import measure_of
from vitlab.weights.load import StartWeights, load_start
from vitlab.world.device import pick_device


@dataclass(frozen=True)
class Plan:
    """A sweep with its recipe resolved and its points listed, except those that a search draws.

    Weights and data are loaded once, for all runs.
    """

    start: StartWeights
    teacher: StartWeights | None
    opened: TrainingData
    out: Path
    options: SweepOptions
    base: RunSpec  # without the changes of any point, on the split that points are judged on
    data: RunData  # of the last runs, without their test
    fingerprints: dict[str, str]  # of all data sets
    points: tuple[Point, ...]
    seconds: float  # that the base takes
    console: Console
    crew: Crew
    sources: Mapping[str, Source]  # data sets that are objects of the caller, by name
    made: dict[tuple[Point, bool], RunSpec] = field(default_factory=dict)  # each run is resolved once

    def asked(self) -> dict[str, object]:
        """What a later sweep in this folder must agree on."""
        options, base = self.options, self.base
        found: dict[str, object] = {
            "format": "vitlab-sweep",
            "version": 1,
            "weights": base.start_sha256,
            "recipe": base.recipe.name,
            "image": list(base.recipe.image),
            "settings": dict(options.request.changes),
            "data": base.data,
            "validation": base.validation,
            "held_out": base.held_out,
            "test": options.request.test,
            FINGERPRINTS: self.fingerprints,
            "points": {point.name: {"recipe": point.recipe, **dict(point.changes)} for point in self.points},
            "seeds": options.seeds,
        }
        if base.teacher:
            found["teacher"] = base.teacher_sha256
        if options.trials:  # a point depends on how many were judged before it was drawn
            found["search"] = {"trials": options.trials, "space": list(options.space), "at_once": self.at_once}
        return found

    @property
    def at_once(self) -> int:
        """The number of runs at a time."""
        return 1 if isinstance(self.options.workers, Here) else self.options.workers.count

    @property
    def is_picking(self) -> bool:
        """Whether there are several points to choose from."""
        return bool(self.options.trials) or len(self.points) > 1

    @property
    def split(self) -> str:
        """The images that points are judged on."""
        return self.base.validation or f"{self.base.held_out:g} of the training images, held out"

    def judge_all(self) -> list[Judged]:
        """Return every point with its results on the development images."""
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
        """Print what the sweep does and how long it takes; raise if that is days on a CPU and not confirmed."""
        tried, seeds = (len(self.points) + self.options.trials if self.is_picking else 0), self.options.seeds
        device, recipe = pick_device(self.base.execution.device), self.base.recipe
        own = _images_seen(self.base)
        seen = [_images_seen(self.run_of(point)) for point in self.points] + [own] * self.options.trials
        seconds = self.seconds * ((sum(seen) if tried else 0) + seeds * max(seen)) / own
        classes = len(self.data.card.class_names)
        what = f"{tried} points on {self.split}, then the best" if tried else "one point, so nothing to pick: it"
        runs = f"{tried + seeds} runs" if tried + seeds > 1 else "1 run"
        say(self.console, f"data    {len(self.data.train):,} images to train on, {classes:,} classes")
        say(self.console, f"recipe  {recipe.name}: {recipe.source}")
        say(self.console, f"sweep   {what} on all images with {seeds} seed{'s' * (seeds > 1)}: {runs}, "
                          f"about {duration(seconds)} on {device.type}")  # fmt: skip
        remedy = "confirm with yes=True, or reduce the points, schedule.total=, image= or the size of the model"
        is_allowed = seconds < DAY or device.type != "cpu" or self.options.is_confirmed
        require(is_allowed, f"the sweep would take about {duration(seconds)} on this CPU; {remedy}")

    def run_of(self, point: Point, *, is_final: bool = False) -> RunSpec:
        """The run that judges a point, or a final one, which trains on all images and is tested."""
        key = point, is_final
        if key not in self.made:
            request, base = self.options.request, self.base
            request = replace(
                request,
                held_out=0.0 if is_final or base.validation else base.held_out,
                test=request.test if is_final else "",
                changes=(*request.changes, *point.changes),
            )
            if is_final:
                _check_validated(self.run_of(point))
            how = self.opened, request, self.options.execution, Console(quiet=True), self.teacher
            self.made[key] = finetuning_spec(self.start, point.recipe, *how)
        return self.made[key]

    def judge(self, points: Sequence[Point]) -> list[Judged]:
        """Train the points that are not trained yet, and return the results of all."""
        runs = [self.run_of(point) for point in points]
        folders = [self.out / "grid" / point.name for point in points]
        self.train(folders, runs)
        return [judged(*one) for one in zip(points, runs, folders, strict=True)]

    def finish(self, picked: Judged, tried: int, task: str) -> Outcome:
        """Train the best point on all images with every seed, and test."""
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
            data=self.options.request.test,
            accuracies=tuple(100 * float(found[measure_of(found)]) for found in results),
            count=int(results[0]["count"]),
            recipe=point.recipe,
            learning_rate=picked.learning_rate,
            point=point.name,
            points=tried,
            metric=METRICS[measure_of(results[0])],
            model=name_of(self.start.model.spec),
            weights=weights_name(self.start.path),
        )

    def train(self, folders: Sequence[Path], runs: Sequence[RunSpec]) -> None:
        """Finish the runs; raises Stopped."""
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
        is_here = isinstance(self.options.workers, Here)  # then a run has just printed what it reached
        with Tally(self.console, len(jobs), done, has_bar=not is_here) as tally:
            code = self.crew.map(jobs, self.console, partial(_tell, tally, is_here))
        if code:
            raise Stopped(code, self.out, "the same command")


def _tell(tally: Tally, is_here: bool, job: Job, event: Event, words: str) -> None:
    is_news = event == "finished" and not is_here
    tally.tell(job.name, event, words or (reached(job.folder) if is_news else ""))


def make_plan(
    model: str | Path, out: Path, options: SweepOptions, console: Console, sources: Mapping[str, Source]
) -> Plan:
    """Resolve the recipe and the points, and raise whatever any of the runs would raise."""
    request = options.request
    opened = open_training_data(request.data, sources.get("data"))
    start = load_start(model)
    teacher = None if request.teacher is None else load_start(request.teacher)
    how = opened, replace(request, test=""), options.execution, console, teacher
    base = finetuning_spec(start, options.recipe, *how)
    _check_validated(base)
    data = split_data(replace(base, held_out=0.0, test=request.test), opened, sources=sources)  # raises if unfit
    space = read_space(options.space) if options.trials else {}
    if options.trials:
        require_optuna()
    others = {name: fingerprint(source) for name, source in data.sets.items() if name != "data"}
    workers = options.workers
    if isinstance(workers, Ray):
        workers = replace(workers, gpus=int(base.execution.device.startswith("cuda")))
    taught = None if teacher is None else teacher.model.spec
    plan = Plan(
        start=start,
        teacher=teacher,
        opened=opened,
        out=out,
        options=options,
        base=base,
        data=data,
        fingerprints={"data": data.card.fingerprint, **others},
        points=tuple(points_of(base.recipe, len(data.train), options, space)),
        seconds=estimated_seconds(base, pick_device(base.execution.device), data, taught),
        console=console,
        crew=Crew(workers),
        sources=dict(sources),
    )
    has_development = not plan.is_picking or bool(base.held_out or base.validation)
    require(has_development, "no training images are held out to pick a point on; give held_out= or validation=")
    if plan.is_picking and base.held_out:
        development_split(data.train, base.held_out)
    drawn = corners(base.recipe.name, space) if options.trials else []
    runs = [plan.run_of(point, is_final=final) for point in (*plan.points, *drawn) for final in (False, True)]
    _check_read(runs, options, space)
    return plan


def _check_validated(run: RunSpec) -> None:
    can_validate = not run.recipe.validate_every or bool(run.validation)
    require(can_validate, "the last runs train on all images, so validate_every= and patience= need validation=")


def _check_read(runs: Sequence[RunSpec], options: SweepOptions, space: Iterable[str]) -> None:
    """Raise for a setting that has no effect at any point of the sweep."""
    fields = [*dict(options.request.changes), *read_grid(options.grid), *space]
    unused = [unused_settings(run, fields) for run in runs]
    for name, error in unused[0].items():
        if all(name in one for one in unused):
            raise error


def _images_seen(run: RunSpec) -> int:
    return run.recipe.schedule.total * run.recipe.batch
