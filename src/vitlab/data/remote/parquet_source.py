"""Parquet files in an object store, on a web server or on a hub: `ParquetSource` with other places for its bytes."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from vitlab.data.remote.addresses import Address, parse_address
from vitlab.data.remote.faults import Missing
from vitlab.data.remote.files import Reading, RemoteFile, RemoteFolder, RemotePaths, remote_file
from vitlab.data.sources.parquet import ParquetSource, chosen_split, damage_explained, pyarrow_parquet, read_labels
from vitlab.errors import RemoteRefused
from vitlab.require import require

if TYPE_CHECKING:
    import pyarrow.parquet

SUFFIX = ".parquet"
CONVERTED = "refs/convert/parquet"  # the branch in which a hub keeps the parquet form of a data set
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


class RemoteParquetSource(ParquetSource):
    """The rows of a remote file, or of the files of a remote folder; only the row groups in use are requested."""

    def __init__(self, path: Address, split: str = "", *, image: str = "image", label: str = "label") -> None:
        reading = Reading()
        self._start(_files(path, split, reading), reading, str(path), image, label)

    def _start(self, files: Sequence[RemoteFile], reading: Reading, path: str, image: str, label: str) -> None:
        self._reading = reading
        self._stamps = [file.stamp() for file in files]
        self._begin(files, path, image, label)

    def _remote(self, number: int) -> RemoteFile:
        file = self._files[number]
        assert isinstance(file, RemoteFile)
        return file

    def _opened(self, number: int) -> "pyarrow.parquet.ParquetFile":
        return _opened(self._remote(number), is_cached=True)

    def _labels_of(self, number: int, label: str) -> np.ndarray:
        """The labels of a file: a few bytes of each row group, requested exactly, once, and kept in the cache."""
        file, cache = self._remote(number), self._reading.cache
        key = hashlib.sha256(f"{file.key}\0labels\0{label}".encode()).hexdigest()[:32]
        kept, _ = cache.get(key, 0)
        if kept is None:
            kept = read_labels(file.name, _opened(file, is_cached=False), label).astype("<i4").tobytes()
            cache.put(key, 0, kept)
        return np.frombuffer(kept, "<i4")

    def _is_unchanged(self, number: int) -> bool:
        return True  # every answer of the store says which version it is of

    def paths(self) -> RemotePaths:
        return RemotePaths(len(self._files), self._remote)

    def requested(self) -> dict[str, int]:
        return asdict(self._reading.traffic.total())


class HubSource(RemoteParquetSource):
    """A data set of a hub by its name, OWNER/NAME: its own parquet files, or those that the hub has made of it."""

    def __init__(
        self,
        path: str,
        split: str = "",
        *,
        config: str = "",
        revision: str = "",
        image: str = "image",
        label: str = "label",
    ) -> None:
        require(REPOSITORY.fullmatch(path) is not None, f"{path!r:.200} is not the name of a data set; give OWNER/NAME")
        reading = Reading()
        address = parse_address(f"hf://datasets/{path}{f'@{revision}' if revision else ''}")
        files = _hub_files(address, split, config, reading, is_pinned=bool(revision))
        self._start(files, reading, str(address), image, label)


def _opened(file: RemoteFile, *, is_cached: bool) -> "pyarrow.parquet.ParquetFile":
    parquet = pyarrow_parquet()
    with damage_explained(f"{file.name} is not a valid parquet file"):
        return parquet.ParquetFile(file.opened(is_cached=is_cached))


def _files(address: Address, split: str, reading: Reading) -> list[RemoteFile]:
    """The files of one split, sorted by name."""
    if address.name.endswith(SUFFIX):
        whole = f"{address.name} is one file, so it has no split {split!r}; give the folder, or leave it out"
        require(not split, whole)
        return [remote_file(str(address), reading)]
    if not address.has_listing:
        raise RemoteRefused(f"{address} cannot be listed; give the address of one .parquet file")
    return chosen_split(_listed(address, reading), split, str(address))


def _listed(address: Address, reading: Reading) -> list[RemoteFile]:
    """The parquet files of a folder and of `data` in it."""
    folder, found = RemoteFolder(address, reading), list[RemoteFile]()
    for place in (folder, None):
        try:
            place = place or RemoteFolder(folder.address / "data", reading)
        except Missing:
            continue
        found += [place.file(name) for name in place.names() or () if name.endswith(SUFFIX)]
    return found


def _hub_files(address: Address, split: str, config: str, reading: Reading, *, is_pinned: bool) -> list[RemoteFile]:
    own = [] if config else _listed(address, reading)
    if own or is_pinned:
        return chosen_split(own, split, str(address))
    top = Address("hf", f"{address.rest}@{CONVERTED}")
    where = top / (config or "default") / (split or "train")
    try:
        folder = RemoteFolder(where, reading)
    except Missing:
        ways = "choose one with ?config= and ?split=, as its page names them"
        raise RemoteRefused(
            f"{address} has no parquet files of its own, and the hub has none at {where}; {ways}"
        ) from None
    return [folder.file(name) for name in folder.names() or () if name.endswith(SUFFIX)]
