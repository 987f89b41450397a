"""Fine-tuning on every task as in the paper: one recipe for all tasks, flips and crops only where labels allow them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Console

from vitlab.data.source import Source
from vitlab.data.vtab.opening import open_task
from vitlab.jobs.job import Job
from vitlab.paper.vtab import TASKS, TaskSplit, VtabTask
from vitlab.run_dir import CONTENTS, DIVERGED, RESULT, RunSpec
from vitlab.runs.sweep.point_run import check_same, train_point
from vitlab.runs.sweep.selection import divergence, numbers_of
from vitlab.runs.training.data import open_training_data, split_data
from vitlab.runs.training.request import Request, finetuning_spec
from vitlab.runs.training.time_estimate import estimated_seconds
from vitlab.runs.vtab.problems import PROBLEM, guarded
from vitlab.runs.vtab.results import Score, chance_of
from vitlab.spec.recipe import Execution
from vitlab.weights.load import StartWeights
from vitlab.world.device import pick_device

RECIPE, METHOD = "vtab", "fine-tuned"


def exceptions(task: VtabTask) -> tuple[tuple[str, object], ...]:
    """The changes to the recipe that a task needs, because a flip or a crop would change its label (BiT's paper)."""
    flip = () if task.flip_allowed else (("augmentation.flip", False),)
    crop = () if task.crop_allowed else (("augmentation.crop", "none"),)
    return (*flip, *crop)


def task_spec(root: Path, task: VtabTask, split: TaskSplit) -> str:
    """The data spec of a task, which any command opens."""
    return f"vtab:{quote(str(root), safe='/ ~:')}?task={task.key}&split={split}"


@dataclass(frozen=True)
class TaskRuns:
    """The runs of one task, one for each seed, and the time that one of them takes."""

    task: VtabTask
    folder: Path
    specs: tuple[RunSpec, ...]
    seconds: float
    chance: float
    sources: Mapping[str, Source]

    def jobs(self) -> list[Job]:
        """A job for each run."""
        made = []
        for spec in self.specs:
            folder = self.folder / f"seed-{spec.seed}"
            check_same(folder, spec)
            argument = folder, spec, folder / CONTENTS, self.sources
            name = f"{self.task.key}/seed-{spec.seed}"
            made.append(Job(name, train_task, argument, folder, (RESULT, DIVERGED, PROBLEM)))
        return made

    def score(self) -> Score:
        """The test accuracies of the finished runs; raises ValueError if one diverged."""
        accuracies, count, unseen = [], 0, 0
        for spec in self.specs:
            folder = self.folder / f"seed-{spec.seed}"
            if (folder / DIVERGED).exists():
                raise ValueError(f"seed {spec.seed} diverged: {divergence(folder)}")
            numbers = numbers_of(folder, "test")
            accuracies.append(100 * float(numbers["top1"]))
            count, unseen = int(numbers["count"]), int(numbers.get("not_evaluated", 0))
        return Score(self.task, {METHOD: tuple(accuracies)}, count, self.chance, unseen)


def plan_task(
    start: StartWeights,
    root: Path,
    task: VtabTask,
    folder: Path,
    request: Request,
    execution: Execution,
    seeds: Sequence[int],
) -> TaskRuns:
    """Resolve the runs of a task, and estimate their time; raises whatever a run would raise."""
    train, test = (task_spec(root, task, split) for split in ("train800val200", "test"))
    is_own = task in TASKS
    sources = {"data": open_task(root, task, "train800val200"), "test": open_task(root, task, "test")}
    own = dict(request.changes)
    changes = (*request.changes, *((field, value) for field, value in exceptions(task) if field not in own))
    asked = replace(request, data=train, test=test, held_out=0.0, changes=changes)
    opened = open_training_data(train, sources["data"])
    spec = finetuning_spec(start, RECIPE, opened, asked, execution, Console(quiet=True))
    data = split_data(spec, opened, sources=sources)
    seconds = estimated_seconds(spec, pick_device(spec.execution.device), data)
    specs = tuple(replace(spec, seed=seed) for seed in seeds)
    chance = chance_of(sources["test"].labels.numbers.tolist())
    return TaskRuns(task, folder, specs, seconds, chance, {} if is_own else sources)


def train_task(asked: Any, console: Console) -> int:
    """Train a run of a task as a job; files that turn out to be damaged are its problem, not that of other tasks."""
    return guarded(train_point, asked, asked[0], console)
