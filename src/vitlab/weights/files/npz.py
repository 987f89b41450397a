"""Read and write .npz archives of float arrays, without unpickling and with limits on their size.

Training checkpoints also contain integer step counters. These are listed like other arrays but are never weights.
"""

import io
import math
import zipfile
import zlib
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from vitlab.user_files import NotRegular, check_archive

# Every error that zipfile, zlib and numpy raise on damaged archives.
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    ValueError,
    EOFError,
    OSError,
    RuntimeError,
    NotImplementedError,
    OverflowError,
    SyntaxError,
    MemoryError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
)
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
LARGEST_RATIO = 100  # unpacked bytes per packed byte of the archive; weights hardly compress
LARGEST_MEMBERS = 10_000  # a training checkpoint of ViT-H has about 1,600
LARGEST_HEADER = 10_000  # bytes per array header
BFLOAT16 = np.dtype("V2")  # as stored by big_vision; numpy has no such type


class NpzError(ValueError):
    """An archive is damaged, hostile, or contains something other than numbers."""


def has_pickle(path: Path) -> bool:
    """Whether an archive was written by torch.save; only names are looked at, no member is opened."""
    with _opened(path) as archive:
        return any(name.endswith(".pkl") for name in archive.namelist())


def _opened(path: Path) -> zipfile.ZipFile:
    """Open an archive and read its directory, if that is of reasonable size."""
    try:
        check_archive(path, LARGEST_MEMBERS)
        archive = zipfile.ZipFile(path)
    except NotRegular:
        raise
    except DAMAGE as error:
        _refuse(error)
    if len(archive.filelist) > LARGEST_MEMBERS:
        archive.close()
        raise NpzError(f"too_large: {len(archive.filelist):,} members; at most {LARGEST_MEMBERS:,} are read")
    return archive


class NpzArchive:
    """The arrays of an archive. `shapes` are read at once; `read` reads values and checks them against the header."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._archive = _opened(path)
        try:
            self._arrays = self._headers(self._archive.infolist())
        except NpzError:
            raise
        except DAMAGE as error:
            _refuse(error)
        self.shapes = {name: shape for name, (_, shape, _, _) in self._arrays.items()}

    def _headers(self, members: list[zipfile.ZipInfo]) -> dict[str, Any]:
        unpacked = sum(m.file_size for m in members)
        allowed = LARGEST_RATIO * self.path.stat().st_size + 2**20
        if unpacked > allowed:
            raise NpzError(f"too_large: it would unpack to {unpacked:,} bytes, over {LARGEST_RATIO} times its size")
        arrays: dict[str, Any] = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in arrays or name == member.filename:
                raise NpzError(f"member {member.filename!r} occurs twice or is not an .npy array")
            if member.compress_type not in METHODS or member.flag_bits & 1:
                raise NpzError(f"member {member.filename!r} is encrypted or uses an unusual compression")
            with self._archive.open(member) as stream:
                arrays[name] = (member, *_header(stream, member))
        return arrays

    def read(self, name: str) -> Tensor:
        """Read one array as a tensor."""
        member, shape, fortran, dtype = self._arrays[name]
        try:
            with self._archive.open(member) as stream:
                _header(stream, member)
                data = bytearray(stream.read())  # to the end, so that zipfile checks the CRC
            values = np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if fortran else "C")
        except NpzError:
            raise
        except DAMAGE as error:
            _refuse(error)
        if dtype == BFLOAT16:
            return torch.from_numpy(np.ascontiguousarray(values).view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(np.ascontiguousarray(values.astype(dtype.newbyteorder("="), copy=False)))


def _header(stream: Any, member: zipfile.ZipInfo) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read shape, Fortran order and dtype of an array; a NpzError unless they agree with the size of its member."""
    version = npy.read_magic(stream)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise NpzError(f"member {member.filename!r} has npy version {version}")
    shape, fortran, dtype = readers[version](stream, max_header_size=LARGEST_HEADER)
    if dtype.hasobject:
        raise NpzError(f"unsafe_format: member {member.filename!r} contains pickled Python objects")
    is_float = dtype == BFLOAT16 or (dtype.kind == "f" and dtype.itemsize in (2, 4, 8))
    if not is_float and dtype.kind not in "iub":
        raise NpzError(f"member {member.filename!r} is {dtype}, not float16, float32, float64 or bfloat16")
    if any(side < 0 for side in shape) or math.prod(shape) * dtype.itemsize != member.file_size - stream.tell():
        raise NpzError(f"member {member.filename!r} claims shape {shape}, which does not match its size")
    return shape, fortran, dtype


def _refuse(error: BaseException) -> NoReturn:
    raise NpzError(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__) from None


def _array(tensor: Tensor) -> np.ndarray:
    """Convert to numpy; bfloat16, which numpy lacks, becomes float32 exactly."""
    tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return tensor.detach().contiguous().numpy(force=True)


def write_npz(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write float tensors uncompressed, like the released checkpoints; the same tensors give the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, tensor in tensors.items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.external_attr = 0o600 << 16
            buffer = io.BytesIO()
            npy.write_array(buffer, _array(tensor), allow_pickle=False)
            with archive.open(member, "w", force_zip64=True) as stream:
                stream.write(buffer.getbuffer())
