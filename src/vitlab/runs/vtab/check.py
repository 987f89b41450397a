"""`vitlab data check vtab`: which tasks are complete, what the others lack, where to get it and under which terms."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from vitlab.data.vtab.image_sets import image_set
from vitlab.data.vtab.opening import open_task, origin
from vitlab.data.vtab.places import Missing
from vitlab.errors import printable
from vitlab.paper.vtab import VtabTask
from vitlab.report.tables import Results, Tabular
from vitlab.require import check_arguments
from vitlab.runs.progress import announced, default_console
from vitlab.runs.vtab.problems import UNREADABLE, said
from vitlab.runs.vtab.tasks import TaskLike, chosen_tasks

State = Literal["ready", "missing", "damaged"]


@dataclass(frozen=True)
class TaskState:
    """Whether a task can run, and if not, why."""

    task: VtabTask
    state: State
    origin: str = ""  # of a task that is ready: its pack, lists, or the original files
    problem: str = ""

    @property
    def words(self) -> str:
        """What is there, or what is wrong."""
        if self.state != "ready":
            return self.problem
        order = image_set(self.task).order
        note = f"; {order}" if order and self.origin != "lists" else ""
        return f"{self.task.test.images:,} test images, read from its {self.origin}{note}"

    @property
    def advice(self) -> str:
        """What to download from where; empty for a task that is ready."""
        images = image_set(self.task)
        return "" if self.state == "ready" else f"{images.files} from {images.source}"


@dataclass(frozen=True)
class VtabCheck(Tabular):
    """The state of every task."""

    states: tuple[TaskState, ...]

    @property
    def ready(self) -> tuple[VtabTask, ...]:
        """The tasks that can run."""
        return tuple(found.task for found in self.states if found.state == "ready")

    @property
    def table(self) -> Results:
        """A row for each task."""
        rows = [
            (found.task.name, found.state, found.words, found.advice, image_set(found.task).licence)
            for found in self.states
        ]
        return Results(("task", "state", "what is there, or what is wrong", "download", "licence"), tuple(rows))


def check_vtab(
    root: str | Path,
    tasks: Sequence[TaskLike] = (),
    *,
    console: Console | None = None,
    quiet: bool = False,
) -> VtabCheck:
    """Check which tasks of VTAB-1k are complete in a folder of downloads.

    `tasks` are names of tasks or groups (default: all). Every file is opened and counted, TFRecords and compressed
    archives are read to their end; images are not decoded.
    """
    check_arguments(check_vtab, locals())
    screen, folder = default_console(console, quiet=quiet), Path(root)
    found = []
    for task in chosen_tasks(tasks):
        with announced(screen, f"checking {task.name} ..."):
            found.append(state_of(folder, task))
    return VtabCheck(tuple(found))


def state_of(root: Path, task: VtabTask) -> TaskState:
    """Open a task; whatever that raises is its problem. A folder that does not exist raises."""
    where = origin(root, task)
    try:
        for split in ("train800val200", "test"):
            open_task(root, task, split)
    except Missing as error:
        return TaskState(task, "missing", problem=printable(str(error)))
    except UNREADABLE as error:
        return TaskState(task, "damaged", problem=said(error))
    return TaskState(task, "ready", where)
