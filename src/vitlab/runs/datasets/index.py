"""`vitlab data index`: the size, the hash and the labels of every sample in one file.

OUT               the index; an older one is replaced at the end if the new one has all that it records
OUT.parts/        parts that are done, while the index is being made
"""

import dataclasses
import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from rich.console import Console

from vitlab.data.indexing.comparison import id_text, lost_records
from vitlab.data.indexing.index_file import (
    CHUNK,
    MAGIC,
    MAGIC_1,
    UNREADABLE,
    IndexFile,
    IndexMeta,
    ShardEntry,
    index_writer,
)
from vitlab.data.indexing.listing import Listing, write_listing
from vitlab.data.loading.accounting import Excluded
from vitlab.data.remote.addresses import Address
from vitlab.data.remote.shard_source import RemoteShardFolder, RemoteShardSource
from vitlab.data.sources.catalogue import resolve
from vitlab.data.sources.shards import (
    INDEX,
    ShardFolder,
    ShardIndex,
    ShardSource,
    leave_out_compressed,
    scan_shard,
    shards_meta,
    shards_spec,
)
from vitlab.errors import first_few, printable
from vitlab.files.store import publish, refuse_address, refuse_unwritable, replacing
from vitlab.files.strict_json import LARGEST_JSON, parse_json
from vitlab.files.user_files import open_regular, read_regular
from vitlab.jobs.job import Workers
from vitlab.jobs.mapping import workers_of
from vitlab.report.tables import Results, Tabular
from vitlab.require import check_arguments, require
from vitlab.runs.datasets.data_parts import LISTING, PER_PART, SampleParts, ShardParts, sizes_of
from vitlab.runs.datasets.parts import keep_parts_of, run_parts, work_folder
from vitlab.runs.progress import announced, counted, default_console

HASHED = np.dtype([("size", "<u8"), ("hash", "<u8", (2,))])
MERGED = "merged.index"
PACK = "vitlab-pack.json"  # what `vitlab data pack` has packed, or will
DAMAGES = {"truncated", "damaged"}  # rules of `Excluded` about a whole shard
SHOWN = 10  # unreadable samples that are named
NAMED = 3  # differences from an older index that are named
RECORD = "to record the data as it is now, give replace=True"
LOST = {  # what an older index recorded otherwise: one, several, and what became of them
    "changed": ("sample", "samples", "with other contents"),
    "missing": ("sample", "samples", "missing"),
    "label": ("sample", "samples", "with another label"),
    "class": ("class", "classes", "missing or renumbered"),
}


@dataclass(frozen=True)
class DataIndex(Tabular):
    """What `index_data` has written."""

    path: Path
    spec: str  # opens the data
    samples: int
    size: int  # bytes of the samples that could be read
    class_names: tuple[str, ...]
    excluded: Excluded
    unreadable: int
    problems: tuple[str, ...]  # the first unreadable samples, and why
    replaced: dict[str, int] = field(default_factory=dict)  # what an older index recorded otherwise, by state
    damaged: tuple[str, ...] = ()  # shards that end too early or are not tar files

    @property
    def table(self) -> Results:
        """The figures."""
        rows = [("data", self.spec), ("index", str(self.path)), ("samples", self.samples), ("bytes", self.size)]
        rows += [("classes", len(self.class_names)), ("unreadable", self.unreadable)]
        rows += [("damaged shards", len(self.damaged))] * bool(self.damaged)
        return Results(("index", "value"), (*rows, *(("excluded", line) for line in self.excluded.lines())))

    def lines(self) -> Iterator[str]:
        """What was indexed, and what could not be read or was left out."""
        classes = counted(len(self.class_names), "class", "classes")
        how = f"indexed {counted(self.samples, 'sample')} in {classes}, {self.size:,} bytes"
        yield f"{how}; open them as {printable(shlex.quote(self.spec))}"
        yield f"{printable(str(self.path))}: the index; vitlab data verify compares the data with it"
        if self.replaced:
            yield f"replaced an index that is not of this data any more: {_lost(self.replaced)}"
        yield from (f"unreadable {line}" for line in self.problems)
        if self.unreadable > len(self.problems):
            yield f"unreadable: {self.unreadable:,} in all; vitlab data check lists them"
        if self.damaged:
            shards = f"{counted(len(self.damaged), 'damaged shard')}: {printable(first_few(self.damaged, SHOWN))}"
            yield f"{shards}; only what could be read of them is indexed"
        yield from (f"excluded {line}" for line in self.excluded.lines())


