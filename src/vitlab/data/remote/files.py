"""Remote files and folders, read by ranges through the cache of blocks."""

import hashlib
import io
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitlab.data.remote.addresses import Address, parse_address
from vitlab.data.remote.cache import BlockCache
from vitlab.data.remote.faults import Missing
from vitlab.data.remote.retries import persist
from vitlab.data.remote.stores import Facts, store_of
from vitlab.data.remote.traffic import Traffic
from vitlab.require import require

BLOCK = 2**20  # bytes
MOST_AT_ONCE = 16  # blocks in one request
KEPT = 16  # blocks in the memory of each process
_kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Reading:
    """What all files of one data set share: the cache and the counts."""

    def __init__(self, cache: BlockCache | None = None) -> None:
        self.cache = cache or BlockCache()
        self.traffic = Traffic(self.cache.folder / "traffic")
        self.id = secrets.token_hex(8)


@dataclass(frozen=True)
class RemoteFile:
    """One version of a remote file: other bytes are never returned, whatever happens to the file."""

    address: Address
    facts: Facts
    reading: Reading

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.address.name

    def __str__(self) -> str:
        return str(self.address)

    @property
    def key(self) -> str:
        """The name of this version in the cache.

        The address of a hub's file is left out, because its tag is a hash of its content. Without a tag another version
        could not be told apart later, so what is kept is for this data set as it is open now.
        """
        place = "hf" if self.address.scheme == "hf" else str(self.address)
        version = self.facts.tag or f"{self.facts.time} {self.reading.id}"
        return hashlib.sha256(f"{place}\0{self.facts.size}\0{version}\0{BLOCK}".encode()).hexdigest()[:32]

    def stamp(self) -> tuple[int, int, int]:
        """Return size, time in nanoseconds, and a number for the tag, which is new each time if there is no tag."""
        digest = hashlib.blake2b((self.facts.tag or self.reading.id).encode(), digest_size=8).digest()
        return self.facts.size, self.facts.time, int.from_bytes(digest, "little", signed=True)

    def fetch(self, start: int, stop: int) -> bytes:
        """Read bytes from the store, not from the cache."""

        def request() -> bytes:
            return store_of(self.address).read(self.address, self.facts, start, stop)

        data = persist(request, self.address, self.reading.traffic)
        self.reading.traffic.add(received=len(data))
        return data

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes, fewer only at the end of the file."""
        end = min(offset + size, self.facts.size)
        if offset >= end:
            return b""
        numbers = range(offset // BLOCK, (end - 1) // BLOCK + 1)
        data = b"".join(self._blocks(numbers)) if len(numbers) > 1 else self._one(numbers[0])
        begin = offset - numbers[0] * BLOCK
        return data[begin : begin + end - offset]

    def _one(self, number: int) -> bytes:
        """A block, from memory if it was read shortly before: neighbours are often read together."""
        place = self.key, number
        with _lock:
            if place in _kept:
                _kept.move_to_end(place)
                return _kept[place]
        (data,) = self._blocks(range(number, number + 1))
        with _lock:
            _kept[place] = data
            while len(_kept) > KEPT:
                _kept.popitem(last=False)
        return data

    def _blocks(self, numbers: range) -> list[bytes]:
        """Blocks from the cache, and the missing ones from the store, neighbours in one request."""
        found: dict[int, bytes] = {}
        for number in numbers:
            data, is_damaged = self.reading.cache.get(self.key, number)
            if data is not None and len(data) == self._length(number):
                found[number] = data
            self.reading.traffic.add(cached=data is not None, damaged=is_damaged)
        missing = [number for number in numbers if number not in found]
        while missing:
            first = missing[0]
            run = [n for place, n in enumerate(missing[:MOST_AT_ONCE]) if n == first + place]
            data = self.fetch(first * BLOCK, run[-1] * BLOCK + self._length(run[-1]))
            for place, number in enumerate(run):
                found[number] = data[place * BLOCK : (place + 1) * BLOCK]
                self.reading.cache.put(self.key, number, found[number])
            missing = missing[len(run) :]
        return [found[number] for number in numbers]

    def _length(self, number: int) -> int:
        return min(BLOCK, self.facts.size - number * BLOCK)

    def local_copy(self) -> Path:
        """Return a copy of the whole file in the cache, for what has to be memory-mapped."""

        def fetch(path: Path) -> None:
            with path.open("r+b") as file:
                for start in range(0, self.facts.size, MOST_AT_ONCE * BLOCK):
                    file.write(self.fetch(start, min(start + MOST_AT_ONCE * BLOCK, self.facts.size)))

        return self.reading.cache.whole(self.key, self.name, self.facts.size, fetch)

    def opened(self, *, is_cached: bool = True) -> io.BufferedIOBase:
        """Return a file object; without `is_cached` exactly the bytes that are asked for are requested."""
        return _FileObject(self, is_cached)


class _FileObject(io.BufferedIOBase):
    """A remote file with a position, as pyarrow wants it."""

    def __init__(self, file: RemoteFile, is_cached: bool) -> None:
        self._file, self._is_cached, self._at = file, is_cached, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.facts.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._file.facts.size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        data = b""
        if wanted:
            data = (
                self._file.read(self._at, wanted) if self._is_cached else self._file.fetch(self._at, self._at + wanted)
            )
        self._at += len(data)
        return data


class RemoteFolder:
    """The files of a remote folder, by name, as they were when it was opened. It can be sent to other processes."""

    def __init__(self, address: Address, reading: Reading | None = None) -> None:
        self.reading = reading or Reading()
        traffic = self.reading.traffic
        self.address = _pinned(address, self.reading)
        self._listed: dict[str, Facts] | None = None
        if address.has_listing:
            self._listed = persist(lambda: store_of(address).listing(self.address), address, traffic)
        self._found: dict[str, Facts] = {}

    def __str__(self) -> str:
        return str(self.address)

    def names(self) -> list[str] | None:
        """The names of its files in order; None if the server has no listing."""
        return None if self._listed is None else sorted(self._listed)

    def file(self, name: str) -> RemoteFile:
        """Return a file of the folder; raises Missing if there is none."""
        if self._listed is not None:
            if name not in self._listed:
                raise Missing(f"{self.address / name} does not exist; check the address")
            return RemoteFile(self.address / name, self._listed[name], self.reading)
        if name not in self._found:
            self._found[name] = remote_facts(self.address / name, self.reading)
        return RemoteFile(self.address / name, self._found[name], self.reading)


class RemotePaths:
    """The addresses of the files of a data set, by number, and the files themselves."""

    def __init__(self, count: int, file: Callable[[int], RemoteFile]) -> None:
        self._count, self.file = count, file

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int, /) -> str:
        return str(self.file(number))

    def stamp(self, number: int) -> tuple[int, int, int]:
        """Return what tells whether a file is the version that it was."""
        return self.file(number).stamp()


def remote_facts(address: Address, reading: Reading) -> Facts:
    """Ask for size and version of a file."""
    return persist(lambda: store_of(address).facts(address), address, reading.traffic)


def remote_file(text: str, reading: Reading | None = None) -> RemoteFile:
    """Return the file at an address, as it is now."""
    reading = reading or Reading()
    address = parse_address(text)
    require("/" in address.rest, f"{text!r:.200} has no path; give the address of a file")
    address = _pinned(address, reading)
    return RemoteFile(address, remote_facts(address, reading), reading)


def _pinned(address: Address, reading: Reading) -> Address:
    """The address with the commit that a branch of a hub's data set has now."""
    if address.scheme != "hf":
        return address
    return persist(lambda: store_of(address).pinned(address), address, reading.traffic)
