"""Jobs, and the kinds of workers that run them."""

import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from vitlab.errors import SIGNAL_CODES
from vitlab.files.store import make_folder

LOG = "log.txt"
LOG_WIDTH = 200  # columns
LOOK = 0.2  # seconds between two checks of the workers
FAILED = 1
Work = Callable[[Any, Console], int]


@dataclass(frozen=True)
class Job:
    """Work in its own folder, done once one of its `results` exists there.

    `work` is a module-level function, so that another process can import it. It takes `argument` and a console, and
    returns 0, or the exit code of the signal that stopped it after it saved its state. Results are written atomically
    (`files/store.py`).
    """

    name: str
    work: Work
    argument: Any
    folder: Path
    results: tuple[str, ...] = ("result.json",)

    def is_done(self) -> bool:
        """Whether one of the results exists."""
        return any((self.folder / name).exists() for name in self.results)

    def run_with_log(self) -> int:
        """Do the work with its output and any traceback in the log of its folder; returns its exit code."""
        make_folder(self.folder)
        with (self.folder / LOG).open("a", encoding="utf-8") as log:
            try:
                return self.work(self.argument, Console(file=log, width=LOG_WIDTH))
            except Exception:
                log.write(traceback.format_exc())
                return FAILED


@dataclass(frozen=True)
class Here:
    """One job after the other in this process; they print to the console."""


@dataclass(frozen=True)
class Processes:
    """`count` jobs at a time, each in its own process with an equal share of this process's threads."""

    count: int


@dataclass(frozen=True)
class Ray:
    """`count` jobs at a time on Ray: `local`, or the address of a cluster that sees the same folders."""

    address: str
    count: int
    gpus: int = 0  # per job


Workers = Here | Processes | Ray


@dataclass(frozen=True)
class Ended:
    """How a job ended: by itself, or because its worker was killed; `words` say more."""

    killed: bool
    words: str = ""


class Pool(Protocol):
    """Workers that run `size` jobs at a time; a handle stands for a started job."""

    size: int

    def start(self, job: Job) -> Any: ...
    def ended(self, handles: list[Any]) -> Iterator[tuple[Any, Ended]]: ...
    def stop(self, handles: list[Any]) -> None: ...
    def close(self) -> None: ...


def ended_with(code: int) -> Ended:
    """How a job ended, from its exit code; minus the signal number for a killed process."""
    if code < 0:
        return Ended(killed=True, words=f"killed by {signal.Signals(-code).name}")
    is_stopped = code in SIGNAL_CODES.values()
    return Ended(killed=is_stopped, words="stopped by a signal" * is_stopped)