def index_data(
    data: str | Path,
    out: str | Path | None = None,
    *,
    jobs: int | None = None,
    ray: str = "",
    replace: bool = False,
    console: Console | None = None,
    quiet: bool = False,
) -> DataIndex:
    """Index a data set: the id, size, hash and labels of every sample, its place in tar shards, and the class names.

    `data` is a spec such as folder:photos, or a folder of tar shards. The index of shards is written into their folder,
    any other into the working directory, or either to `out`. `jobs` processes share the work, here or on `ray`. If it
    is stopped or killed, the same call continues. A sample that cannot be read is indexed as such, and counted.

    An index that exists is the only record of what the data was. It is replaced if it is whole and all its samples and
    classes are still there, with the same contents and labels; otherwise only with `replace`.
    """
    check_arguments(index_data, locals())
    workers, screen = workers_of(jobs, ray), default_console(console, quiet=quiet)
    shards = shards_of(data)
    if shards is not None:
        refuse_unfinished(shards.folder)
    path = Path(out) if out else shards.index if shards else Path(_name_of(str(data)))
    refuse_address(path)
    _refuse_other(path, None if out else f"shards:{shards.folder}" if shards else str(data), may_replace=replace)
    refuse_unwritable(path.absolute().parent)
    if shards is not None:
        return _index_shards(shards.folder, path, workers, screen, may_replace=replace)
    return _index_samples(str(data), path, workers, screen, may_replace=replace)


def index_shards(folder: Path | str, index: Path | str | None = None, *, replace: bool = False) -> ShardIndex:
    """Index the webdataset tar shards of a folder, so that any sample can be read by its number.

    It is `index_data` in this process, without messages. The index is written into the folder, or to the file `index`.
    """
    check_arguments(index_shards, locals())
    made = index_data(Path(folder), index, replace=replace, quiet=True)
    return ShardIndex(made.spec, made.samples, made.excluded)


class Shards(NamedTuple):
    """A folder of tar shards and its index."""

    folder: ShardFolder
    index: Path


def shards_of(data: str | Path) -> Shards | None:
    """The tar shards that `data` names: a folder of them, or a spec; None for other data."""
    folder = Path(data)
    if isinstance(data, Path) or folder.is_dir():
        if folder.is_dir() and not any(folder.glob("*.tar")) and not any(folder.glob("*.tar.gz")):
            raise ValueError(f"{folder} has no *.tar files; for class folders of images give folder:{folder}")
        return Shards(ShardFolder(folder), folder / INDEX)
    named = resolve(str(data))
    if named.kind.opener not in (ShardSource, RemoteShardSource) or not named.is_whole:
        return None
    place, index = named.arguments["path"], named.arguments.get("index")
    if isinstance(place, Address):
        return Shards(RemoteShardFolder(place), Path(index or f"{place.name}.index"))
    return Shards(ShardFolder(place), Path(index or place / INDEX))


def refuse_unfinished(shards: ShardFolder) -> None:
    """Raise if the shards are those of a pack that was stopped."""
    card = shards.card(PACK)
    if isinstance(card, dict) and card.get("format") == "vitlab-pack" and "samples" not in card:
        again = shlex.join(["vitlab", "data", "pack", str(card.get("data")), str(shards)])
        finish = f"{again} --per-shard {card.get('per_shard')}"
        raise ValueError(f"{shards} is an unfinished pack; to finish it, run {printable(finish)}")


def _name_of(spec: str) -> str:
    """The name of the index of a spec: that of its folder or file, and of its split."""
    arguments = resolve(spec).arguments
    path = arguments.get("path")
    name = path.name or path.absolute().name if path else spec.partition("?")[0]
    return "-".join(filter(None, (name, str(arguments.get("split", ""))))) + ".index"


