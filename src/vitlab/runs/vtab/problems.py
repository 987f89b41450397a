"""What is wrong with the files of a task, written beside its results, so that the other tasks continue."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from vitlab.errors import printable
from vitlab.files.store import make_folder, write_json
from vitlab.files.strict_json import read_json
from vitlab.jobs.job import Job
from vitlab.runs.progress import say

PROBLEM: Final = "problem.json"  # removed when the task is tried again
UNREADABLE: Final = (OSError, ValueError, ModuleNotFoundError, MemoryError)  # what missing and damaged files raise


def said(error: BaseException) -> str:
    """An error in one line."""
    return printable(str(error).splitlines()[0]) if str(error) else type(error).__name__


def guarded(work: Callable[[Any, Console], int], asked: Any, folder: Path, console: Console) -> int:
    """Do the work of a job; what is wrong with its files is written into its folder."""
    try:
        return work(asked, console)
    except UNREADABLE as error:
        say(console, said(error), "red")
        make_folder(folder)
        write_json(folder / PROBLEM, {"problem": said(error)})
        return 0


def forget_problem(job: Job) -> None:
    """Let a job that had a problem run again."""
    (job.folder / PROBLEM).unlink(missing_ok=True)


def problem_of(job: Job) -> str:
    """What was wrong; empty if nothing was."""
    file = job.folder / PROBLEM
    found = read_json(file) if file.is_file() else {}
    return str(found.get("problem", "")) if isinstance(found, dict) else ""
