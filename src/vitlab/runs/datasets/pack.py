"""`vitlab data pack`: copy a data set into tar shards in the webdataset convention, with an index and hashes.

OUT/data-000000.tar, ...   samples in the order of the data: NUMBER.jpg, NUMBER.cls, NUMBER.json with the original id
OUT/classnames.txt         a class name per line, if a text file can hold them
OUT/vitlab-shards.index    written last
OUT/vitlab-pack.json       what was packed
OUT/left-out.csv           samples that could not be read, if there are any
OUT/.vitlab-parts/         what is done, while shards are being written
"""

import csv
import json
import shlex
import tarfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from rich.console import Console

from vitlab.data.fingerprint import file_stamp
from vitlab.data.indexing.comparison import id_text
from vitlab.data.indexing.hashing import data_hash, file_hash
from vitlab.data.indexing.index_file import CHUNK, IndexFile, IndexMeta, ShardEntry, index_writer, records_of
from vitlab.data.indexing.listing import Listing, write_listing
from vitlab.data.sources.catalogue import refuse_secrets
from vitlab.data.sources.shard_writing import add_members, storable
from vitlab.data.sources.shards import CLASS_NAMES, INDEX, ShardFolder
from vitlab.errors import first_few, printable
from vitlab.files.store import (
    publish,
    refuse_strange,
    refuse_unwritable,
    remove_leftovers,
    replacing,
    write_json,
    write_text,
)
from vitlab.files.strict_json import LARGEST_JSON, read_json
from vitlab.files.user_files import read_regular
from vitlab.jobs.job import Workers
from vitlab.jobs.mapping import workers_of
from vitlab.report.tables import Results, Tabular, spreadsheet
from vitlab.require import check_arguments, require
from vitlab.runs.datasets.data_parts import LISTING, SampleParts
from vitlab.runs.datasets.index import MERGED, PACK, merge_shards
from vitlab.runs.datasets.parts import (
    PARTS,
    SomeParts,
    data_state,
    keep_parts_of,
    recorded_state,
    run_parts,
    work_folder,
)
from vitlab.runs.progress import announced, counted, default_console, say

PER_SHARD = 4096  # samples
LEFT_OUT = "left-out.csv"
SHOWN = 10  # damaged shards that are named


@dataclass(frozen=True)
class Packed(Tabular):
    """What `pack_data` has written."""

    folder: Path
    spec: str  # opens the shards
    samples: int
    shards: int
    size: int  # bytes of the shards
    class_names: tuple[str, ...]
    converted: int  # samples that are stored as PNG because shards do not hold their format
    left_out: int  # samples that could not be read
    damaged: int = 0  # samples that could not be decoded, and are stored as they are

    @property
    def table(self) -> Results:
        """The figures."""
        rows = [("data", self.spec), ("samples", self.samples), ("shards", self.shards), ("bytes", self.size)]
        rows += [("classes", len(self.class_names)), ("converted", self.converted), ("left out", self.left_out)]
        rows += [("damaged", self.damaged)] * bool(self.damaged)
        return Results(("pack", "value"), tuple(rows))

    def lines(self) -> Iterator[str]:
        """What was packed, and how to open it."""
        what = f"{counted(self.samples, 'sample')} in {counted(len(self.class_names), 'class', 'classes')}"
        shards = counted(self.shards, "shard")
        yield f"packed {what} into {shards}, {self.size:,} bytes; open them as {printable(shlex.quote(self.spec))}"
        if self.converted:
            what = "8-bit RGB or grey, without transparency"
            yield f"converted {counted(self.converted, 'sample')} to PNG ({what}): shards hold JPEG, PNG and WebP"
        if self.damaged:
            how = "that cannot be decoded, as found; vitlab data check names all that are damaged"
            yield f"stored {counted(self.damaged, 'sample')} {how}"
        if self.left_out:
            where = printable(str(self.folder / LEFT_OUT))
            yield f"left out {counted(self.left_out, 'sample')} that could not be read; {where} gives the reasons"