def _refuse_other(path: Path, spec: str | None, *, may_replace: bool) -> None:
    """Raise if there is something else than an index, or than one of `spec`, where it is to be written.

    Raises for a damaged index too, unless it may be replaced.
    """
    if not (path.exists() or path.is_symlink()):
        return
    with open_regular(path) as file:
        is_index = file.read(len(MAGIC)) in (MAGIC, MAGIC_1)
    require(is_index, f"{path} exists and is not an index; give another file with out=")
    try:
        known = IndexFile(path)
        known.check_contents()
    except ValueError:
        require(may_replace, f"{path} is damaged, so it cannot be compared with the data; {RECORD}")
        return
    held = known.meta.spec
    is_other = spec is not None and held not in ("", spec)
    require(not is_other, f"{path} is the index of {held}; give another file with out=")


def _replace(path: Path, merged: Path, *, may_replace: bool) -> dict[str, int]:
    """Move a finished index to its place; returns how much an older one recorded otherwise, by state.

    Raises if there is anything, unless it may be replaced.
    """
    counts, first = Counter[str](), list[str]()
    if (known := _recorded(path)) is not None:
        for state, name, _ in lost_records(known, IndexFile(merged), merged.parent):
            counts[state] += 1
            first += [printable(name)] * (len(first) < NAMED)
    if (lost := counts.total()) and not may_replace:
        verify = f"vitlab data verify {shlex.quote(str(path))} reports everything"
        more = first_few([*first, *[""] * (lost - len(first))], NAMED)
        raise ValueError(f"{path} is kept: {_lost(counts)} ({more}); {verify}; {RECORD} (what was read is kept)")
    publish(merged, path)
    return dict(counts)


def _lost(counts: Mapping[str, int]) -> str:
    """What an older index recorded otherwise, in words."""
    return ", ".join(
        f"{counted(counts[state], one, many)} {how}" for state, (one, many, how) in LOST.items() if counts.get(state)
    )


def _recorded(path: Path) -> IndexFile | None:
    """The index at `path`; None if there is none, or one that is damaged or has no hashes."""
    try:
        known = IndexFile(path)
        known.check_contents()
    except (OSError, ValueError):
        return None
    return known if known.has_hashes else None


# -- Samples of any source -------------------------------------------------------------------------


@dataclass(frozen=True)
class HashSamples(SampleParts):
    """Hash the samples of a listing."""

    what: ClassVar[str] = "indexing"

    def do(self, part: int) -> Generator[object]:
        start, count = part * self.per_part, self.amount(part)
        hashed, problems = np.zeros(count, HASHED), list[tuple[int, str]]()
        for place, found in enumerate(self.opened.hashes(start, start + count)):
            if found.problem:
                hashed[place]["size"] = UNREADABLE
                problems.append((start + place, found.problem))
            else:
                hashed[place] = (found.size, np.frombuffer(found.hash, "<u8"))
            yield place
        with replacing(self.result(part)) as temporary:
            temporary.write_bytes(hashed.tobytes() + json.dumps(problems, allow_nan=False).encode())

    def done(self, part: int) -> tuple[np.ndarray, list[tuple[int, str]]]:
        """The sizes and hashes of a part, and why samples could not be read, by number."""
        length = self.amount(part) * HASHED.itemsize
        data = read_regular(self.result(part), LARGEST_JSON)
        problems = parse_json(data[length:], self.result(part).name)
        assert isinstance(problems, list)
        return np.frombuffer(data[:length], HASHED), [(number, words) for number, words in problems]


def _index_samples(spec: str, path: Path, workers: Workers, console: Console, *, may_replace: bool) -> DataIndex:
    folder = path.with_name(f"{path.name}.parts")
    with work_folder(folder):
        with announced(console, f"listing {spec}", is_brief=True):
            listing = write_listing(spec, folder / LISTING)
        keep_parts_of(folder, {"spec": spec, "digest": listing.digest, "per_part": PER_PART}, console)
        work = HashSamples.of(listing, PER_PART, folder)
        run_parts(work, folder, workers, console, spec)
        made = _merge_samples(work, listing, folder / MERGED)
        replaced = _replace(path, folder / MERGED, may_replace=may_replace)
    return dataclasses.replace(made, path=path, replaced=replaced)


