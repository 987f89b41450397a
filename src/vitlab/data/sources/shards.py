"""Tar shards in the webdataset convention, with an index that finds any sample at once.

A sample is the members of one shard whose names agree up to the first dot of the base name: `key.jpg` (jpeg, png,
webp) with `key.cls` (a number) or `key.json` (an object with `label` or `cls`). Its id is `shard/key`. Nothing is
extracted: headers and labels are read, and everything that is not a sample is counted by reason.

The index, little-endian: HEADER (64 bytes), `entries` times RECORD (32 bytes), the concatenated keys, and JSON with
version, classes (their number), excluded (reason: count) and shards (name, bytes, modification time in ns). It is
memory-mapped, so that opening ten million entries costs as much as opening ten.
"""

import json
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np

from vitlab.data.class_names import MOST_CLASSES
from vitlab.data.fingerprint import file_stamp
from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.loading.accounting import Excluded
from vitlab.data.source import Paths, Sample, Source, check_index, keep
from vitlab.data.sources.tar import Member, TarError, TarFile
from vitlab.require import check_arguments, require
from vitlab.store import replacing
from vitlab.strict_json import LARGEST_JSON, from_json, parse_json, to_json
from vitlab.user_files import open_regular, read_lines

INDEX = "vitlab-shards.index"
CLASS_NAMES = "classnames.txt"  # one name per line, where the shards come with one
HEADER = struct.Struct("<8sQQQ32x")  # MAGIC, entries, bytes of keys, bytes of JSON
MAGIC = b"VITSHRD1"
RECORD = np.dtype(
    [("key", "<u8"), ("offset", "<u8"), ("size", "<u4"), ("length", "<u4"), ("shard", "<u4"), ("label", "<i4")]
)  # `key` and `length`: place of the key among the keys; `offset` and `size`: of the image in its shard
NAME = re.compile(rb"((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)
IMAGES, LABELS = (b"jpg", b"jpeg", b"png", b"webp"), (b"cls", b"json")
PICKLES = (b"pkl", b"pickle", b"pyd", b"pt", b"pth")
LARGEST_LABEL = 2**20  # bytes
MISSING = -1
MOST_OPEN = 64  # shards at a time in one process
Found = tuple[bytes, int, int, int]  # key, offset and size of an image in its shard, and its label
AGAIN = "index the shards: vitlab data index FOLDER"


@dataclass(frozen=True)
class IndexMeta:
    """The JSON part of an index."""

    version: int
    classes: int
    excluded: dict[str, int]
    shards: tuple[tuple[str, int, int], ...]


# -- Indexing ------------------------------------------------------------------------------------


class ShardIndex(NamedTuple):
    """What `index_shards` has written."""

    spec: str  # opens the shards
    samples: int
    excluded: Excluded


def index_shards(folder: Path | str, index: Path | str | None = None) -> ShardIndex:
    """Index the webdataset tar shards of a folder, so that any sample can be read by its number.

    Every *.tar is read once. The index is written into the folder, or to the file `index`.
    """
    check_arguments(index_shards, locals())
    folder, spec, excluded = Path(folder), f"shards:{folder}{f'?index={index}' if index else ''}", Excluded()
    shards: list[tuple[str, int, int]] = []
    entries = classes = 0
    names = _shard_names(folder)
    with replacing(Path(index or folder / INDEX)) as path, path.open("wb") as file, tempfile.TemporaryFile() as keys:
        file.write(bytes(HEADER.size))
        for name in names:
            tar = TarFile(folder / name)
            records = _records(len(shards), list(_samples(tar, excluded)), keys)
            shards.append((name, *tar.stamp()))
            file.write(records.tobytes())
            entries += len(records)
            classes = max(classes, int(records["label"].max(initial=-1)) + 1)
        require(entries > 0, f"{folder} has no labelled images in its shards; left out: {', '.join(excluded.lines())}")
        key_bytes = keys.tell()
        keys.seek(0)
        shutil.copyfileobj(keys, file)
        meta = json.dumps(to_json(IndexMeta(1, classes, dict(excluded), tuple(shards))), allow_nan=False).encode()
        file.write(meta)
        file.seek(0)
        file.write(HEADER.pack(MAGIC, entries, key_bytes, len(meta)))
    return ShardIndex(spec, entries, excluded)


def _shard_names(folder: Path) -> list[str]:
    require(folder.is_dir(), f"{folder} is not a folder; give the folder of the tar files")
    names = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(".tar") and entry.name[0] != ".")
    require(bool(names), f"{folder} has no *.tar files; packed ones (.tar.gz) must be unpacked to .tar first")
    return names