def pack_data(
    data: str,
    out: str | Path,
    *,
    per_shard: int = PER_SHARD,
    jobs: int | None = None,
    ray: str = "",
    console: Console | None = None,
    quiet: bool = False,
) -> Packed:
    """Copy a data set of single labels into tar shards (webdataset convention) with an index.

    Image files are stored as they are, pixels and formats that shards do not hold as PNG. The bytes depend on the data
    and on `per_shard`, the samples in a shard, but not on the number of `jobs`. A folder with other files is refused.
    If it is stopped or killed, the same call continues. On a finished pack it compares every shard with the index, and
    writes missing and damaged ones again; it raises if the data has changed since.
    """
    check_arguments(pack_data, locals())
    refuse_secrets(data)
    require(per_shard >= 1, f"per_shard= is {per_shard}; at least 1 sample is needed")
    workers, screen, folder = workers_of(jobs, ray), default_console(console, quiet=quiet), Path(out)
    refuse_unwritable(folder)
    refuse_strange(folder, (PACK,))
    parts = folder / PARTS
    with work_folder(parts):
        remove_leftovers(folder)
        with announced(screen, f"listing {data}", is_brief=True):
            listing = write_listing(data, parts / LISTING)
        listed = IndexFile(listing.path)
        _require_single_labels(listed, data)
        plan = {"format": "vitlab-pack", "version": 1, "data": data, "digest": listing.digest, "per_shard": per_shard}
        root = listing.root if listing.is_as_stored else ""
        work = PackSamples.of(replace(listing, root=root), per_shard, parts)
        is_packed = _is_packed(folder, plan)
        keep_parts_of(parts, plan, screen)
        if is_packed:
            _repair(work, listed.meta.class_names, workers, screen)
        else:
            write_json(folder / PACK, plan)
            run_parts(work, parts, workers, screen, data)
            _finish(work, listing, folder, plan)
    return _packed(folder)


def _require_single_labels(listed: IndexFile, spec: str) -> None:
    for at in range(0, len(listed), CHUNK):
        several = np.flatnonzero(listed.records(at, min(at + CHUNK, len(listed)))["labels"] != 1)
        if len(several):
            (row,) = listed.rows(at + int(several[0]), at + int(several[0]) + 1)
            what = f"{printable(id_text(row.id))!r:.200} has {len(row.labels)} labels"
            raise ValueError(f"{spec} cannot be packed: {what}, and shards hold one for each image")


def _is_packed(folder: Path, plan: Mapping[str, object]) -> bool:
    """Whether a pack of all of this was finished. Raises if the folder has a pack of something else."""
    file = folder / PACK
    found = read_json(file) if file.exists() else plan
    known = found if isinstance(found, dict) else {}
    is_same = all(known.get(name) == value for name, value in plan.items())
    other = f"{folder} has a pack of {known.get('data')!r:.200} with other samples or settings"
    require(is_same, f"{other}; choose another folder, or remove it first")
    return "samples" in known and (folder / INDEX).exists()


@dataclass(frozen=True)
class PackSamples(SampleParts):
    """Write the samples of a listing into shards, each as a part."""

    what: ClassVar[str] = "packing"

    def result(self, part: int) -> Path:
        return self.folder / f"{part:06d}.index"

    def shard(self, part: int) -> Path:
        """The file of a shard."""
        return self.folder.parent / f"data-{part:06d}.tar"

    def outputs(self, part: int) -> tuple[Path, ...]:
        return self.shard(part), self.notes(part), self.result(part)

    def notes(self, part: int) -> Path:
        """What became of the samples of a part: how many were converted, and which could not be read."""
        return self.folder / f"{part:06d}.json"

    def do(self, part: int) -> Generator[object]:
        start, count = part * self.per_part, self.amount(part)
        keys, labels, places, converted, damaged, left_out = [], [], [], 0, 0, []
        with replacing(self.shard(part)) as temporary, tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number, found in enumerate(self.opened.read(start, start + count), start):
                if found.problem:
                    left_out.append((id_text(found.row.id), found.problem))
                    continue
                stored, suffix, is_damaged = storable(found.data, id_text(found.row.id))
                ((label,), key) = found.row.labels, f"{number:09d}"
                origin = json.dumps({"id": id_text(found.row.id), "label": label}, allow_nan=False).encode()
                offset = add_members(tar, key, {suffix: stored, "cls": str(label).encode(), "json": origin})
                keys.append(key.encode())
                labels.append((label,))
                places.append((offset, len(stored), data_hash(stored)))
                converted += stored is not found.data
                damaged += is_damaged
                yield number
        write_json(self.notes(part), {"converted": converted, "damaged": damaged, "left_out": left_out})
        self._write_index(part, keys, labels, places, len(left_out))

    def _write_index(
        self,
        part: int,
        keys: Sequence[bytes],
        labels: Sequence[tuple[int, ...]],
        places: Sequence[tuple[int, int, bytes]],
        left_out: int,
    ) -> None:
        records, ids = records_of(keys, labels)
        for number, (offset, size, digest) in enumerate(places):
            records[number]["offset"], records[number]["size"] = offset, size
            records[number]["hash"] = np.frombuffer(digest, "<u8")
        shard = self.shard(part)
        entry = ShardEntry(shard.name, shard.stat().st_size, None, len(keys), file_hash(shard))
        excluded = {"unreadable": left_out} if left_out else {}
        classes = int(records["label"].max(initial=-1)) + 1
        with index_writer(self.result(part)) as writer:
            writer.add(records, ids)
            writer.finish(IndexMeta(2, "", classes, (), excluded, "", (entry,)))


