"""Indexed tar shards in an object store or on a web server: `ShardSource` with other places for its bytes."""

from dataclasses import asdict
from pathlib import Path

from vitlab.data.images.refusals import LARGEST_FILE, BadImage, Reason
from vitlab.data.remote.addresses import Address
from vitlab.data.remote.faults import Missing
from vitlab.data.remote.files import RemoteFile, RemoteFolder, RemotePaths
from vitlab.data.source import keep
from vitlab.data.sources.shards import CLASS_NAMES, INDEX, MOST_OPEN, ShardSource
from vitlab.data.sources.tar import TarFile
from vitlab.errors import RemoteRefused
from vitlab.require import require

AGAIN = f"index the shards where they are complete (vitlab data index FOLDER) and copy {INDEX} beside them"

OPENINGS = 5  # attempts to map the index


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


class RemoteShardSource(ShardSource):
    """Samples of remote shards by number: the ids, labels and bytes of the same shards in a local folder.

    The index is copied into the cache once. Of the shards only the blocks that hold the wanted images are requested.
    """

    def __init__(self, path: Address | RemoteFolder, index: Path | None = None) -> None:
        self._remote = path if isinstance(path, RemoteFolder) else RemoteFolder(path)
        self._given = index
        for attempt in range(OPENINGS):
            try:
                super().__init__(self._folder_of_names(), index or self._local_index())
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
            raise RemoteRefused(f"{self._remote} has no file {INDEX}; {AGAIN}, or give one with ?index=FILE") from None

    def _folder_of_names(self) -> Path:
        """The local folder with a copy of the class names; one without them if there are none."""
        try:
            return self._remote.file(CLASS_NAMES).local_copy().parent
        except Missing:
            return self._remote.reading.cache.folder / "none"

    def _checked_stamps(self) -> list[tuple[int, int]]:
        """The sizes of the shards; without a listing each shard is checked when it is opened."""
        names = self._remote.names()
        if names is not None:
            listed = {name for name in names if name.endswith(".tar") and name[0] != "."}
            other = listed ^ {shard.name for shard in self._shards}
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
