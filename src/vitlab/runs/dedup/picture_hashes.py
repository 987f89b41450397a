"""Hash the pictures of data sets, in this process or in several; a stopped hashing continues where it was."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from vitlab.data.dedup.hash_files import Hashes, HashFolder, hash_part
from vitlab.data.loading.accounting import Quarantined
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import open_data
from vitlab.errors import Stopped, printable
from vitlab.jobs.job import Here, Job, Processes
from vitlab.jobs.mapping import Crew, Event
from vitlab.process.interrupts import Signals
from vitlab.require import require
from vitlab.runs.progress import Images, say

FOLDER = "hashes"


@dataclass(frozen=True)
class HashedSet:
    """A data set and the folder of its hashes; `spec` is empty for data given as an object."""

    name: str
    spec: str
    source: Source
    folder: HashFolder
    offset: int = 0  # number of the first picture, where several sets are numbered one after another

    def parts(self) -> Iterator[Hashes]:
        """The hashes, file by file, with the numbers of several sets."""
        for number in range(self.folder.files):
            part = self.folder.read(number)
            yield replace(part, numbers=part.numbers + self.offset)

    def bad(self) -> tuple[Quarantined, ...]:
        """The pictures that could not be read."""
        return tuple(sample for number in range(self.folder.files) for sample in self.folder.read(number).bad)


class Asked(NamedTuple):
    """One file of hashes to write."""

    data: str | Source
    folder: HashFolder
    number: int


def hash_pictures(sets: Sequence[HashedSet], jobs: int | None, out: Path, console: Console) -> None:
    """Write all files of hashes that are missing; raises Stopped after a signal. The same call continues."""
    work, are_several = [], jobs is not None and jobs > 1
    for one in sets:
        if outdated := one.folder.begin(one.source):
            say(console, f"{printable(one.name)}: the data has changed or is in no file, so {outdated:,} "
                         f"{'file is' if outdated == 1 else 'files are'} hashed again", "yellow")  # fmt: skip
        for number in range(one.folder.files):
            asked = Asked((one.spec if are_several else "") or one.source, one.folder, number)
            name = f"{one.folder.path.name}/{one.folder.name(number)}"
            work.append(Job(name, hash_file, asked, one.folder.path, (one.folder.name(number),)))
    total = sum(one.folder.samples for one in sets)
    left = {job.name: len(job.argument.folder.part(job.argument.number)) for job in work if not job.is_done()}
    if not left:
        return
    done = total - sum(left.values())
    with (
        Crew(Processes(jobs or 1) if are_several else Here()) as crew,
        Images(console, "hashing") as display,
    ):
        display.show(done, total)

        def tell(job: Job, event: Event, words: str) -> None:
            nonlocal done
            if event == "finished":
                done += left.pop(job.name)
                display.show(done, total)
            elif words:
                display.say(f"{job.name} {event}: {words}")

        if code := crew.map(work, console, tell):
            raise Stopped(code, out, "the same command")


def hash_file(asked: Asked, console: Console) -> int:
    """The job of one file: hash its pictures and write it, or stop before it is written."""
    source = _opened(asked.data) if isinstance(asked.data, str) else asked.data
    same = len(source) == asked.folder.samples
    require(same, f"{asked.data!r} has {len(source):,} samples now, not {asked.folder.samples:,}; start again")
    with Signals() as signals:
        for made in hash_part(source, asked.folder.part(asked.number)):
            if signals.stop:
                return signals.stop
            if isinstance(made, Hashes):
                asked.folder.write(asked.number, made, source)
        return signals.stop


@functools.lru_cache(maxsize=4)
def _opened(spec: str) -> Source:
    """Open data once per process: a folder of a million files takes seconds."""
    return open_data(spec)
