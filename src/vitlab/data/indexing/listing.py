"""The listing of a data set on disk: an index without sizes and hashes, which workers read instead of the data's own.

Opening a folder of a million files takes seconds and memory, so one process does it once. The files of a folder are
listed one class at a time; workers find them below `root`. Other data is opened by each worker, once.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from torch import Tensor

from vitlab.data.fingerprint import file_state
from vitlab.data.images.refusals import BadImage
from vitlab.data.indexing.hashing import ListDigest, data_hash, data_size, new_hash
from vitlab.data.indexing.index_file import CHUNK, IndexFile, IndexMeta, Row, index_writer, records_of
from vitlab.data.loading.accounting import Excluded
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import open_source, resolve
from vitlab.data.sources.folders import Files, FilesSource, FolderSource, StreamedFolder
from vitlab.require import require

Rows = Iterator[tuple[bytes, tuple[int, ...]]]  # id and labels
Data = bytes | np.ndarray | Tensor  # an image file or pixels
Made = TypeVar("Made")


class Streamed(Protocol):
    """A data set whose samples can be listed one after the other."""

    class_names: tuple[str, ...]
    excluded: Excluded
    root: str  # of the files that the ids name; empty if the samples are not files of their own
    is_as_stored: bool  # whether the data of a sample is its file, unchanged

    def rows(self) -> Rows: ...


@dataclass(frozen=True)
class Listing:
    """What was listed, and where its rows are."""

    path: Path
    spec: str
    root: str
    is_as_stored: bool
    samples: int
    digest: str
    excluded: Excluded


def write_listing(spec: str, path: Path) -> Listing:
    """List the samples of the data that a spec names into a file."""
    streamed, digest = _streamed(spec), ListDigest()
    rows = streamed.rows()
    with index_writer(path) as writer:
        while chunk := list(itertools.islice(rows, CHUNK)):
            for name, labels in chunk:
                digest.add(name, labels)
            writer.add(*records_of([name for name, _ in chunk], [labels for _, labels in chunk]))
        names, left_out = streamed.class_names, dict(sorted(streamed.excluded.items()))
        found = digest.finish(names)
        writer.finish(IndexMeta(2, spec, len(names), names, left_out, found))
    files = streamed.root, streamed.is_as_stored
    return Listing(path, spec, *files, writer.entries, found, streamed.excluded)


def _streamed(spec: str) -> Streamed:
    named = resolve(spec)
    if named.kind.opener is FolderSource and named.is_whole:
        streamed = StreamedFolder(**named.arguments)
        return streamed if streamed.class_names else _Opened(FolderSource(**named.arguments))  # says what is wrong
    return _Opened(named.open())


class _Opened:
    """The samples of a source that is held in memory."""

    def __init__(self, source: Source) -> None:
        require(not source.identity, "the images are drawn on demand, so they have no files that could change")
        self._source, self.class_names, self.excluded = source, tuple(source.class_names), source.excluded
        files = source.files if isinstance(source, FilesSource) else None
        self.root = files.root if isinstance(files, Files) else ""
        self.is_as_stored = bool(self.root) and type(source).item is FilesSource.item

    def rows(self) -> Rows:
        for number in range(len(self._source)):
            name = self._source.id(number).encode("utf-8", "surrogateescape")
            yield name, self._source.label(number)


class Read(NamedTuple):
    """A sample of a listing as it is now: its data, or why it cannot be read."""

    row: Row
    data: Data
    problem: str = ""


class Hashed(NamedTuple):
    """The size and the hash of a sample of a listing as it is now, or why it cannot be read."""

    row: Row
    size: int
    hash: bytes
    problem: str = ""


class ListedSamples:
    """Reads the samples of a listing by number: files below `root` as they are, or what the source makes of them."""

    def __init__(self, path: Path, spec: str, root: str) -> None:
        self.index, self._root = IndexFile(path), root
        self._source = None if root else open_source(spec)
        same = self._source is None or len(self._source) == len(self.index)
        require(same, f"{spec} changed while it was read; stop its writer first")

    def state(self, start: int, stop: int) -> str:
        """Hash the sizes and times of the files that hold some samples; "" if they are in no file."""
        digest, is_in_files = new_hash(), False
        for number, row in enumerate(self.index.rows(start, stop), start):
            if self._source is None:
                stamp = file_state(f"{self._root}/{os.fsdecode(row.id)}")
            else:
                stamp = self._source.stamp(number)
            is_in_files = is_in_files or bool(stamp)
            digest.update(repr(stamp).encode())
        return digest.hexdigest() if is_in_files else ""

    def read(self, start: int, stop: int) -> Iterator[Read]:
        """Read the samples with the numbers from `start` to `stop`."""
        for row, data, problem in self._each(start, stop, Files.read, _itself):
            yield Read(row, b"" if data is None else data, problem)

    def hashes(self, start: int, stop: int) -> Iterator[Hashed]:
        """Hash the samples with the numbers from `start` to `stop`; files may be larger than images are."""
        for row, found, problem in self._each(start, stop, Files.hashed, _size_and_hash):
            yield Hashed(row, *(found or (0, b"")), problem)

    def _each(
        self, start: int, stop: int, of_file: Callable[[Files, int], Made], of_data: Callable[[Data], Made]
    ) -> Iterator[tuple[Row, Made | None, str]]:
        """What is made of each sample, from its file or from the data that its source gives, or why it is not read."""
        rows = list(self.index.rows(start, stop))
        files = Files(Path(self._root), [row.id for row in rows]) if self._root else None
        for place, row in enumerate(rows):
            try:
                if files is not None:
                    yield row, of_file(files, place), ""
                elif self._source is not None:
                    yield row, of_data(self._source.item(start + place).data), ""
            except BadImage as bad:
                yield row, None, bad.detail


def _itself(data: Data) -> Data:
    return data


def _size_and_hash(data: Data) -> tuple[int, bytes]:
    return data_size(data), data_hash(data)