def _records(shard: int, found: list[Found], keys: IO[bytes]) -> np.ndarray:
    """The records of one shard; appends its keys to `keys`."""
    records = np.zeros(len(found), RECORD)
    records["shard"] = shard
    for number, (key, offset, size, label) in enumerate(found):
        records[number] = (keys.tell(), offset, min(size, 2**32 - 1), len(key), shard, label)
        keys.write(key)
    return records


def _samples(tar: TarFile, excluded: Excluded) -> Iterator[Found]:
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
        excluded[damage.reason] += 1
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
        entries, key_bytes, meta = _open_index(self._path)
        self.excluded, self._shards = Excluded(meta.excluded), meta.shards
        self._check_shards()
        self._records = np.memmap(self._path, RECORD, "r", HEADER.size, (entries,))
        self._keys = np.memmap(self._path, np.uint8, "r", HEADER.size + entries * RECORD.itemsize, (key_bytes,))
        self._tars: dict[int, TarFile] = {}
        self.class_names = _class_names(self._folder / CLASS_NAMES, meta.classes)

    def __reduce__(self) -> tuple[object, ...]:
        return self.reopened(self._folder, self._path)  # another process maps the index itself

    def _check_shards(self) -> None:
        listed = [name for name, _, _ in self._shards]
        other = set(_shard_names(self._folder)) ^ set(listed)
        require(not other, f"{self._folder} has other shards than were indexed: {sorted(other)!r:.200}; {AGAIN}")
        for name, size, time in self._shards:
            same = file_stamp(self._folder / name) == (size, time)
            require(same, f"shard {name} of {self._folder} changed since it was indexed; {AGAIN}")

    def __len__(self) -> int:
        return len(self._records)

    def item(self, index: int) -> Sample:
        record, name = self._record(index), self.id(index)
        shard = int(record["shard"])
        try:
            tar = self._tar(shard)
        except OSError as error:
            raise BadImage(Reason.unreadable, f"cannot be read ({error.strerror}); check its shard", name) from None
        data = tar.read_image(int(record["offset"]), int(record["size"]), self._shards[shard][1:], name, AGAIN)
        return Sample(data, self.label(index), name)

    def label(self, index: int) -> tuple[int, ...]:
        return (int(self._record(index)["label"]),)

    def id(self, index: int) -> str:
        record = self._record(index)
        key = self._keys[record["key"] : record["key"] + record["length"]].tobytes()
        return f"{self._shards[record['shard']][0].removesuffix('.tar')}/{os.fsdecode(key)}"

    def stamp(self, index: int) -> tuple[int, ...]:
        return self._shards[self._record(index)["shard"]][1:]

    def paths(self) -> Paths:
        return [str(self._folder / name) for name, _, _ in self._shards]

    def _record(self, index: int) -> np.void:
        check_index(index, len(self))
        record = self._records[index]
        require(int(record["shard"]) < len(self._shards), f"{self._path} is damaged; {AGAIN}")
        return record

    def _tar(self, shard: int) -> TarFile:
        name = self._shards[shard][0]
        return self._tars.get(shard) or keep(self._tars, shard, TarFile(self._folder / name), MOST_OPEN)


def _open_index(path: Path) -> tuple[int, int, IndexMeta]:
    """Read the header and the JSON part of an index, and check its length."""
    if not path.exists() and not path.is_symlink():
        raise FileNotFoundError(f"{path} does not exist; {AGAIN}")
    with open_regular(path) as file:
        header = file.read(HEADER.size).ljust(HEADER.size, b"\0")
        magic, entries, key_bytes, meta_bytes = HEADER.unpack(header)
        require(magic == MAGIC, f"{path} is not an index of shards; {AGAIN}")
        start = HEADER.size + entries * RECORD.itemsize + key_bytes
        is_whole = min(entries, key_bytes) > 0 and start + meta_bytes == path.stat().st_size
        require(is_whole and meta_bytes <= LARGEST_JSON, f"{path} is damaged; {AGAIN}")
        file.seek(start)
        meta = from_json(IndexMeta, parse_json(file.read(meta_bytes), path.name), path.name)
    require(meta.version == 1 and 0 < meta.classes <= MOST_CLASSES, f"{path} is of another version; {AGAIN}")
    return entries, key_bytes, meta


def _class_names(file: Path, classes: int) -> tuple[str, ...]:
    if not file.exists():
        return tuple(map(str, range(classes)))
    names = tuple(read_lines(file, LARGEST_JSON))
    enough = len(names) >= classes
    require(enough, f"{file.name} names {len(names)} classes; the shards have labels up to {classes - 1}")
    return names
