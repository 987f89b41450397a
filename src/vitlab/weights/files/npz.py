"""Read and write .npz archives of float arrays; integer counters in checkpoints are listed but never weights."""

import io
import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from vitlab.npz import Header, NpzError, check_unpacked, open_archive, open_member

LARGEST_MEMBERS = 10_000  # a training checkpoint of ViT-H has about 1,600
BFLOAT16 = np.dtype("V2")  # as stored by big_vision; numpy has no such type


def has_pickle(path: Path) -> bool:
    """Whether an archive was written by torch.save; only names are looked at, no member is opened."""
    with open_archive(path, LARGEST_MEMBERS) as archive:
        return any(name.endswith(".pkl") for name in archive.namelist())


class NpzArchive:
    """The arrays of an archive. `shapes` are read at once; `read` reads values and checks them against the header."""

    def __init__(self, path: Path) -> None:
        self._archive = open_archive(path, LARGEST_MEMBERS)
        check_unpacked(self._archive, path)
        self._members: dict[str, zipfile.ZipInfo] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for member in self._archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in self._members or name == member.filename:
                raise NpzError(f"member {member.filename!r} occurs twice or is not an .npy array")
            with open_member(self._archive, member) as (header, _):
                _check_type(header, member.filename)
            self._members[name], self.shapes[name] = member, header.shape

    def read(self, name: str) -> Tensor:
        """Read one array as a tensor."""
        with open_member(self._archive, self._members[name]) as (header, stream):
            _check_type(header, f"{name}.npy")
            values = header.array(bytearray(stream.read()))
        if header.dtype == BFLOAT16:
            return torch.from_numpy(np.ascontiguousarray(values).view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(np.ascontiguousarray(values.astype(header.dtype.newbyteorder("="), copy=False)))


def _check_type(header: Header, name: str) -> None:
    kind = header.dtype
    is_float = kind == BFLOAT16 or (kind.kind == "f" and kind.itemsize in (2, 4, 8))
    if not is_float and kind.kind not in "iub":
        raise NpzError(f"member {name!r} is {kind}, not float16, float32, float64 or bfloat16")


def write_npz(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write float tensors uncompressed, like the released checkpoints; the same tensors give the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, tensor in tensors.items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.external_attr = 0o600 << 16
            buffer = io.BytesIO()
            values = tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # numpy lacks it; float32 is exact
            npy.write_array(buffer, values.detach().contiguous().numpy(force=True), allow_pickle=False)
            with archive.open(member, "w", force_zip64=True) as stream:
                stream.write(buffer.getbuffer())
