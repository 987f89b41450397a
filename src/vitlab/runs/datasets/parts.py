"""Work in parts: a part ends with a file that is written atomically, and a part whose file exists is not done again.

The parts do not depend on the number of processes, and each process takes every n-th. So the result is the same for any
number of them, and work that was stopped or killed continues with the parts that are missing.
"""

import contextlib
import shutil
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from rich.console import Console

from vitlab.errors import Stopped
from vitlab.interrupts import Signals
from vitlab.jobs.job import Here, Job, Workers
from vitlab.jobs.mapping import Crew, Event
from vitlab.runs.progress import Bytes, Images, say
from vitlab.store import LOCK, locked, refuse_strange, remove_leftovers, write_json
from vitlab.strict_json import read_json

DONE, PLAN = "done.json", "plan.json"
PARTS = ".vitlab-parts"  # the folder of the parts, in a folder of results
LOOK = 0.5  # seconds between two looks at what other processes have done


class PartWork(Protocol):
    """Work in numbered parts, which other processes can be sent."""

    what: ClassVar[str]  # such as "indexing"
    unit: ClassVar[Literal["images", "bytes"]]  # of the amounts

    @property
    def parts(self) -> int: ...

    def amount(self, part: int) -> int:
        """How much a part is of the whole."""
        ...

    def result(self, part: int) -> Path:
        """The file that exists once a part is done."""
        ...

    def do(self, part: int) -> Generator[object]:
        """Do a part; it may be stopped wherever it yields."""
        ...


@dataclass(frozen=True)
class Share:
    """Every `of`-th part of some work from `number` on."""

    work: PartWork
    number: int
    of: int
    folder: Path
    name: str  # of what is worked on, for the display


def run_parts(work: PartWork, folder: Path, workers: Workers, console: Console, name: str) -> None:
    """Do the parts that are missing; raises Stopped after a signal. `name` is what is worked on."""
    missing = sum(not work.result(part).exists() for part in range(work.parts))
    shares = 1 if isinstance(workers, Here) else max(min(workers.count, missing), 1)
    jobs = []
    for number in range(shares):
        own = folder.absolute() / f"worker-{number}"
        (own / DONE).unlink(missing_ok=True)
        jobs.append(Job(f"worker {number}", run_share, Share(work, number, shares, own, name), own, (DONE,)))

    def tell(job: Job, event: Event, words: str) -> None:
        if event in ("killed", "failed"):
            say(console, f"{job.name} {event}: {words}")

    with Crew(workers) as crew:
        if isinstance(workers, Here):
            code = crew.map(jobs, console, tell)
        else:
            with _Progress(work, range(shares), shares, console, name) as progress:
                code = crew.map(jobs, console, tell, progress.look)
                progress.look(is_last=True)
    if code:
        raise Stopped(code, folder, "the same command")


def run_share(share: Share, console: Console) -> int:
    """The job of one process: do its parts one after the other."""
    work = share.work
    with _Progress(work, (share.number,), share.of, console, share.name) as progress, Signals() as signals:
        progress.look(is_last=True)
        for part in range(share.number, work.parts, share.of):
            if work.result(part).exists():
                continue
            with contextlib.closing(work.do(part)) as steps:
                for _ in steps:
                    if signals.stop:
                        return signals.stop
            progress.look()
            if signals.stop:
                return signals.stop
        progress.look(is_last=True)
    write_json(share.folder / DONE, {})
    return 0


class _Progress:
    """Shows how much of some shares is done, from the files that exist."""

    def __init__(self, work: PartWork, shares: range | tuple[int], of: int, console: Console, name: str) -> None:
        self._work, self._of, self._next = work, of, list(shares)
        display = Images if work.unit == "images" else Bytes
        self._display = display(console, work.what, name)
        self._total = sum(work.amount(part) for share in shares for part in range(share, work.parts, of))
        self._done, self._shown, self._looked = 0, -1, 0.0

    def __enter__(self) -> "_Progress":
        self._display.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.__exit__()

    def look(self, *, is_last: bool = False) -> None:
        """Show what is done, at most twice a second."""
        if not is_last and time.monotonic() - self._looked < LOOK:
            return
        self._looked = time.monotonic()
        for place, part in enumerate(self._next):
            while part < self._work.parts and self._work.result(part).exists():
                self._done += self._work.amount(part)
                part += self._of
            self._next[place] = part
        if self._done != self._shown:
            self._display.show(self._done, self._total)
            self._shown = self._done


@contextlib.contextmanager
def work_folder(path: Path) -> Iterator[None]:
    """Hold a folder for parts while the block runs; it is removed if the block succeeds, or fails before any part."""
    going = path.with_name(f".{path.name}.old")
    shutil.rmtree(going, ignore_errors=True)
    refuse_strange(path, (LOCK,))
    with locked(path):
        remove_leftovers(path)
        is_needed = False
        try:
            yield
        except BaseException:
            is_needed = (path / PLAN).exists()
            raise
        finally:
            if not is_needed:
                path.rename(going)
                shutil.rmtree(going)


def keep_parts_of(folder: Path, plan: Mapping[str, object], console: Console) -> None:
    """Keep the parts that an earlier call with the same plan has done; remove those of another."""
    file, listed = folder / PLAN, dict(plan)
    if file.is_file() and read_json(file) != listed:
        say(console, "the data or the settings have changed since the last call, so it starts again", "yellow")
        for path in folder.iterdir():
            if path.name != LOCK and not path.name.startswith("listing."):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_json(file, listed)
