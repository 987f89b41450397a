"""Open files that a user names: regular files only, with a limit on how much is read.

Opening a FIFO blocks forever, a device such as /dev/zero never ends, and a file may grow while it is read. Symbolic
links are followed. Standard library only.
"""

import contextlib
import errno
import io
import itertools
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from vitlab.errors import InvalidValue

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
LARGEST_LINE = 2**20  # bytes
DIRECTORY_ENTRY = 512  # bytes of a member in an archive's directory, at most; few names are as long as 100


class NotRegular(OSError, ValueError):  # noqa: N818 - says what is wrong
    """The path is not a regular file."""


def as_path(given: object, name: str) -> Path:
    """The path that the argument `name` gives."""
    if not isinstance(given, str | os.PathLike):
        raise InvalidValue(f"is {given!r:.60}; expected a path", field=name)
    return Path(given)


@contextlib.contextmanager
def reading(path: str | Path, what: str = "") -> Iterator[None]:
    """Say what to do if a path inside the user's data cannot be opened: a missing permission, or no regular file."""
    try:
        yield
    except PermissionError:
        way = "give yourself the permission to read it (chmod), or move it out of the data"
        raise PermissionError(f"{path} cannot be read: permission denied; {way}") from None
    except NotRegular as error:
        raise NotRegular(f"{str(error).partition(';')[0]}, not {what}; move it out of the data") from None


def check_regular(path: str | Path) -> os.stat_result:
    """Raise unless `path` is a regular file, without opening it; for libraries that open files themselves."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a str or a Path
    except ValueError:  # a NUL in it
        raise NotRegular(f"{str(path)!r} is not a valid path; give the path of a file") from None
    except OSError as error:
        raise _explained(path, error) from None
    kind = KINDS.get(stat.S_IFMT(status.st_mode), "" if stat.S_ISREG(status.st_mode) else "no file")
    if kind:
        raise NotRegular(f"{path} is {kind}; give the path of a regular file")
    return status


def broken_link(path: Path) -> str:
    """Say what is wrong with a dangling or circular symbolic link; empty for any other path."""
    return f"{path} is a symbolic link to nothing or to itself" if path.is_symlink() and not path.exists() else ""


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a regular file for reading bytes; raises for anything else without blocking."""
    check_regular(path)  # before opening: opening a device may have side effects
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise _explained(path, error) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # it was replaced in between
        os.close(descriptor)
        raise NotRegular(f"{path} is no longer a regular file; give the path of one")
    return os.fdopen(descriptor, "rb")


def read_regular(path: str | Path, largest: int) -> bytes:
    """Read a regular file of at most `largest` bytes; raises for a larger one, also if it grows while it is read."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(largest + 1) if size <= largest else b""
    if max(size, len(data)) > largest:
        raise ValueError(f"{Path(path).name} has {max(size, len(data)):,} bytes; at most {largest:,} are read")
    return data


def read_lines(path: str | Path, largest: int) -> list[str]:
    """The stripped, non-empty lines of a UTF-8 text file of at most `largest` bytes."""
    text = read_regular(path, largest).decode("utf-8-sig", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def stream_lines(path: str | Path, longest: int = LARGEST_LINE) -> Iterator[bytes]:
    """Yield the lines of a regular file, up to its size when opened; raises for one longer than `longest` bytes."""
    with open_regular(path) as file:
        left, number = os.fstat(file.fileno()).st_size, 0
        while left > 0:
            number += 1
            line = file.readline(min(left, longest + 1))
            _check_line(path, number, len(line), longest)
            if not line:
                return
            left -= len(line)
            yield line


def stream_text(path: str | Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file with their line endings, for `csv`; invalid bytes are kept as surrogates."""
    with (
        open_regular(path) as file,
        io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as text,
    ):
        for number in itertools.count(1):
            line = text.readline(LARGEST_LINE + 1)
            _check_line(path, number, len(line), LARGEST_LINE)
            if not line:
                return
            yield line


def check_archive(path: str | Path, most: int) -> None:
    """Raise unless a zip archive is a regular file whose directory has room for at most about `most` members.

    Reads only its last bytes, because `zipfile` builds an object for every member listed.
    """
    with open_regular(path) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - 2**16 - 100, 0))
        tail = file.read(2**16 + 100)
        at = tail.rfind(b"PK\x05\x06")
        size = struct.unpack("<12xI", tail[at : at + 16])[0] if 0 <= at <= len(tail) - 16 else 0
        if tail[max(at - 20, 0) : at].startswith(b"PK\x06\x07"):  # an archive of 64-bit sizes has a second record
            file.seek(min(struct.unpack("<8xQ4x", tail[at - 20 : at])[0], end))
            record = file.read(56)
            size = struct.unpack("<40xQ8x", record)[0] if record[:4] == b"PK\x06\x06" and len(record) == 56 else 0
    if size > (room := most * DIRECTORY_ENTRY):
        raise ValueError(f"{Path(path).name} lists its members in {size:,} bytes; at most {room:,} are read")


def _check_line(path: str | Path, number: int, length: int, longest: int) -> None:
    if length > longest:
        raise ValueError(f"{Path(path).name}, line {number} is longer than {longest:,}; is this a text file?")


def _explained(path: str | Path, error: OSError) -> OSError:
    if error.errno == errno.ELOOP:
        return NotRegular(f"{path} is a symbolic link that leads back to itself; give the path of a regular file")
    if error.errno in (errno.ENXIO, errno.ENODEV):
        return NotRegular(f"{path} is a socket or a device; give the path of a regular file")
    return FileNotFoundError(f"{path} does not exist") if error.errno == errno.ENOENT else error
