"""The file of an index, which is streamed and memory-mapped, so that its length costs no memory.

Layout, little-endian: HEADER (64 bytes), `entries` times RECORD, the concatenated ids, and JSON (`IndexMeta`).

There are two kinds. An index of tar shards lists the shards, and an id is the key of a sample in its shard. An index of
any other data has no shards, and an id is that of the source. An id is followed by the class numbers of its sample as
32-bit numbers if the sample has several or none.

Version 1 (`VITSHRD1`) was for shards only and had no hashes; it can still be opened.
"""

import contextlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from vitlab.data.class_names import MOST_CLASSES
from vitlab.data.indexing.hashing import BLOCK, new_hash
from vitlab.files.store import replacing
from vitlab.files.strict_json import from_json, parse_json, to_json
from vitlab.files.user_files import open_regular
from vitlab.require import require

HEADER = struct.Struct("<8sQQQ32x")  # magic, entries, bytes of ids, bytes of JSON
MAGIC, MAGIC_1 = b"VITINDX2", b"VITSHRD1"
RECORD = np.dtype(
    [
        *(("key", "<u8"), ("offset", "<u8"), ("size", "<u8"), ("length", "<u4")),
        *(("shard", "<u4"), ("label", "<i4"), ("labels", "<u4"), ("hash", "<u8", (2,))),
    ]
)  # `key` and `length`: place of the id among the ids; `offset`: of the image in its shard; `labels`: how many
RECORD_1 = np.dtype(
    [("key", "<u8"), ("offset", "<u8"), ("size", "<u4"), ("length", "<u4"), ("shard", "<u4"), ("label", "<i4")]
)
UNREADABLE = 2**64 - 1  # the size of a sample that could not be read; its hash is zero
CHUNK = 4096  # records that are in memory at a time
LARGEST_META = 2**28  # bytes: a million shards
AGAIN = "index the data again: vitlab data index SRC"


class ShardEntry(NamedTuple):
    """A tar shard of an index."""

    name: str
    size: int
    modified: int | None  # time in nanoseconds; None if it is not checked, as for packed and for remote shards
    samples: int
    hash: str  # of the whole file; empty in version 1


@dataclass(frozen=True)
class IndexMeta:
    """The JSON part of an index."""

    version: int
    spec: str  # opens the data; empty for shards beside their index
    classes: int  # numbers that labels may have
    class_names: tuple[str, ...]
    excluded: dict[str, int]
    digest: str  # of the classes, the ids and the labels; empty in version 1
    shards: tuple[tuple[str, int, int | None, int, str], ...] = ()  # of ShardEntry
    contents: str = ""  # hash of the records and ids in the file; empty where an older program wrote it

    @cached_property
    def shard_entries(self) -> tuple[ShardEntry, ...]:
        """The shards, in the order of their samples."""
        return tuple(ShardEntry(*row) for row in self.shards)


@dataclass(frozen=True)
class _Meta1:
    """The JSON part of version 1."""

    version: int
    classes: int
    excluded: dict[str, int]
    shards: tuple[tuple[str, int, int], ...]


class Row(NamedTuple):
    """One sample of an index."""

    id: bytes
    labels: tuple[int, ...]
    size: int
    hash: bytes


# -- Writing ---------------------------------------------------------------------------------------


class IndexWriter:
    """Appends records; ids wait in a temporary file that has no name."""

    def __init__(self, file: IO[bytes], ids: IO[bytes]) -> None:
        self._file, self._ids = file, ids
        self.entries, self._hashes = 0, (new_hash(), new_hash())  # of the records, of the ids
        self._file.write(bytes(HEADER.size))

    def add(self, records: np.ndarray, ids: bytes | memoryview) -> None:
        """Append records whose keys are places in `ids`."""
        shifted = records.copy()
        shifted["key"] += np.uint64(self._ids.tell())
        for file, data, digest in zip((self._file, self._ids), (shifted.tobytes(), ids), self._hashes, strict=True):
            file.write(data)
            digest.update(data)
        self.entries += len(records)

    def finish(self, meta: IndexMeta) -> None:
        """Write the ids, the JSON and the header."""
        length = self._ids.tell()
        self._ids.seek(0)
        shutil.copyfileobj(self._ids, self._file, 2**20)
        written = replace(meta, contents="".join(digest.hexdigest() for digest in self._hashes))
        text = json.dumps(to_json(written), allow_nan=False).encode()
        require(len(text) <= LARGEST_META, f"the index lists {len(meta.shards):,} shards, which are too many")
        self._file.write(text)
        self._file.seek(0)
        self._file.write(HEADER.pack(MAGIC, self.entries, length, len(text)))


@contextlib.contextmanager
def index_writer(path: Path) -> Iterator[IndexWriter]:
    """Write an index atomically; call `finish` at the end of the block."""
    with (
        replacing(path) as temporary,
        temporary.open("wb") as file,
        tempfile.TemporaryFile(dir=path.parent) as ids,
    ):
        yield IndexWriter(file, ids)


