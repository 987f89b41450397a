"""The local cache of remote bytes: blocks with their hashes, of a bounded size, shared by all processes of a user.

Every block is checked when it is read, so that damage costs one more request and nothing else; blocks are therefore not
synced. Room is made and used under a lock, so the bound holds for any number of processes.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from vitlab.files.store import LEFTOVER, make_folder, replacing, sha256
from vitlab.files.user_files import read_regular
from vitlab.require import require

DEFAULT = 20 * 10**9  # bytes
DIGEST = 32  # bytes of a hash, in front of each block
SHRUNK = 0.9  # of the bound remains after blocks were removed, the last used ones
FRESH = 60.0  # seconds after which the use of a block is noted again
STALE = 3600.0  # seconds after which an unfinished file is taken for one of a killed process
LARGEST = 2**30  # bytes of a block
USED = re.compile(rb"\d{1,18}")
FULL = (errno.ENOSPC, errno.EDQUOT)


def cache_folder() -> Path:
    """The folder VITLAB_REMOTE_CACHE, or `vitlab/remote` in the user's cache."""
    if given := os.environ.get("VITLAB_REMOTE_CACHE"):
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitlab" / "remote"


def cache_size() -> int:
    """The bound in bytes: VITLAB_REMOTE_CACHE_SIZE, such as 50e9, or 20 GB."""
    given = os.environ.get("VITLAB_REMOTE_CACHE_SIZE", "")
    try:
        size = int(float(given)) if given else DEFAULT
    except (ValueError, OverflowError):
        size = -1
    require(size >= 0, f"VITLAB_REMOTE_CACHE_SIZE is {given!r:.60}; give a number of bytes, such as 50e9")
    return size


class BlockCache:
    """Blocks by the key of their file and their number."""

    def __init__(self, folder: Path | None = None, most: int | None = None) -> None:
        self.folder, self.most = folder or cache_folder(), cache_size() if most is None else most
        make_folder(self.folder)
        self._writing, self._thread = threading.Lock(), threading.Lock()  # a process has one temporary name per file

    def __reduce__(self) -> tuple[object, ...]:
        return BlockCache, (self.folder, self.most)

    def get(self, key: str, number: int) -> tuple[bytes | None, bool]:
        """Return a block, None if it is not there; and whether one was there but damaged, which is removed."""
        path = self.folder / key / str(number)
        try:
            found = read_regular(path, LARGEST)
        except (OSError, ValueError):
            return None, False
        data = found[DIGEST:]
        if _digest(key, number, data) != found[:DIGEST]:
            path.unlink(missing_ok=True)
            return None, True
        _note_use(path)
        return data, False

    def put(self, key: str, number: int, data: bytes) -> None:
        """Keep a block if there is room for it."""

        def write() -> None:
            with _unless_full(), replacing(self.folder / key / str(number), is_durable=False) as path:
                path.write_bytes(_digest(key, number, data) + data)

        self._take(DIGEST + len(data), write)

    def whole(self, key: str, name: str, size: int, fetch: Callable[[Path], object]) -> Path:
        """Return a whole file, which `fetch` writes to a path if it is not there or damaged."""
        path = self.folder / key / name
        proof = path.with_name(f"{name}.sha256")
        with contextlib.suppress(OSError, ValueError):  # it is not there, or removed in between
            if path.stat().st_size == size and read_regular(proof, 100) == sha256(path).encode():
                os.utime(path)
                os.utime(proof)
                return path
        needs = f"needs {size:,} bytes in {self.folder}, which may hold {self.most:,}"
        with self._writing, replacing(path) as temporary:
            has_room = self._take(size, lambda: _make_empty(temporary, size))
            require(has_room, f"{name} {needs}; set VITLAB_REMOTE_CACHE_SIZE to more")
            fetch(temporary)
            digest = sha256(temporary)
        with self._writing, replacing(proof) as temporary:
            temporary.write_text(digest)
        return path

    def _take(self, size: int, write: Callable[[], object]) -> bool:
        """Make room for `size` bytes and write them, under the lock; False if they are more than the cache may hold."""
        if size > self.most * SHRUNK:
            return False
        with self._thread, self._locked() as counter:
            text = os.pread(counter, 20, 0)
            used = int(text) if USED.fullmatch(text) else self._shrink(self.most)
            if used + size > self.most:
                used = self._shrink(int(self.most * SHRUNK) - size)
            os.ftruncate(counter, 0)
            os.pwrite(counter, b"%d" % (used + size), 0)
            write()
        return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the cache's lock; yields the descriptor of the file that has the number of bytes in use."""
        make_folder(self.folder)
        descriptor = os.open(self.folder / "used", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _shrink(self, room: int) -> int:
        """Remove what was not used for the longest time until `room` bytes are left; returns the bytes in use."""
        files = sorted(self._files())
        used = sum(size for _, size, _ in files)
        for _, size, path in files:
            if used <= room:
                break
            if not LEFTOVER.fullmatch(path.name):  # another process may be writing it
                path.unlink(missing_ok=True)
                used -= size
        for folder in self.folder.iterdir():
            with contextlib.suppress(OSError):  # not empty, or not a folder
                if folder.stat().st_mtime < time.time() - STALE:  # nobody is about to write there
                    folder.rmdir()
        return used

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """(time of last use, bytes, path) of every file; leftovers of killed processes are removed."""
        for path in self.folder.glob("*/*"):
            with contextlib.suppress(OSError):  # removed in between
                status = path.stat()
                if LEFTOVER.fullmatch(path.name) and status.st_mtime < time.time() - STALE:
                    path.unlink()
                elif not path.is_dir():
                    yield status.st_mtime, status.st_size, path


def _make_empty(path: Path, size: int) -> None:
    """Make a file of zeros, which counts as what will be written into it."""
    with path.open("wb") as file:
        file.truncate(size)


def _digest(key: str, number: int, data: bytes) -> bytes:
    """The hash of a block, which is of this place too: a block under another's name is damage."""
    digest = hashlib.blake2b(f"{key}/{number}\0".encode(), digest_size=DIGEST)
    digest.update(data)
    return digest.digest()


def _note_use(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.stat().st_mtime < time.time() - FRESH:
            os.utime(path)


@contextlib.contextmanager
def _unless_full() -> Iterator[None]:
    """Ignore that the disk is full: the data was received, it is just not kept."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
