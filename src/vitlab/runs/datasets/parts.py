"""Work in parts: a finished part leaves files and a record of their state, and is not done again while both are valid.

The parts do not depend on the number of processes, and each process takes every n-th. So the result is the same for any
number of them, and work that was stopped or killed continues with the parts that are missing. The record of a part has
the sizes and times of the files that it was made from and of those that it was written to. If either have changed when
the work continues, the part is done again.
"""

import contextlib
import hashlib
import shutil
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from rich.console import Console

from vitlab.data.fingerprint import file_state
from vitlab.errors import JobsFailed, Stopped
from vitlab.files.store import LOCK, locked, refuse_strange, remove_leftovers, write_json
from vitlab.files.strict_json import read_json
from vitlab.jobs.job import Here, Job, Workers
from vitlab.jobs.mapping import Crew, Event
from vitlab.process.interrupts import Signals
from vitlab.runs.progress import Bytes, Images, counted, say

DONE, PLAN = "done.json", "plan.json"
RECORD = ".record"  # suffix of the record of a part, which is written last
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

    def state(self, part: int) -> str:
        """What changes if the data of a part does, from sizes and times of files; "" for data that is in no file."""
        ...

    def outputs(self, part: int) -> tuple[Path, ...]:
        """The files that a part writes; the record of the part lies beside the last one."""
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
    """Do the parts that are missing or outdated; raises Stopped after a signal. `name` is what is worked on."""
    if outdated := _drop_outdated(work):
        again = "is done again, because its files have" if outdated == 1 else "are done again, because their files have"
        say(console, f"{counted(outdated, 'finished part')} {again} changed or are not on disk", "yellow")
    missing = sum(not _record(work, part).exists() for part in range(work.parts))
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
            if _record(work, part).exists():
                continue
            state = work.state(part)  # before it is read: what changes meanwhile makes the part outdated
            with contextlib.closing(work.do(part)) as steps:
                for _ in steps:
                    if signals.stop:
                        return signals.stop
            write_json(_record(work, part), _recorded(work, part, state))
            progress.look()
            if signals.stop:
                return signals.stop
        progress.look(is_last=True)
    write_json(share.folder / DONE, {})
    return 0


def _record(work: PartWork, part: int) -> Path:
    return work.outputs(part)[-1].with_suffix(RECORD)


def _recorded(work: PartWork, part: int, state: str) -> dict[str, object]:
    return {"data": state, "outputs": [list(file_state(path)) for path in work.outputs(part)]}


def _drop_outdated(work: PartWork) -> int:
    """Remove the records of finished parts whose data or output files have changed; returns how many there were."""
    outdated = 0
    for part in range(work.parts):
        file = _record(work, part)
        if file.exists():
            state = work.state(part)
            if not state or read_json(file) != _recorded(work, part, state):
                file.unlink()
                outdated += 1
    return outdated


def data_state(work: PartWork) -> str:
    """What changes if the data of any part does; "" if some of it is in no file."""
    return _joined(work.state(part) for part in range(work.parts))


def recorded_state(work: PartWork) -> str:
    """The `data_state` of finished work, as it was when each part was read."""
    records = (read_json(_record(work, part)) for part in range(work.parts))
    return _joined(str(record["data"]) for record in records if isinstance(record, dict))


def _joined(states: Iterable[str]) -> str:
    every = list(states)
    return hashlib.sha256("".join(every).encode()).hexdigest() if all(every) else ""


@dataclass(frozen=True)
class SomeParts:
    """Some parts of other work, by number."""

    work: PartWork
    numbers: tuple[int, ...]
    what: ClassVar[str] = "writing again"
    unit: ClassVar[Literal["images", "bytes"]] = "images"

    @property
    def parts(self) -> int:
        return len(self.numbers)

    def amount(self, part: int) -> int:
        return self.work.amount(self.numbers[part])

    def state(self, part: int) -> str:
        return self.work.state(self.numbers[part])

    def outputs(self, part: int) -> tuple[Path, ...]:
        return self.work.outputs(self.numbers[part])

    def do(self, part: int) -> Generator[object]:
        return self.work.do(self.numbers[part])


class _Progress:
    """Shows how much of some shares is done, from the records that exist."""

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
            while part < self._work.parts and _record(self._work, part).exists():
                self._done += self._work.amount(part)
                part += self._of
            self._next[place] = part
        if self._done != self._shown:
            self._display.show(self._done, self._total)
            self._shown = self._done


@contextlib.contextmanager
def work_folder(path: Path) -> Iterator[None]:
    """Hold a folder for parts while the block runs; it is removed if the block succeeds, or fails without a part.

    In the second case the folders around it that did not exist before are removed too. The logs of failed jobs are
    kept.
    """
    going = path.with_name(f".{path.name}.old")
    refuse_strange(path, (LOCK,))
    new = [folder for folder in path.parents if not folder.exists()]
    with locked(path):
        shutil.rmtree(going, ignore_errors=True)  # of a process that was killed here; the lock is held
        remove_leftovers(path)
        is_needed = False
        try:
            yield
        except BaseException as error:
            is_needed = isinstance(error, Stopped | JobsFailed) or any(path.glob(f"*{RECORD}"))
            raise
        finally:
            if not is_needed:
                path.rename(going)
                shutil.rmtree(going)
                for folder in new:
                    with contextlib.suppress(OSError):  # it has the results
                        folder.rmdir()


def keep_parts_of(folder: Path, plan: Mapping[str, object], console: Console) -> None:
    """Keep the parts that an earlier call with the same plan has done; remove those of another."""
    file, listed = folder / PLAN, dict(plan)
    if file.is_file() and read_json(file) != listed:
        say(console, "the data or the settings have changed since the last call, so it starts again", "yellow")
        for path in folder.iterdir():
            if path.name != LOCK and not path.name.startswith("listing."):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_json(file, listed)