def _merge_samples(work: HashSamples, listing: Listing, path: Path) -> DataIndex:
    """Join the listing and the parts."""
    listed, size, unreadable, problems = IndexFile(listing.path), 0, 0, list[str]()
    with index_writer(path) as writer:
        for part in range(work.parts):
            start = part * work.per_part
            records = listed.records(start, start + work.amount(part)).copy()
            first, ids = listed.ids_of(records)
            hashed, found = work.done(part)
            records["key"] -= np.uint64(first)
            records["size"], records["hash"] = hashed["size"], hashed["hash"]
            writer.add(records, ids)
            is_read = records["size"] != UNREADABLE
            size += int(records["size"][is_read].sum())
            unreadable += int((~is_read).sum())
            for number, words in found[: max(SHOWN - len(problems), 0)]:
                (row,) = listed.rows(number, number + 1)
                problems.append(f"{printable(id_text(row.id))} {words}")
        writer.finish(listed.meta)
    names = listed.meta.class_names
    return DataIndex(path, listing.spec, listing.samples, size, names, listing.excluded, unreadable, tuple(problems))


# -- Tar shards ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScanShards(ShardParts):
    """Index tar shards."""

    what: ClassVar[str] = "indexing"

    def do(self, part: int) -> Generator[object]:
        shard = yield from scan_shard(self.source, self.shards[part][0])
        meta = IndexMeta(2, "", shard.classes, (), dict(shard.excluded), "", (shard.entry,))
        with index_writer(self.result(part)) as writer:
            writer.add(shard.records, shard.ids)
            writer.finish(meta)


def _index_shards(
    source: ShardFolder, path: Path, workers: Workers, console: Console, *, may_replace: bool
) -> DataIndex:
    folder, names = path.with_name(f"{path.name}.parts"), source.names()
    with work_folder(folder):
        keep_parts_of(folder, {"shards": names_digest(names)}, console)
        work = ScanShards(source.absolute(), sizes_of(source, names), folder.absolute())
        run_parts(work, folder, workers, console, str(source))
        parts = [work.result(part) for part in range(work.parts)]
        made = merge_shards(parts, source, path, folder / MERGED)
        replaced = _replace(path, folder / MERGED, may_replace=may_replace)
    return dataclasses.replace(made, replaced=replaced)


def names_digest(names: Sequence[str]) -> str:
    """A hash of the names of shards, in their order."""
    return hashlib.sha256(repr(names).encode("utf-8", "surrogateescape")).hexdigest()


def merge_shards(
    parts: Sequence[Path], source: ShardFolder, path: Path, merged: Path, class_names: Sequence[str] = ()
) -> DataIndex:
    """Join the indexes of single shards into one, which will be at `path`."""
    entries, excluded, classes, size, damaged = list[ShardEntry](), Excluded(), 0, 0, list[str]()
    with index_writer(merged) as writer:
        for number, part in enumerate(parts):
            opened = IndexFile(part)
            for at in range(0, len(opened), CHUNK):
                records = opened.records(at, min(at + CHUNK, len(opened))).copy()
                first, ids = opened.ids_of(records)
                records["key"] -= np.uint64(first)
                records["shard"] = number
                size += int(records["size"].sum())
                writer.add(records, ids)
            entries += opened.meta.shard_entries
            found = Excluded(opened.meta.excluded)
            for reason in DAMAGES & found.keys():
                del found[reason]
                excluded.leave_out(reason, entries[-1].name)
                damaged.append(entries[-1].name)
            excluded.add(found)
            classes = max(classes, opened.meta.classes)
        leave_out_compressed(source, excluded)
        meta = shards_meta(source, path, entries, classes, excluded, class_names)
        writer.finish(meta)
    spec, names = shards_spec(source, path), meta.class_names
    return DataIndex(path, spec, writer.entries, size, names, excluded, 0, (), damaged=tuple(damaged))