def records_of(ids: Sequence[bytes], labels: Sequence[tuple[int, ...]]) -> tuple[np.ndarray, bytes]:
    """The records of samples without sizes and hashes, and the bytes of their ids."""
    records, blob = np.zeros(len(ids), RECORD), bytearray()
    for number, (name, own) in enumerate(zip(ids, labels, strict=True)):
        records[number] = (len(blob), 0, 0, len(name), 0, own[0] if len(own) == 1 else -1, len(own), (0, 0))
        blob += name
        if len(own) != 1:
            blob += np.array(own, "<i4").tobytes()
    return records, bytes(blob)


# -- Reading ---------------------------------------------------------------------------------------


class IndexFile:
    """An index that is read from its file a few thousand records at a time."""

    def __init__(self, path: Path, again: str = AGAIN) -> None:
        self.path, self._again = Path(path), again
        if not path.exists() and not path.is_symlink():
            raise FileNotFoundError(f"{path} does not exist; {again}")
        with open_regular(path) as file:
            header = file.read(HEADER.size).ljust(HEADER.size, b"\0")
            magic, entries, self.id_bytes, meta_bytes = HEADER.unpack(header)
            require(magic in (MAGIC, MAGIC_1), f"{path} is not an index; {again}")
            self.record = RECORD if magic == MAGIC else RECORD_1
            self.ids_at = HEADER.size + entries * self.record.itemsize
            end = self.ids_at + self.id_bytes
            is_whole = end + meta_bytes == path.stat().st_size
            self.check(is_whole and meta_bytes <= LARGEST_META)
            file.seek(end)
            self.meta = _parsed(self._json(file.read(meta_bytes)), path.name, magic)
            self._descriptor = os.dup(file.fileno())
        self._entries = entries
        is_known = self.meta.version == (2 if magic == MAGIC else 1) and 0 <= self.meta.classes <= MOST_CLASSES
        require(is_known, f"{path} is of another version; {again}")

    def __del__(self) -> None:
        if self.__dict__.get("_descriptor", -1) >= 0:
            os.close(self._descriptor)

    def __len__(self) -> int:
        return self._entries

    @property
    def has_hashes(self) -> bool:
        """Whether the samples have hashes: from version 2 on."""
        return self.record == RECORD

    def _json(self, data: bytes) -> object:
        try:
            return parse_json(data, self.path.name)
        except ValueError:
            raise ValueError(f"{self.path} is damaged; {self._again}") from None

    def check_contents(self) -> None:
        """Read the whole file and raise if a record or an id is not what was written."""
        if not self.meta.contents:
            return
        found = ""
        for start, stop in ((HEADER.size, self.ids_at), (self.ids_at, self.ids_at + self.id_bytes)):
            digest = new_hash()
            for at in range(start, stop, BLOCK):
                digest.update(os.pread(self._descriptor, min(BLOCK, stop - at), at))
            found += digest.hexdigest()
        self.check(found == self.meta.contents)

    def check(self, is_sound: bool) -> None:
        """Raise unless the file is what was written."""
        require(is_sound, f"{self.path} is damaged; {self._again}")

    def records(self, start: int, stop: int) -> np.ndarray:
        """Read some records."""
        size = self.record.itemsize
        data = os.pread(self._descriptor, (stop - start) * size, HEADER.size + start * size)
        self.check(len(data) == (stop - start) * size)
        return np.frombuffer(data, self.record)

    def ids_of(self, records: np.ndarray) -> tuple[int, bytes]:
        """The place among all ids, and the bytes, of the ids of neighbouring records."""
        if not len(records):
            return 0, b""
        last = records[-1]
        more = 4 * int(last["labels"]) if self.has_hashes and last["labels"] != 1 else 0
        start, stop = int(records[0]["key"]), int(last["key"]) + int(last["length"]) + more
        self.check(0 <= start <= stop <= self.id_bytes)
        return start, os.pread(self._descriptor, stop - start, self.ids_at + start)

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        """Yield the samples with the numbers from `start` to `stop`."""
        stop = len(self) if stop is None else stop
        for at in range(start, stop, CHUNK):
            records = self.records(at, min(at + CHUNK, stop))
            first, blob = self.ids_of(records)
            hashes = np.ascontiguousarray(records["hash"]).tobytes() if self.has_hashes else b""
            columns = [records[name].tolist() for name in ("key", "length", "label", "size")]
            counts = records["labels"].tolist() if self.has_hashes else [1] * len(records)
            for place, (key, length, label, size) in enumerate(zip(*columns, strict=True)):
                begin, count = key - first, counts[place]
                own = (label,) if count == 1 else tuple(np.frombuffer(blob, "<i4", count, begin + length).tolist())
                yield Row(blob[begin : begin + length], own, size, hashes[16 * place : 16 * place + 16])


def _parsed(value: object, name: str, magic: bytes) -> IndexMeta:
    if magic == MAGIC:
        return from_json(IndexMeta, value, name)
    old = from_json(_Meta1, value, name)
    names = tuple(map(str, range(min(old.classes, MOST_CLASSES))))
    shards = tuple((shard, size, time, -1, "") for shard, size, time in old.shards)
    return IndexMeta(1, "", old.classes, names, old.excluded, "", shards)
