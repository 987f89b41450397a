"""`vitlab data prepare vtab`: pack the images of every task once, so that later runs open them at once."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from vitlab.data.vtab.image_sets import image_set
from vitlab.data.vtab.opening import origin
from vitlab.data.vtab.packs import CARD, FOLDER, PLAN, pack_folder, write_pack
from vitlab.errors import Stopped
from vitlab.files.store import locked, refuse_strange, refuse_unwritable
from vitlab.jobs.job import LOG, Here, Job, Processes
from vitlab.jobs.mapping import Crew, Event
from vitlab.paper.vtab import TASKS, VtabTask
from vitlab.process.interrupts import Signals
from vitlab.report.tables import Results, Tabular
from vitlab.require import check_arguments, require
from vitlab.runs.progress import Images, Tally, default_console
from vitlab.runs.vtab.problems import PROBLEM, forget_problem, guarded, problem_of, said
from vitlab.runs.vtab.tasks import TaskLike, chosen_tasks

OURS = (PLAN, LOG, PROBLEM)  # files that only a pack's folder has


@dataclass(frozen=True)
class Prepared(Tabular):
    """What became of every image set: the number of its images, or why it could not be packed."""

    sets: tuple[tuple[str, tuple[VtabTask, ...], str], ...]  # key, tasks, problem
    listed: tuple[VtabTask, ...] = ()  # tasks that others have published as lists and images, which need no pack

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for every set that could not be packed."""
        return tuple(f"{key}: {problem}" for key, _, problem in self.sets if problem)

    @property
    def table(self) -> Results:
        """A row for each set."""
        rows = []
        for key, tasks, problem in self.sets:
            images = tasks[0].train.images + tasks[0].validation.images + tasks[0].test.images
            rows.append((key, ", ".join(task.name for task in tasks), None if problem else images, problem or "packed"))
        rows += [
            (task.key, task.name, None, "not packed: its lists and images are read as they are") for task in self.listed
        ]
        return Results(("image set", "tasks", "images", "state"), tuple(rows))


def prepare_vtab(
    root: str | Path,
    tasks: Sequence[TaskLike] = (),
    *,
    jobs: int | None = None,
    console: Console | None = None,
    quiet: bool = False,
) -> Prepared:
    """Pack the 1000 training and all test images of every task into ROOT/prepared.

    `tasks` are names of tasks or groups (default: all). A set that is missing or damaged is reported, and the others
    are packed. Tasks with lists of images are left as they are. If it is stopped or killed, the same call continues.
    `jobs` sets are packed at a time.
    """
    check_arguments(prepare_vtab, locals())
    require(jobs is None or jobs >= 1, f"jobs= is {jobs}; at least 1 is needed")
    folder, screen = Path(root), default_console(console, quiet=quiet)
    require(folder.is_dir(), f"{folder} is not a folder; give the folder of the downloads")
    refuse_unwritable(folder / FOLDER)
    chosen = chosen_tasks(tasks)
    listed = tuple(task for task in chosen if origin(folder, task) == "lists")
    sets = image_sets([task for task in chosen if task not in listed])
    work, problems = [], dict.fromkeys(sets, "")
    for key, own in sets.items():
        try:
            refuse_strange(pack_folder(folder, own[0]), OURS)
            work.append(Job(key, pack, (folder, own), pack_folder(folder, own[0]), (CARD, PROBLEM)))
        except FileExistsError as error:
            problems[key] = said(error)
    with locked(folder / FOLDER), Crew(Processes(jobs) if jobs is not None and jobs > 1 else Here()) as crew:
        for job in work:
            forget_problem(job)
        done = sum(job.is_done() for job in work)
        with Tally(screen, len(work), done, has_bar=False) as tally:
            code = crew.map(work, screen, partial(_tell, tally))
        if code:
            raise Stopped(code, folder / FOLDER, "the same command")
    problems |= {job.name: problem_of(job) for job in work}
    return Prepared(tuple((key, own, problems[key]) for key, own in sets.items()), listed)


def image_sets(tasks: Sequence[VtabTask]) -> dict[str, tuple[VtabTask, ...]]:
    """The image sets of tasks, each with all of VTAB's tasks on it, so that its pack serves them too."""
    found: dict[str, tuple[VtabTask, ...]] = {}
    for task in tasks:
        key = image_set(task).key
        every = tuple(other for other in TASKS if image_set(other).key == key)
        found[key] = every if task in TASKS else (*found.get(key, ()), task)
    return found


def pack(asked: tuple[Path, tuple[VtabTask, ...]], console: Console) -> int:
    """The job of an image set: pack it, with damaged files as its problem and not that of other sets."""
    root, tasks = asked
    return guarded(_pack, asked, pack_folder(root, tasks[0]), console)


def _pack(asked: tuple[Path, tuple[VtabTask, ...]], console: Console) -> int:
    root, tasks = asked
    with (
        Images(console, f"packing {image_set(tasks[0]).key}") as display,
        Signals() as signals,
        contextlib.closing(write_pack(root, tasks)) as steps,
    ):
        for done, total in steps:
            display.show(done, total)
            if signals.stop:
                return signals.stop
    return 0


def _tell(tally: Tally, job: Job, event: Event, words: str) -> None:
    tally.tell(job.name, event, words or (problem_of(job) if event == "finished" else ""))