def _repair(work: PackSamples, names: Sequence[str], workers: Workers, console: Console) -> None:
    """Compare a finished pack with its index and its source, and write what is missing or damaged again."""
    folder, card = work.folder.parent, read_json(work.folder.parent / PACK)
    assert isinstance(card, dict)
    again = f"choose another folder, or remove {folder} and pack again"
    is_same = card.get("source") == data_state(work)
    changed = f"the files of {work.spec} have other sizes or times than when they were packed into {folder}"
    require(is_same, f"{changed}; {again} (vitlab data verify {folder} checks the shards by themselves)")
    index = IndexFile(folder / INDEX, again)
    index.check_contents()
    entries, known = index.meta.shard_entries, [work.shard(part).name for part in range(work.parts)]
    strange = sorted(set(ShardFolder(folder).listed()) - set(known))
    is_whole = [entry.name for entry in entries] == known and (not card["left_out"] or (folder / LEFT_OUT).exists())
    require(is_whole and not strange, f"{folder} is not as it was packed (other shards: {strange!r:.200}); {again}")
    with announced(console, f"checking {counted(len(entries), 'shard')} of {folder}", is_brief=True):
        bad = tuple(part for part, entry in enumerate(entries) if not _is_sound(folder, entry))
    if bad:
        listed = first_few([entries[part].name for part in bad], SHOWN)
        say(console, f"missing or damaged, written again: {listed}", "yellow")
        run_parts(SomeParts(work, bad), work.folder, workers, console, work.spec)
        for part in bad:
            (made,) = IndexFile(work.result(part)).meta.shard_entries
            other = f"{made.name} cannot be written as it was, because {work.spec} has changed"
            require(made == entries[part], f"{other}; {again}")
    _write_class_names(folder, names)


def _is_sound(folder: Path, entry: ShardEntry) -> bool:
    """Whether a shard has the size and the hash that the index has."""
    path = folder / entry.name
    try:
        return file_stamp(path)[0] == entry.size and file_hash(path) == entry.hash
    except OSError:
        return False


def _write_class_names(folder: Path, names: Sequence[str]) -> None:
    """Write the class names beside the shards, unless they are there or a text file cannot hold them."""
    text, file = "".join(f"{name}\n" for name in names), folder / CLASS_NAMES
    if all(name.isprintable() and name == name.strip() != "" for name in names) and not (
        file.is_file() and read_regular(file, LARGEST_JSON) == text.encode()
    ):
        write_text(file, text)


def _finish(work: PackSamples, listing: Listing, folder: Path, plan: Mapping[str, object]) -> None:
    """Write the class names, the list of what is left out, the index, and last how much there is."""
    names = IndexFile(listing.path).meta.class_names
    _write_class_names(folder, names)
    converted, damaged, left_out = _written_notes(work, folder)
    parts = [work.result(part) for part in range(work.parts)]
    made = merge_shards(parts, ShardFolder(folder), folder / INDEX, work.folder / MERGED, names)
    publish(work.folder / MERGED, folder / INDEX)
    size = sum(work.shard(part).stat().st_size for part in range(work.parts))
    counts = {"samples": made.samples, "shards": work.parts, "size": size}
    counts |= {"converted": converted, "damaged": damaged, "left_out": left_out}
    write_json(folder / PACK, {**plan, **counts, "source": recorded_state(work)})


def _packed(folder: Path) -> Packed:
    card, meta = read_json(folder / PACK), IndexFile(folder / INDEX).meta
    assert isinstance(card, dict)
    counts = {name: card[name] for name in ("samples", "shards", "size", "converted", "left_out")}
    counts["damaged"] = card.get("damaged", 0)  # not counted in older packs
    return Packed(folder, f"shards:{folder}", class_names=meta.class_names, **counts)


def _written_notes(work: PackSamples, folder: Path) -> tuple[int, int, int]:
    """Write the list of what is left out, if anything is; returns how many were converted, damaged and left out."""
    converted = damaged = left_out = 0
    with replacing(folder / LEFT_OUT) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("id", "reason"))
        for part in range(work.parts):
            notes = read_json(work.notes(part))
            assert isinstance(notes, dict)
            converted += notes["converted"]
            damaged += notes.get("damaged", 0)  # an older program has not counted them
            left_out += len(notes["left_out"])
            writer.writerows([spreadsheet(cell) for cell in row] for row in notes["left_out"])
    if not left_out:
        (folder / LEFT_OUT).unlink()
    return converted, damaged, left_out
