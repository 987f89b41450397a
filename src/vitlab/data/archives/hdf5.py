"""Arrays of bytes and whole numbers in HDF5 files; needs the extra `vtab` (h5py)."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.data.archives.members import gunzipped
from vitlab.data.archives.stretches import FileStretch, Inflated, Stretch
from vitlab.require import require

FILTERS = {"gzip", "lzf", "shuffle", "fletcher32", "none"}  # that HDF5 has built in


def require_h5py() -> Any:
    """Import h5py, or raise an error that names the extra."""
    try:
        import h5py
    except ImportError:
        raise ModuleNotFoundError("HDF5 files need h5py: pip install 'vitlab[vtab]'") from None
    return h5py


@contextlib.contextmanager
def open_array(file: Path, name: str) -> Iterator[Any]:
    """Open an array of a file, gzipped or not, as an h5py Dataset.

    An array whose values are in other files, or that needs a plug-in to unpack, is refused. Raises ValueError.
    """
    h5py = require_h5py()
    packed = FileStretch(file)
    try:
        with h5py.File(_Stream(gunzipped(packed)), "r") as opened:
            steps = name.split("/")
            ways = [opened.get("/".join(steps[: number + 1]), getlink=True) for number in range(len(steps))]
            found: Any = opened.get(name) if all(isinstance(way, h5py.HardLink) for way in ways) else None
            is_array = isinstance(found, h5py.Dataset) and found.dtype.kind in "ui"
            require(is_array, f"has no array of whole numbers {name!r}; it has {sorted(opened)!r:.200}")
            is_own = not found.is_virtual and found.external is None
            require(is_own, f"keeps the array {name!r} in other files, which are not read")
            used = {_filter(found, number) for number in range(found.id.get_create_plist().get_nfilters())}
            require(used <= FILTERS, f"packs the array {name!r} with {sorted(used - FILTERS)}, which is not supported")
            yield found
    except (ValueError, OSError, RuntimeError, KeyError, TypeError, MemoryError) as error:
        said = str(error).strip().splitlines()[0][:150] if str(error).strip() else type(error).__name__
        raise ValueError(f"{file.name} {said}; download it again") from None


def _filter(array: Any, number: int) -> str:
    known = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
    code = array.id.get_create_plist().get_filter(number)[0]
    return known.get(code, f"filter {code}")


class _Stream(io.RawIOBase):
    """A stretch as the file object that h5py reads from."""

    def __init__(self, stretch: Stretch) -> None:
        self._stretch, self._at = stretch, 0
        self._end = stretch.size() if isinstance(stretch, Inflated) else stretch.stamp()[0]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._end}[whence]
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        data = self._stretch.read(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def read_small(file: Path, name: str, largest: int) -> np.ndarray:
    """Read a whole array of at most `largest` values."""
    with open_array(file, name) as array:
        require(array.size <= largest, f"has {array.size:,} values in {name!r}; at most {largest:,} are read")
        return np.asarray(array[()])
