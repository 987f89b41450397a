"""Indexed tar shards in an object store or on a web server: `ShardSource` with other places for its bytes."""

import os
import tempfile
from dataclasses import asdict
from pathlib import Path

from vitlab.data.images.refusals import LARGEST_FILE, BadImage, Reason
from vitlab.data.remote.addresses import Address
from vitlab.data.remote.faults import Missing
from vitlab.data.remote.files import BLOCK, MOST_AT_ONCE, RemoteFile, RemoteFolder, RemotePaths
from vitlab.data.source import keep
from vitlab.data.sources.shards import (
    CLASS_NAMES,
    INDEX,
    MOST_OPEN,
    ShardFolder,
    ShardSource,
    class_names_beside,
    is_shard,
)
from vitlab.data.sources.tar import TarFile
from vitlab.errors import RemoteRefused
from vitlab.files.strict_json import read_json
from vitlab.require import require

AGAIN = "index the shards (vitlab data index shards:ADDRESS)"
OPENINGS = 5  # attempts to map the index
STEP = MOST_AT_ONCE * BLOCK  # bytes in one request where a whole file is read


class RemoteTar(TarFile):
    """A tar file that is read by range requests."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file

    def stamp(self) -> tuple[int, int]:
        return self._file.facts.size, self._file.facts.time

    def read(self, offset: int, size: int) -> bytes:
        return self._file.read(offset, size)

    def read_image(self, offset: int, size: int, stamp: tuple[int, ...], name: str, way: str) -> bytes:
        """Read an image; a file that has changed raises BadImage, a store that fails stops the run."""
        if size > LARGEST_FILE:
            raise BadImage(Reason.too_large, f"has {size:,} bytes; at most {LARGEST_FILE:,} are allowed", name)
        data = self.read(offset, size)
        if len(data) != size:
            raise BadImage(Reason.changed, f"is beyond the end of its shard; {AGAIN}", name)
        return data


class TransferredTar(TarFile):
    """A remote tar file that is transferred once, past the cache, into a temporary file without a name."""

    def __init__(self, file: RemoteFile) -> None:
        self._facts = file.facts
        with tempfile.TemporaryFile(dir=file.reading.cache.folder) as copy:
            for start in range(0, file.facts.size, STEP):
                copy.write(file.fetch(start, min(start + STEP, file.facts.size)))
            copy.flush()
            self._descriptor = os.dup(copy.fileno())

    def stamp(self) -> tuple[int, int]:
        return self._facts.size, self._facts.time


class RemoteShardFolder(ShardFolder):
    """A folder of tar files in an object store, as it was listed when it was opened."""

    has_times = False

    def __init__(self, address: Address) -> None:
        self.remote = RemoteFolder(address)

    def __str__(self) -> str:
        return str(self.remote)

    def absolute(self) -> ShardFolder:
        return self

    def own_index(self) -> Path | None:
        return None

    def _files(self) -> list[str]:
        names = self.remote.names()
        if names is None:
            copied = f"index the shards where they are stored and copy {INDEX} beside them"
            raise RemoteRefused(f"{self} cannot be listed, because web servers have no common way to do it; {copied}")
        _require_files(self.remote)
        return list(names)

    def stamp(self, name: str) -> tuple[int, int]:
        try:
            facts = self.remote.file(name).facts
        except Missing:
            return -1, -1
        return facts.size, facts.time

    def state(self, name: str) -> tuple[int, ...]:
        try:
            return self.remote.file(name).stamp()
        except Missing:
            return -1, -1, -1

    def has(self, name: str) -> bool:
        return self.stamp(name) != (-1, -1)

    def card(self, name: str) -> object:
        try:
            return read_json(self.remote.file(name).local_copy())
        except Missing:
            return None

    def tar(self, name: str) -> TarFile:
        return TransferredTar(self.remote.file(name))

    def class_names(self, classes: int, recorded: tuple[str, ...] = ()) -> tuple[str, ...]:
        return class_names_beside(folder_of_class_names(self.remote), classes, recorded)


def _require_files(remote: RemoteFolder) -> None:
    """Raise if a folder has no files; a store does not distinguish an empty folder from one that is missing."""
    if remote.names() == []:
        raise Missing(f"{remote} is empty or does not exist; check the address")


def folder_of_class_names(remote: RemoteFolder) -> Path:
    """The local folder with a copy of the class names; a folder that does not exist if the store has none."""
    try:
        return remote.file(CLASS_NAMES).local_copy().parent
    except Missing:
        return remote.reading.cache.folder / "none"


class RemoteShardSource(ShardSource):
    """Samples of remote shards by number: the ids, labels and bytes of the same shards in a local folder.

    The index is copied into the cache once. Of the shards only the blocks that hold the wanted images are requested.
    """

    def __init__(self, path: Address | RemoteFolder, index: Path | None = None) -> None:
        self._remote = path if isinstance(path, RemoteFolder) else RemoteFolder(path)
        self._given = index
        for attempt in range(OPENINGS):
            try:
                super().__init__(folder_of_class_names(self._remote), index or self._local_index())
                return
            except FileNotFoundError:  # another process needed the room in the cache before the index was mapped
                if index or attempt + 1 == OPENINGS:
                    raise

    def __reduce__(self) -> tuple[object, ...]:
        return self.reopened(self._remote, self._given)  # the copy of the index may be gone by then

    def _local_index(self) -> Path:
        try:
            return self._remote.file(INDEX).local_copy()
        except Missing:
            _require_files(self._remote)
            made = f"shards:{self._remote}?index={self._remote.address.name}.index"
            again = f"run vitlab data index shards:{self._remote}, then open {made}"
            raise RemoteRefused(f"{self._remote} has no file {INDEX}; {again}") from None

    def _checked_stamps(self) -> list[tuple[int, int]]:
        """The sizes of the shards; without a listing each shard is checked when it is opened."""
        names = self._remote.names()
        if names is not None:
            other = set(filter(is_shard, names)) ^ {shard.name for shard in self._shards}
            require(not other, f"{self._remote} has other shards than were indexed: {sorted(other)!r:.200}; {AGAIN}")
            for number in range(len(self._shards)):
                self._file(number)
        return [(shard.size, 0) for shard in self._shards]

    def _file(self, number: int) -> RemoteFile:
        """A shard, which must have the size that was indexed; times differ between copies and do not count."""
        shard = self._shards[number]
        file = self._remote.file(shard.name)
        found = f"{file} has {file.facts.size:,} bytes, and {shard.size:,} were indexed; {AGAIN}"
        require(file.facts.size == shard.size, found)
        return file

    def _tar(self, shard: int) -> TarFile:
        return self._tars.get(shard) or keep(self._tars, shard, RemoteTar(self._file(shard)), MOST_OPEN)

    def stamp(self, index: int) -> tuple[int, ...]:
        return self._file(int(self._record(index)["shard"])).stamp()

    def paths(self) -> RemotePaths:
        return RemotePaths(len(self._shards), self._file)

    def requested(self) -> dict[str, int]:
        return asdict(self._remote.reading.traffic.total())
