"""Tar shards in the webdataset convention, with an index that finds any sample at once.

A sample is the members of one shard whose names agree up to the first dot of the base name: `key.jpg` (or the
suffix of another image format) with `key.cls` (a number) or `key.json` (an object with `label` or `cls`). Its id is
`shard/key`. Nothing is extracted: headers, labels and images are read, and everything that is not a sample is counted
by reason.

The index is that of `indexing/index_file.py`. It is memory-mapped, so that opening ten million entries costs as much as
opening ten.
"""

import hashlib
import os
import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from vitlab.data.class_names import MOST_CLASSES
from vitlab.data.fingerprint import file_stamp, file_state
from vitlab.data.images.refusals import READ_SUFFIXES, BadImage, Reason
from vitlab.data.indexing.hashing import BLOCK, new_hash
from vitlab.data.indexing.index_file import HEADER, IndexFile, IndexMeta, Row, ShardEntry, index_writer, records_of
from vitlab.data.loading.accounting import Excluded
from vitlab.data.source import Paths, Sample, Source, check_index, keep
from vitlab.data.sources.tar import Member, TarError, TarFile
from vitlab.files.strict_json import LARGEST_JSON, parse_json, read_json
from vitlab.files.user_files import read_lines, reading
from vitlab.require import require

INDEX = "vitlab-shards.index"
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
CLASS_NAMES = "classnames.txt"  # one name per line, where the shards come with one
NAME = re.compile(rb"((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)
IMAGES, LABELS = tuple(suffix[1:].encode() for suffix in READ_SUFFIXES), (b"cls", b"json")
PICKLES = (b"pkl", b"pickle", b"pyd", b"pt", b"pth")
LARGEST_LABEL = 2**20  # bytes
LARGEST_WITHOUT_SAMPLES = 2**30  # bytes of a file that is hashed though nothing of it is used; it may be endless
MISSING = -1
MOST_OPEN = 64  # shards at a time in one process
Found = tuple[bytes, int, int, int]  # key, offset and size of an image in its shard, and its label
AGAIN = "index the shards: vitlab data index FOLDER"


# -- Indexing ------------------------------------------------------------------------------------


class ShardFolder:
    """A local folder of tar files; `RemoteShardFolder` is its counterpart in an object store."""

    has_times = True  # whether the time of a file tells that it has changed

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def absolute(self) -> "ShardFolder":
        """The same folder for processes with another working directory."""
        return ShardFolder(self._path.absolute())

    def own_index(self) -> Path | None:
        """Where the shards are opened with an index that is not named; None if it cannot be written."""
        return self._path / INDEX

    def listed(self) -> list[str]:
        """The names of the tar files, sorted."""
        return sorted(filter(is_shard, self._files()))

    def compressed(self) -> list[str]:
        """The names of compressed tar files, which are not read, sorted."""
        return sorted(name for name in self._files() if name.endswith(COMPRESSED) and name[0] != ".")

    def _files(self) -> list[str]:
        require(self._path.is_dir(), f"{self._path} is not a folder; give the folder of the tar files")
        with reading(self._path), os.scandir(self._path) as entries:
            return [entry.name for entry in entries]

    def names(self) -> list[str]:
        """The names of the tar files, sorted; raises if there is none."""
        names = self.listed()
        require(
            bool(names),
            f"{self} has no *.tar files; give the folder that holds them, and decompress .tar.gz files first",
        )
        return names

    def stamp(self, name: str) -> tuple[int, int]:
        """Return size and time of a tar file; (-1, -1) if it is not there."""
        return file_stamp(self._path / name)

    def state(self, name: str) -> tuple[int, ...]:
        """Return what changes on this machine if a tar file is overwritten or removed."""
        return file_state(self._path / name)

    def has(self, name: str) -> bool:
        """Whether there is something of this name, readable or not."""
        path = self._path / name
        return path.exists() or path.is_symlink()

    def card(self, name: str) -> object:
        """The content of a JSON file beside the shards; None if there is none."""
        return read_json(self._path / name) if (self._path / name).is_file() else None

    def tar(self, name: str) -> TarFile:
        """Open a tar file to read all of it."""
        with reading(self._path / name, "a shard"):
            return TarFile(self._path / name)

    def class_names(self, classes: int, recorded: tuple[str, ...] = ()) -> tuple[str, ...]:
        """See `class_names_beside`."""
        return class_names_beside(self._path, classes, recorded)


def is_shard(name: str) -> bool:
    """Whether a file of this name is a shard."""
    return name.endswith(".tar") and name[0] != "."


class ShardIndex(NamedTuple):
    """An index of shards that was written."""

    spec: str  # opens the shards
    samples: int
    excluded: Excluded


@dataclass(frozen=True)
class ScannedShard:
    """What one shard holds."""

    entry: ShardEntry
    records: np.ndarray  # (n,) of the index's RECORD, as if it were the only shard
    ids: bytes
    excluded: Excluded

    @property
    def classes(self) -> int:
        """One more than the largest label."""
        return int(self.records["label"].max(initial=-1)) + 1

    def rows(self) -> Iterator[Row]:
        """The samples as rows of an index."""
        for key, _, size, length, _, label, _, digest in self.records:
            yield Row(self.ids[key : key + length], (int(label),), int(size), digest.tobytes())


def index_folder(folder: Path, index: Path | None = None) -> ShardIndex:
    """Write the index of shards that the caller has written itself; a file at its place is replaced without a look.

    `vitlab.index_data` is for shards and indexes of a user.
    """
    path, source = index or folder / INDEX, ShardFolder(folder)
    names = source.names()
    with index_writer(path) as writer:
        excluded, entries, classes = Excluded(), list[ShardEntry](), 0
        for name in names:
            shard = finished(scan_shard(source, name))
            shard.records["shard"] = len(entries)
            writer.add(shard.records, shard.ids)
            entries.append(shard.entry)
            excluded.add(shard.excluded)
            classes = max(classes, shard.classes)
        leave_out_compressed(source, excluded)
        writer.finish(shards_meta(source, path, entries, classes, excluded))
    return ShardIndex(shards_spec(source, path), writer.entries, excluded)


def leave_out_compressed(folder: ShardFolder, excluded: Excluded) -> None:
    """Count the compressed tar files beside the shards."""
    for name in folder.compressed():
        excluded.leave_out("compressed_shard", name)


def shards_spec(folder: ShardFolder, index: Path) -> str:
    """What opens the shards of a folder with this index."""
    return f"shards:{folder}{'' if index == folder.own_index() else f'?index={index}'}"


def shards_meta(
    folder: ShardFolder,
    index: Path,
    entries: Sequence[ShardEntry],
    classes: int,
    excluded: Excluded,
    names: Sequence[str] = (),
) -> IndexMeta:
    """The JSON part of an index of shards; raises if there are no samples.

    `names` are those of the classes where no file beside the shards has them.
    """
    samples = sum(entry.samples for entry in entries)
    require(samples > 0, f"{folder} has no labelled images in its shards; left out: {', '.join(excluded.lines())}")
    found = folder.class_names(classes, tuple(names))
    spec = "" if index == folder.own_index() else f"shards:{folder}"
    return IndexMeta(2, spec, classes, found, dict(sorted(excluded.items())), "", tuple(entries))


def scan_shard(folder: ShardFolder, name: str) -> Generator[int, None, ScannedShard]:
    """Read one shard and hash its images; yields how many are done. Raises if it changes meanwhile."""
    tar, excluded = folder.tar(name), Excluded()
    stamp, found = tar.stamp(), list(_samples(tar, name, excluded))
    whole = whole_hash(tar) if found or stamp[0] <= LARGEST_WITHOUT_SAMPLES else ""
    records, ids = records_of([key for key, *_ in found], [(label,) for *_, label in found])
    for number, (_, offset, size, _) in enumerate(found):
        records[number]["offset"], records[number]["size"] = offset, size
        records[number]["hash"] = np.frombuffer(_hash(tar, offset, offset + size).digest(), "<u8")
        yield number + 1
    is_same = tar.stamp() == stamp == folder.stamp(name)
    require(is_same, f"{folder}/{name} changed while it was read; stop its writer first")
    time = stamp[1] if folder.has_times else None
    return ScannedShard(ShardEntry(name, stamp[0], time, len(found), whole), records, ids, excluded)


def whole_hash(tar: TarFile) -> str:
    """Hash a whole tar file, in hexadecimal."""
    return _hash(tar, 0, tar.stamp()[0]).hexdigest()


def _hash(tar: TarFile, start: int, stop: int) -> "hashlib.blake2b":
    """The hash of the bytes from `start` up to `stop`."""
    digest = new_hash()
    for at in range(start, stop, BLOCK):
        digest.update(tar.read(at, min(BLOCK, stop - at)))
    return digest


def finished(steps: Generator[int, None, ScannedShard]) -> ScannedShard:
    """The shard after all steps of `scan_shard`."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def _samples(tar: TarFile, name: str, excluded: Excluded) -> Iterator[Found]:
    """Yield the labelled images of one shard, in order; count everything else in `excluded`."""
    images: dict[bytes, Member] = {}
    labels: dict[bytes, dict[bytes, int | None]] = {}
    try:
        for member in tar.members():
            reason, key, suffix = _judge(member)
            if reason:
                excluded[reason] += 1
            elif suffix in IMAGES and key in images:
                excluded["duplicate_key"] += 1
            elif suffix in IMAGES:
                images[key] = member
            elif suffix in LABELS:  # the first one counts, as does the first image
                labels.setdefault(key, {}).setdefault(suffix, _label(tar, member, suffix))
    except TarError as damage:
        excluded.leave_out(damage.reason, name)
    for key, member in images.items():
        given = labels.pop(key, {})
        label = given.get(b"cls", given.get(b"json", MISSING))
        if label is None:
            excluded["bad_label"] += 1
        elif label == MISSING:
            excluded["missing_label"] += 1
        else:
            yield key, member.offset, member.size, label
    if labels:
        excluded["label_without_image"] += len(labels)


def _judge(member: Member) -> tuple[str, bytes, bytes]:
    """(why it is left out or "", key, suffix); folders are neither used nor counted."""
    parts = member.name.split(b"/")
    match = NAME.fullmatch(member.name)
    key, suffix = (match[1], match[2].lower()) if match else (member.name, b"")
    if member.kind == "folder":
        return "", key, b""
    if member.kind != "file":
        return member.kind, key, suffix
    if b".." in parts or not parts[0]:
        return "unsafe_name", key, suffix
    if suffix.rsplit(b".")[-1] in PICKLES:
        return "pickle", key, suffix
    return ("" if suffix in IMAGES + LABELS else "other_member"), key, suffix


def _label(tar: TarFile, member: Member, suffix: bytes) -> int | None:
    """Read the label in a member: None if it is not a class number, MISSING if the JSON has no label."""
    if member.size > LARGEST_LABEL:
        return None
    data = tar.read(member.offset, member.size)
    if suffix == b"cls":
        text = data.strip()
        return int(text) if text.isdigit() and len(text) < 10 and int(text) < MOST_CLASSES else None
    try:
        value = parse_json(data, "label")
    except ValueError:
        return None
    given = cast(dict[str, object], value) if isinstance(value, dict) else {}
    label = given.get("label", given.get("cls"))
    if label is None:
        return MISSING
    return label if type(label) is int and 0 <= label < MOST_CLASSES else None


# -- Reading -------------------------------------------------------------------------------------


class ShardSource(Source):
    """The samples of indexed shards by number, sorted by shard name; `excluded` counts what the index left out."""

    block = 1024  # neighbours that the training order keeps together

    def __init__(self, path: Path, index: Path | None = None) -> None:
        self._folder = Path(path).absolute()
        self._path = Path(index or self._folder / INDEX).absolute()
        index_file = IndexFile(self._path, AGAIN)
        meta, entries = index_file.meta, len(index_file)
        index_file.check(entries > 0 and meta.classes > 0 and bool(meta.shards))
        self.excluded, self._shards = Excluded(meta.excluded), meta.shard_entries
        self._stamps = self._checked_stamps()
        self._records = np.memmap(self._path, index_file.record, "r", HEADER.size, (entries,))
        self._keys = np.memmap(self._path, np.uint8, "r", index_file.ids_at, (index_file.id_bytes,))
        self._tars: dict[int, TarFile] = {}
        self.class_names = class_names_beside(self._folder, meta.classes, meta.class_names)

    def __reduce__(self) -> tuple[object, ...]:
        return self.reopened(self._folder, self._path)  # another process maps the index itself

    def _checked_stamps(self) -> list[tuple[int, int]]:
        """The stamps of the shards, which must be those that were indexed."""
        other = set(ShardFolder(self._folder).names()) ^ {shard.name for shard in self._shards}
        require(not other, f"{self._folder} has other shards than were indexed: {sorted(other)!r:.200}; {AGAIN}")
        stamps = [file_stamp(self._folder / shard.name) for shard in self._shards]
        for shard, (size, time) in zip(self._shards, stamps, strict=True):
            same = size == shard.size and shard.modified in (None, time)
            require(same, f"shard {shard.name} of {self._folder} changed since it was indexed; {AGAIN}")
        return stamps

    def __len__(self) -> int:
        return len(self._records)

    def item(self, index: int) -> Sample:
        record, name = self._record(index), self.id(index)
        shard = int(record["shard"])
        try:
            tar = self._tar(shard)
        except OSError as error:
            raise BadImage(Reason.unreadable, f"cannot be read ({error.strerror}); check its shard", name) from None
        data = tar.read_image(int(record["offset"]), int(record["size"]), self._stamps[shard], name, AGAIN)
        return Sample(data, self.label(index), name)

    def label(self, index: int) -> tuple[int, ...]:
        return (int(self._record(index)["label"]),)

    def id(self, index: int) -> str:
        record = self._record(index)
        key = self._keys[record["key"] : record["key"] + record["length"]].tobytes()
        return f"{self._shards[record['shard']].name.removesuffix('.tar')}/{os.fsdecode(key)}"

    def stamp(self, index: int) -> tuple[int, ...]:
        return self._stamps[self._record(index)["shard"]]

    def paths(self) -> Paths:
        return [str(self._folder / shard.name) for shard in self._shards]

    def _record(self, index: int) -> np.void:
        check_index(index, len(self))
        record = self._records[index]
        require(int(record["shard"]) < len(self._shards), f"{self._path} is damaged; {AGAIN}")
        return record

    def _tar(self, shard: int) -> TarFile:
        name = self._shards[shard].name
        return self._tars.get(shard) or keep(self._tars, shard, TarFile(self._folder / name), MOST_OPEN)


def class_names_beside(folder: Path, classes: int, recorded: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The class names in the file beside the shards; without one those `recorded`, or else numbers."""
    file = folder / CLASS_NAMES
    if not file.exists():
        return recorded or tuple(map(str, range(classes)))
    names = tuple(read_lines(file, LARGEST_JSON))
    enough = len(names) >= classes
    require(enough, f"{file.name} has too few names, {len(names)}; the shards have labels up to {classes - 1}")
    return names
