"""Read .npz archives and .npy arrays, without unpickling and with limits on their size."""

import contextlib
import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from vitlab.files.user_files import NotRegular, check_archive

# Every error that zipfile, zlib and numpy raise on damaged archives.
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, RuntimeError, NotImplementedError, OverflowError),
    *(SyntaxError, MemoryError, TypeError, KeyError, IndexError, AttributeError),
)
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
LARGEST_RATIO = 100  # unpacked bytes per packed byte of the archive; weights and photographs hardly compress
LARGEST_HEADER = 10_000  # bytes per array header
VERSIONS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class NpzError(ValueError):
    """An archive is damaged, hostile, or contains something other than numbers."""


class Header(NamedTuple):
    """What the header of an array says about its values."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype

    def array(self, data: bytes | bytearray) -> np.ndarray:
        """Return the values in `data`, without a copy."""
        return np.frombuffer(data, self.dtype).reshape(self.shape, order="F" if self.is_fortran else "C")


@contextlib.contextmanager
def damage_explained() -> Iterator[None]:
    """Turn whatever damage raises into a NpzError of one line."""
    try:
        yield
    except (NpzError, NotRegular, FileNotFoundError):
        raise
    except DAMAGE as error:
        said = str(error).strip()
        raise NpzError(said.splitlines()[0][:200] if said else type(error).__name__) from None


def open_archive(path: Path, most: int) -> zipfile.ZipFile:
    """Open an archive and read its directory, of at most `most` members; no array is read."""
    with damage_explained():
        check_archive(path, most)
        archive = zipfile.ZipFile(path)
    if len(archive.filelist) > most:
        archive.close()
        raise NpzError(f"it has {len(archive.filelist):,} members; at most {most:,} are read")
    return archive


def check_unpacked(archive: zipfile.ZipFile, path: Path) -> None:
    """Raise NpzError if the members would unpack to far more than the size of the file."""
    unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > LARGEST_RATIO * path.stat().st_size + 2**20:
        raise NpzError(f"it would unpack to {unpacked:,} bytes, over {LARGEST_RATIO} times its size")


@contextlib.contextmanager
def open_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[tuple[Header, IO[bytes]]]:
    """Open an array behind its header; reading to the end checks the CRC."""
    with damage_explained():
        if member.compress_type not in METHODS or member.flag_bits & 1:
            raise NpzError(f"member {member.filename!r} is encrypted or uses an unusual compression")
        with archive.open(member) as stream:
            yield read_header(stream, member.file_size, f"member {member.filename!r}"), stream


def read_header(stream: IO[bytes], size: int, where: str) -> Header:
    """Read the header of an array of `size` bytes, which must agree; raises for pickled objects."""
    version = npy.read_magic(stream)
    if version not in VERSIONS:
        raise NpzError(f"{where} has npy version {version}")
    header = Header(*VERSIONS[version](stream, max_header_size=LARGEST_HEADER))
    if header.dtype.hasobject:
        raise NpzError(f"{where} contains pickled Python objects, which are never read")
    needed = math.prod(header.shape) * header.dtype.itemsize
    if min(header.shape, default=0) < 0 or needed != size - stream.tell():
        raise NpzError(f"{where} claims shape {header.shape}, which does not match its size")
    return header


def read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Read an array and check its header and CRC."""
    with open_member(archive, member) as (header, stream):
        return header.array(stream.read())
