"""Bytes at any offset: of a file, of a part of one, and of a deflated stream, which is never unpacked as a whole.

A gzip file or a deflated member of a zip has no places to start from but its beginning. `Inflated` makes some: while it
reads the stream for the first time, it keeps copies of the decompressor, and a later read starts from the nearest one.
"""

import os
import threading
import zlib
from bisect import bisect_right
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from vitlab.data.fingerprint import file_stamp
from vitlab.files.user_files import open_regular

INPUT = 2**14  # bytes that are decompressed at a time, to at most
OUTPUT = 2**20
MOST_STARTS = 1024  # copies of the decompressor, of about 40 KB each
GZIP, DEFLATE = 31, -15  # zlib's names of a stream with gzip's header and checksum, and of one without
GZIP_MAGIC = b"\x1f\x8b"


class Damaged(ValueError):  # noqa: N818 - says what is wrong
    """A compressed stream ends too early or does not match its checksum."""


class Stretch(Protocol):
    """Bytes that can be read at any offset."""

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes, fewer only at the end."""
        ...

    def stamp(self) -> tuple[int, int]:
        """Return size and modification time of the file that holds the bytes (see `file_stamp`)."""
        ...


class FileStretch:
    """The bytes of a regular file; each process opens it itself."""

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor = Path(path).absolute(), -1
        self._open()

    def _open(self) -> int:
        if self._descriptor < 0:
            with open_regular(self._path) as file:
                self._descriptor = os.dup(file.fileno())
        return self._descriptor

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_descriptor": -1}

    def __del__(self) -> None:
        if self.__dict__.get("_descriptor", -1) >= 0:
            os.close(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._open(), size, offset)

    def stamp(self) -> tuple[int, int]:
        return file_stamp(self._open())


class Part(NamedTuple):
    """`size` bytes of another stretch, from `start` on."""

    whole: Stretch
    start: int
    size: int

    def read(self, offset: int, size: int) -> bytes:
        return self.whole.read(self.start + offset, max(min(size, self.size - offset), 0))

    def stamp(self) -> tuple[int, int]:
        return self.whole.stamp()


class _Position:
    """A place in a stream: `piece` are the bytes unpacked last, up to offset `end`; the next ones are in the input
    from `at` on."""

    def __init__(self, decompressor: Any, at: int, end: int) -> None:
        self.decompressor, self.at, self.end = decompressor, at, end
        self.piece, self.is_over = b"", False

    @property
    def start(self) -> int:
        return self.end - len(self.piece)


class Inflated:
    """What a deflated stream unpacks to, in bounded memory; safe to use from several threads.

    Reaching an offset for the first time unpacks everything before it, later reads a small part. `checksum` is the
    CRC-32 of a stream without its own. Raises Damaged.
    """

    def __init__(self, packed: Stretch, form: int = GZIP, checksum: int | None = None) -> None:
        self._packed, self._form, self._checksum = packed, form, checksum
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._front = _Position(zlib.decompressobj(self._form), 0, 0)
        self._back = self._front  # where the last read of known bytes ended
        self._starts: list[tuple[int, int, Any]] = [(0, 0, self._front.decompressor.copy())]  # end, at, decompressor
        self._spacing, self._crc = OUTPUT, 0

    def __getstate__(self) -> dict[str, object]:
        return {"_packed": self._packed, "_form": self._form, "_checksum": self._checksum}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def stamp(self) -> tuple[int, int]:
        """Return size and modification time of the compressed file."""
        return self._packed.stamp()

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes, fewer only at the end."""
        with self._lock:
            known = min(max(self._front.start - offset, 0), size)
            parts = [self._known(offset, known)] if known else []
            return b"".join([*parts, self._new(offset + known, size - known)])

    def size(self) -> int:
        """The number of bytes; unpacks the rest of the stream if that was not done yet."""
        with self._lock:
            while self._advance():
                pass
            return self._front.end

    def _known(self, offset: int, size: int) -> bytes:
        """Read bytes before the last piece of the front."""
        nearest = self._starts[bisect_right(self._starts, offset, key=lambda start: start[0]) - 1]
        if not nearest[0] <= self._back.start <= offset:
            self._back = _Position(nearest[2].copy(), nearest[1], nearest[0])
        return self._taken(self._back, offset, size, self._step)

    def _new(self, offset: int, size: int) -> bytes:
        """Read bytes from the last piece of the front on."""
        return self._taken(self._front, offset, size, lambda _: self._advance())

    def _taken(self, position: _Position, offset: int, size: int, step: Any) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            if position.end > offset:
                begin = offset - position.start
                parts.append(position.piece[begin : begin + size])
                offset, size = offset + len(parts[-1]), size - len(parts[-1])
            elif not step(position):
                break
        return b"".join(parts)

    def _advance(self) -> bool:
        """Unpack a piece that was not read before, and keep a copy of the decompressor now and then."""
        front = self._front
        if not self._step(front):
            return False
        self._crc = zlib.crc32(front.piece, self._crc)
        if front.is_over and self._checksum not in (None, self._crc):
            raise Damaged("does not match its checksum")
        if not front.is_over and front.end - self._starts[-1][0] >= self._spacing:
            self._starts.append((front.end, front.at, front.decompressor.copy()))
            if len(self._starts) > MOST_STARTS:
                self._starts, self._spacing = self._starts[::2], 2 * self._spacing
        return True

    def _step(self, position: _Position) -> bool:
        """Unpack the next piece, which may be empty; False at the end of the stream."""
        if position.is_over:
            return False
        fed = self._packed.read(position.at, INPUT)
        decompressor = position.decompressor
        if decompressor.eof:
            if self._form != GZIP or fed[:2] != GZIP_MAGIC:  # what follows is padding
                position.is_over, position.piece = True, b""
                return True
            decompressor = position.decompressor = zlib.decompressobj(GZIP)  # another stream behind the first
        try:
            piece = decompressor.decompress(fed, OUTPUT)
        except zlib.error as error:
            raise Damaged(f"is damaged ({error})") from None
        if not fed and not piece and not decompressor.eof:
            raise Damaged("ends too early")
        position.at += len(fed) - len(decompressor.unconsumed_tail) - len(decompressor.unused_data)
        position.piece, position.end = piece, position.end + len(piece)
        return True
