"""`vitlab data verify`: read a whole data set again and compare it with its index.

OUT/verification.csv    every difference: state, id, detail
OUT/verification.json   how much was checked, and how many differences of each kind there are
OUT/.vitlab-parts/      parts that are done, while the data is being read
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from rich.console import Console

from vitlab.data.fingerprint import file_stamp
from vitlab.data.indexing.comparison import (
    Difference,
    Matches,
    Naming,
    compare_sample,
    id_text,
    match_ids,
    other_content,
    rows_at,
)
from vitlab.data.indexing.index_file import IndexFile, Row, ShardEntry
from vitlab.data.indexing.listing import write_listing
from vitlab.data.remote.addresses import is_address
from vitlab.data.sources.catalogue import KINDS, refuse_secrets
from vitlab.data.sources.shards import INDEX, ShardFolder, scan_shard, whole_hash
from vitlab.errors import printable
from vitlab.files.store import (
    refuse_strange,
    refuse_unwritable,
    remove_leftovers,
    replacing,
    write_json,
    write_text,
)
from vitlab.files.user_files import stream_lines
from vitlab.jobs.job import Workers
from vitlab.jobs.mapping import workers_of
from vitlab.report.tables import Results, Tabular, spreadsheet
from vitlab.require import check_arguments, require
from vitlab.runs.datasets.data_parts import LISTING, PER_PART, SampleParts, ShardParts, sizes_of
from vitlab.runs.datasets.index import DataIndex, names_digest, refuse_unfinished, shards_of
from vitlab.runs.datasets.parts import PARTS, keep_parts_of, run_parts, work_folder
from vitlab.runs.progress import announced, counted, default_console

REPORT, SUMMARY = "verification.csv", "verification.json"
SHOWN = 10  # differences that are printed
MOVED = "if the data has been moved, name its present place with data="
SPEC = re.compile(rf"({'|'.join(KINDS)}):")  # the beginning of a data spec
LONGEST = 2**24  # bytes of a difference in a part
STATES = {  # what a difference is called, and what several are
    "changed": ("changed", "changed"),
    "missing": ("missing", "missing"),
    "added": ("added", "added"),
    "unreadable": ("unreadable", "unreadable"),
    "label": ("with another label", "with other labels"),
    "class": ("changed class", "changed classes"),
    "shard": ("changed shard", "changed shards"),  # besides its samples
}


@dataclass(frozen=True)
class Verification(Tabular):
    """What `verify_data` has found; `is_sound` if there is no difference."""

    spec: str
    index: Path
    report: Path
    samples: int  # in the index
    checked: int  # samples that were read
    size: int  # bytes that were read
    counts: dict[str, int]  # differences by state
    first: tuple[Difference, ...]

    @property
    def is_sound(self) -> bool:
        """Whether the data is what was indexed."""
        return not self.counts

    @property
    def table(self) -> Results:
        """The figures."""
        rows = [("data", self.spec), ("index", str(self.index)), ("samples in the index", self.samples)]
        rows += [("samples checked", self.checked), ("bytes checked", self.size), *self.counts.items()]
        return Results(("verification", "value"), tuple(rows))

    def lines(self) -> Iterator[str]:
        """The first differences, and how much was checked."""
        for state, name, detail in self.first:
            yield f"{state:<10} {printable(name)}{f' {printable(detail)}' if detail else ''}"
        more = sum(self.counts.values()) - len(self.first)
        if more:
            yield f"and {more:,} more"
        amount = f"{counted(self.checked, 'sample')}, {self.size:,} bytes, against {self.samples:,} in the index"
        found = ", ".join(counted(count, *STATES[state]) for state, count in self.counts.items())
        yield f"checked {amount}: {found or 'no difference'}"
        if self.counts:
            yield f"{printable(str(self.report))}: every difference"


def verify_data(
    index: str | Path | DataIndex,
    data: str | Path | None = None,
    out: str | Path = "data-verify",
    *,
    jobs: int | None = None,
    ray: str = "",
    console: Console | None = None,
    quiet: bool = False,
) -> Verification:
    """Read a data set again and compare it with its index: every changed, missing or added sample, labels and classes.

    `index` is an index file, a folder of shards that has one, or what `index_data` returned. `data` is where the data
    is now, if it has been moved. `jobs` processes share the work, here or on `ray`. All differences are written to
    `out`. If it is stopped or killed, the same call continues.
    """
    check_arguments(verify_data, locals())
    workers, screen, folder = workers_of(jobs, ray), default_console(console, quiet=quiet), Path(out)
    path = index.path if isinstance(index, DataIndex) else _index_of(index)
    if data is not None:
        refuse_secrets(str(data))
    opened = IndexFile(path)
    require(opened.has_hashes, f"{path} is of an older version and has no hashes; index the data again")
    opened.check_contents()
    refuse_unwritable(folder)
    refuse_strange(folder, (REPORT, SUMMARY))
    check = _check_shards if opened.meta.shards else _check_samples
    return check(opened, data, folder, workers, screen)


def _index_of(given: str | Path) -> Path:
    """The file of the index that is given by its name, or by the folder of its shards."""
    path, text = Path(given), str(given)
    if path.is_dir():
        refuse_unfinished(ShardFolder(path))
        beside = Path(f"{path.name or path.absolute().name}.index")  # where folder:PATH is indexed
        is_beside = not (path / INDEX).exists() and beside.exists()
        require(not is_beside, f"{path} has no {INDEX}; give the index of the folder, such as {beside}")
        return path / INDEX
    if not path.exists() and (SPEC.match(text) or is_address(text)):
        refuse_secrets(text)
        spec = text if SPEC.match(text) else f"shards:{text}"
        named = f"{text} names data, not its index; give the file that vitlab data index wrote for it"
        raise ValueError(f"{named}, with data={spec!r} if the data is not where it was")
    return path


def _plan(index: IndexFile, **more: object) -> dict[str, object]:
    return {"index": [str(index.path.absolute()), *file_stamp(index.path)], **more}


# -- Samples of any source -------------------------------------------------------------------------


@dataclass(frozen=True)
class CompareSamples(SampleParts):
    """Compare the samples of a listing with an index."""

    index: Path
    matches: Path | None  # the folder of `Matches`; None if the samples are those of the index
    what: ClassVar[str] = "verifying"

    @cached_property
    def known(self) -> IndexFile:
        """The index, opened once by each process."""
        return IndexFile(self.index)

    def do(self, part: int) -> Generator[object]:
        start, stop = part * self.per_part, part * self.per_part + self.amount(part)
        places = np.arange(start, stop) if self.matches is None else Matches(self.matches).place(start, stop)
        names = Naming(self.known.meta.class_names, self.opened.index.meta.class_names)
        report = PartReport()
        for then, now in zip(rows_at(self.known, places), self.opened.hashes(start, stop), strict=True):
            report.checked += not now.problem
            report.size += now.size
            report.add(compare_sample(then, now, names))
            yield now
        report.save(self.result(part))


def _check_samples(
    index: IndexFile, data: str | Path | None, folder: Path, workers: Workers, console: Console
) -> Verification:
    spec, parts = str(data or index.meta.spec), folder / PARTS
    with work_folder(parts):
        try:
            with announced(console, f"listing {spec}", is_brief=True):
                listing = write_listing(spec, parts / LISTING)
        except (ValueError, OSError) as error:
            advice = f"; {MOVED}" if data is None else ""
            raise ValueError(f"{spec} cannot be opened ({error}){advice}") from None
        keep_parts_of(parts, _plan(index, spec=spec, digest=listing.digest, per_part=PER_PART), console)
        listed = IndexFile(listing.path)
        is_same = listing.digest == index.meta.digest
        matches = None if is_same else match_ids(index, listed, parts)
        where = {"index": index.path.absolute(), "matches": None if is_same else parts.absolute()}
        work = CompareSamples.of(listing, PER_PART, parts, **where)
        run_parts(work, parts, workers, console, spec)
        names = Naming(index.meta.class_names, listed.meta.class_names)
        done = [work.result(part) for part in range(work.parts)]
        return _written(index, spec, folder, done, _about_the_whole(index, names, matches))


def _about_the_whole(index: IndexFile, names: Naming, matches: Matches | None) -> Iterator[Difference]:
    yield from names.differences()
    for number in () if matches is None else matches.missing_numbers():
        (row,) = index.rows(number, number + 1)
        yield Difference("missing", id_text(row.id))


# -- Tar shards ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompareShards(ShardParts):
    """Compare tar shards with an index: those of the index, then those that it does not have."""

    index: Path
    what: ClassVar[str] = "verifying"

    @cached_property
    def known(self) -> IndexFile:
        """The index, opened once by each process."""
        return IndexFile(self.index)

    @cached_property
    def firsts(self) -> list[int]:
        """The number of the first sample of each shard."""
        return np.cumsum([0, *(entry.samples for entry in self.known.meta.shard_entries)]).tolist()

    def do(self, part: int) -> Generator[object]:
        (name, _), entries, report = self.shards[part], self.known.meta.shard_entries, PartReport()
        report.size += max(self.source.stamp(name)[0], 0)
        if part >= len(entries):
            yield from self._compare(name, 0, 0, report)
            if not report.differences:
                report.add([Difference("added", name, "has no samples")])
        elif self._is_same(entries[part]):
            report.checked += entries[part].samples
        else:
            first = self.firsts[part]
            yield from self._compare(name, first, first + entries[part].samples, report)
            if not report.differences:
                change = "differs from the index, but none of its samples do" if self.source.has(name) else "is missing"
                report.add([Difference("shard", name, change)])
        yield part
        report.save(self.result(part))

    def _is_same(self, entry: ShardEntry) -> bool:
        try:
            is_as_large = self.source.stamp(entry.name)[0] == entry.size
            # Very large files without samples have no hash, and in older indexes all shards without samples.
            return is_as_large and entry.hash in ("", whole_hash(self.source.tar(entry.name)))
        except (OSError, ValueError):
            return False

    def _compare(self, name: str, start: int, stop: int, report: "PartReport") -> Generator[object]:
        """Compare the samples of one shard with rows of the index by key."""
        prefix = name.removesuffix(".tar") + "/"
        now: dict[bytes, Row] = {}
        try:
            if self.source.has(name):
                shard = yield from scan_shard(self.source, name)
                now = {row.id: row for row in shard.rows()}
        except (OSError, ValueError) as error:
            report.add([Difference("shard", name, f"cannot be read: {error}")])
        for then in self.known.rows(start, stop):
            report.add(self._compare_rows(prefix, then, now.pop(then.id, None), report))
        report.add(Difference("added", prefix + id_text(key)) for key in now)
        report.checked += len(now)

    def _compare_rows(self, prefix: str, then: Row, now: Row | None, report: "PartReport") -> Iterator[Difference]:
        name, classes = prefix + id_text(then.id), self.known.meta.class_names
        if now is None:
            yield Difference("missing", name)
            return
        report.checked += 1
        if now.hash != then.hash:
            yield Difference("changed", name, other_content(then.size, now.size))
        yield from Naming(classes, classes).compare(name, then.labels, now.labels)


def _check_shards(
    index: IndexFile, data: str | Path | None, folder: Path, workers: Workers, console: Console
) -> Verification:
    given = data or index.meta.spec
    place = shards_of(given) if given else None
    require(not given or place is not None, f"{index.path} is an index of shards; give their folder, not {given}")
    source, parts = (place.folder if place else ShardFolder(index.path.parent)), folder / PARTS
    known = [entry.name for entry in index.meta.shard_entries]
    try:
        names = [*known, *sorted(set(source.names() if data else source.listed()) - set(known))]
    except ValueError as error:
        raise ValueError(f"{error}; {MOVED}" if data is None else str(error)) from None
    with work_folder(parts):
        keep_parts_of(parts, _plan(index, source=str(source), shards=names_digest(names)), console)
        work = CompareShards(source.absolute(), sizes_of(source, names), parts.absolute(), index.path.absolute())
        run_parts(work, parts, workers, console, str(source))
        recorded = index.meta.class_names  # used where no class names lie beside the shards
        naming = Naming(recorded, source.class_names(0, recorded))
        done = [work.result(part) for part in range(work.parts)]
        return _written(index, f"shards:{source}", folder, done, naming.differences())


# -- Reports ---------------------------------------------------------------------------------------


class PartReport:
    """What was found in a part."""

    def __init__(self) -> None:
        self.checked = self.size = self.differences = 0
        self._lines: list[str] = []

    def add(self, found: Iterable[Difference]) -> None:
        """Add differences."""
        for difference in found:
            self.differences += 1
            self._lines.append(json.dumps(difference, allow_nan=False))

    def save(self, path: Path) -> None:
        """Write a line of counts and a line for each difference."""
        counts = json.dumps([self.checked, self.size], allow_nan=False)
        write_text(path, "\n".join([counts, *self._lines]) + "\n")


def _written(
    index: IndexFile, spec: str, folder: Path, parts: list[Path], about_the_whole: Iterator[Difference]
) -> Verification:
    """Write the report of all parts and of what concerns the whole data set."""
    counts, first, totals = Counter[str](), list[Difference](), [0, 0]

    def differences() -> Iterator[Difference]:
        yield from about_the_whole
        for part in parts:
            lines = stream_lines(part, LONGEST)
            for place, number in enumerate(json.loads(next(lines))):
                totals[place] += number
            yield from (Difference(*json.loads(line)) for line in lines)

    remove_leftovers(folder)  # of a process that was killed here; the lock of the parts is held
    with replacing(folder / REPORT) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Difference._fields)
        for difference in differences():
            counts[difference.state] += 1
            first += [difference] * (len(first) < SHOWN)
            writer.writerow(map(spreadsheet, difference))
    ordered = {state: counts[state] for state in STATES if counts[state]}
    checked, size = totals
    made = Verification(spec, index.path, folder / REPORT, len(index), checked, size, ordered, tuple(first))
    summary = {"data": spec, "index": str(index.path), "samples": len(index)}
    summary |= {"checked": made.checked, "bytes": made.size, "differences": ordered}
    write_json(folder / SUMMARY, summary)
    return made
