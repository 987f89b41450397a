"""The places of the members of a tar file: headers are read and checked, nothing is unpacked."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from vitlab.data.fingerprint import file_stamp
from vitlab.data.images.refusals import LARGEST_FILE, BadImage, Reason
from vitlab.files.user_files import open_regular

BLOCK = 512
LARGEST_EXTENSION = 2**20  # bytes of a long name or a pax header; ordinary ones have hundreds
FILES, LINKS, DEVICES, FOLDER = (b"0", b"\0", b"7"), (b"1", b"2"), (b"3", b"4", b"6"), b"5"


class TarError(ValueError):
    """The rest of a tar file cannot be read; members found before are good."""

    def __init__(self, reason: Literal["truncated", "damaged"]) -> None:
        super().__init__(reason)
        self.reason = reason


class Member(NamedTuple):
    name: bytes
    kind: Literal["file", "link", "device", "folder", "other"]
    offset: int  # of the data, in the tar file
    size: int  # bytes


class TarFile:
    """A tar file that is read by offset, from any thread; it is closed with its last reference."""

    _descriptor = -1

    def __init__(self, path: Path | str) -> None:
        with open_regular(path) as file:
            self._descriptor = os.dup(file.fileno())

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def stamp(self) -> tuple[int, int]:
        """Return size in bytes and modification time in nanoseconds."""
        return file_stamp(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes, fewer only at the end of the file."""
        return os.pread(self._descriptor, size, offset)

    def end(self) -> int:
        """Return an offset that no member can pass."""
        return self.stamp()[0]

    def read_image(self, offset: int, size: int, stamp: tuple[int, ...], name: str, way: str) -> bytes:
        """Read an image; raises BadImage if it is too large, or if the file has changed: `way` says what to do then."""
        if size > LARGEST_FILE:
            raise BadImage(Reason.too_large, f"has {size:,} bytes; at most {LARGEST_FILE:,} are allowed", name)
        try:
            data = self.read(offset, size)
        except OSError as error:
            raise BadImage(Reason.unreadable, f"cannot be read ({error.strerror}); check its tar file", name) from None
        if self.stamp() != stamp or len(data) != size:
            raise BadImage(Reason.changed, f"is in a tar file that changed since it was opened; {way}", name)
        return data

    def members(self) -> Iterator[Member]:
        """Yield every member in order, with GNU and pax names; raises TarError if the rest cannot be read."""
        end, at = self.end(), 0
        name: bytes | None = None
        size: int | None = None  # both from an extension header, for the next member
        is_sparse = False
        while True:
            header = self.read(at, BLOCK)
            if len(header) < BLOCK:
                raise TarError("truncated")
            if not header.strip(b"\0"):
                if self.read(at, LARGEST_EXTENSION).strip(b"\0"):  # a hole, or another archive behind this one
                    raise TarError("damaged")
                return
            kind, length = _kind_and_size(header)
            at += BLOCK
            is_extension = kind in (b"L", b"K", b"x", b"g")
            if size is not None and not is_extension:
                length = size
            if kind in (*LINKS, *DEVICES, FOLDER):
                length = 0  # whatever the header says: such members have no data
            if at + length > end:
                raise TarError("truncated")
            if is_extension:
                if length > LARGEST_EXTENSION:
                    raise TarError("damaged")
                if kind == b"L":
                    name = self.read(at, length).split(b"\0")[0]
                elif kind == b"x":
                    records = _pax(self.read(at, length))
                    name = records.get(b"path", name)
                    size = _decimal(records[b"size"]) if b"size" in records else None
                    is_sparse = any(key.startswith(b"GNU.sparse") for key in records)
            else:
                yield Member(_name(header) if name is None else name, _kind(kind, is_sparse), at, length)
                name, size, is_sparse = None, None, False
            at += -(-length // BLOCK) * BLOCK


def _kind_and_size(header: bytes) -> tuple[bytes, int]:
    claimed = _number(header[148:156])
    if claimed != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        raise TarError("damaged")
    return header[156:157], _number(header[124:136])


def _kind(kind: bytes, is_sparse: bool) -> Literal["file", "link", "device", "folder", "other"]:
    if kind in FILES:
        return "other" if is_sparse else "file"
    return "link" if kind in LINKS else "device" if kind in DEVICES else "folder" if kind == FOLDER else "other"


def _name(header: bytes) -> bytes:
    name, prefix = header[:100].split(b"\0")[0], header[345:500].split(b"\0")[0]
    return prefix + b"/" + name if prefix and header[257:263] == b"ustar\0" else name


def _number(field: bytes) -> int:
    """Parse octal text, or base 256 if the first bit is set."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    text = field.split(b"\0")[0].strip()
    if text.strip(b"01234567"):
        raise TarError("damaged")
    return int(text or b"0", 8)


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 19:
        raise TarError("damaged")
    return int(text)


def _pax(data: bytes) -> dict[bytes, bytes]:
    """Parse records of `length key=value\\n`; the length includes itself."""
    records, at = {}, 0
    while at < len(data) and data[at]:
        length = data[at : at + 20].split(b" ")[0]
        record = data[at : at + _decimal(length)]
        key, equals, value = record[len(length) + 1 :].partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise TarError("damaged")
        records[key] = value[:-1]
        at += len(record)
    return records
