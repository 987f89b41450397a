"""What a job is, and where jobs can run."""

import io
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from vitlab.errors import SIGNAL_CODES
from vitlab.store import make_folder

LOG = "log.txt"
LOG_WIDTH = 200  # columns
LOOK = 0.2  # seconds between two looks at the workers
FAILED = 1
Work = Callable[[Any, Console], int]


@dataclass(frozen=True)
class Job:
    """A piece of work in a folder of its own, which is done once one of its results is there.

    `work` is a function of a module, so that another process finds it. It takes `argument` and a console, and returns
    0, or the exit code of the signal that stopped it after it had saved what it had. Results appear whole or not at all
    (`store.py`).
    """

    name: str
    work: Work
    argument: Any
    folder: Path
    results: tuple[str, ...] = ("result.json",)

    def is_done(self) -> bool:
        """Whether one of the results is there."""
        return any((self.folder / name).exists() for name in self.results)

    def run_with_log(self) -> int:
        """Do the work with what it says, and why it failed, in the log of its folder; returns its exit code."""
        make_folder(self.folder)
        with (self.folder / LOG).open("a", encoding="utf-8") as log:
            try:
                return self.work(self.argument, Console(file=log, width=LOG_WIDTH))
            except Exception:
                said = io.StringIO()
                traceback.print_exc(file=said)
                log.write(said.getvalue())
                return FAILED


@dataclass(frozen=True)
class Here:
    """One job after the other in this process; what they print goes to the console."""


@dataclass(frozen=True)
class Processes:
    """So many jobs at a time, each in a process of its own with its share of this process's threads."""

    count: int


@dataclass(frozen=True)
class Ray:
    """So many jobs at a time on Ray: a `local` one, or the cluster at an address, which must see the same folders."""

    address: str
    count: int
    gpus: int = 0  # that a job needs


Workers = Here | Processes | Ray


@dataclass(frozen=True)
class Ended:
    """How the work on a job ended: its worker killed from outside, or by itself; with a few words if there are any."""

    killed: bool
    words: str = ""


class Pool(Protocol):
    """Workers that take `size` jobs at a time; a handle stands for a job that was begun."""

    size: int

    def start(self, job: Job) -> Any: ...
    def ended(self, handles: list[Any]) -> Iterator[tuple[Any, Ended]]: ...
    def stop(self, handles: list[Any]) -> None: ...
    def close(self) -> None: ...


def ended_with(code: int) -> Ended:
    """What an exit code says; minus the signal for a process that one ended."""
    if code < 0:
        return Ended(killed=True, words=f"killed by {signal.Signals(-code).name}")
    return Ended(
        killed=code in SIGNAL_CODES.values(), words="stopped by somebody" if code in SIGNAL_CODES.values() else ""
    )
