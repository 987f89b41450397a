"""smallNORB: photographs of toys. The tasks are the direction and the height of the camera."""

from pathlib import Path

import numpy as np

from vitlab.data.archives.members import gunzipped
from vitlab.data.archives.stretches import Damaged, FileStretch, Inflated, Stretch
from vitlab.data.vtab.listing import Listing, Pictures, StretchRows
from vitlab.data.vtab.places import Place
from vitlab.paper.vtab import VtabTask
from vitlab.require import require

NORB = {"train": "5x46789x9x18x6x2x96x96-training", "test": "5x01235x9x18x6x2x96x96-testing"}
NORB_TYPES = {0x1E3D4C55: np.dtype(np.uint8), 0x1E3D4C54: np.dtype("<i4")}
ELEVATION, AZIMUTH = 1, 2  # columns of `info`


def smallnorb(place: Place, split: str, task: VtabTask) -> Listing:
    """Toys photographed from 18 directions and 9 heights; the image of the left camera."""
    stem = f"smallnorb-{NORB[split]}"
    data, info = (place.file(f"{stem}-{kind}.mat", f"{stem}-{kind}.mat.gz") for kind in ("dat", "info"))
    stretch, kind, shape, start = _norb_header(data)
    is_pairs = kind == np.uint8 and len(shape) == 4 and shape[1:] == (2, 96, 96)
    require(is_pairs, f"{data.name} has {shape} of {kind}; expected (n, 2, 96, 96) of uint8")
    facts = _norb_matrix(info)
    require(facts.shape == (shape[0], 4), f"{info.name} has {facts.shape}; expected ({shape[0]}, 4)")
    if task.key == "smallnorb_azimuth":
        require(bool((facts[:, AZIMUTH] % 2 == 0).all()), f"{info.name} has odd azimuths; download it again")
        labels, class_names = facts[:, AZIMUTH] // 2, tuple(f"{20 * n} degrees" for n in range(task.classes))
    else:
        labels, class_names = facts[:, ELEVATION], tuple(f"{30 + 5 * n} degrees" for n in range(task.classes))
    fits = bool(len(labels)) and labels.min() >= 0 and labels.max() < task.classes
    require(fits, f"{info.name} has labels outside 0 to {task.classes - 1}; download it again")

    def choose(numbers: np.ndarray) -> Pictures:
        return StretchRows(stretch, start + numbers * (2 * 96 * 96), (96, 96), data)

    return Listing([str(n) for n in range(len(labels))], labels.astype(np.int64), class_names, choose)


def _norb_header(file: Path) -> tuple[Stretch, np.dtype, tuple[int, ...], int]:
    """(bytes, type, shape, offset of the values) of a matrix, whose size must be that of the file."""
    stretch = gunzipped(FileStretch(file))
    try:
        magic, sides = np.frombuffer(stretch.read(0, 8), "<u4").tolist()
        stored = max(sides, 3)
        is_known = magic in NORB_TYPES and 1 <= sides <= 4
        require(is_known, f"{file.name} starts with {magic:#x}; it is not a matrix of smallNORB")
        shape = tuple(np.frombuffer(stretch.read(8, 4 * stored), "<u4").tolist()[:sides])
        start, kind = 8 + 4 * stored, NORB_TYPES[magic]
        end = start + int(np.prod(shape, dtype=object)) * kind.itemsize
        size = stretch.size() if isinstance(stretch, Inflated) else stretch.stamp()[0]
    except Damaged as error:
        raise ValueError(f"{file.name} {error}; download it again") from None
    except ValueError as error:
        raise error if str(error).startswith(file.name) else ValueError(f"{file.name} ends in its header") from None
    require(size == end, f"{file.name} has {size:,} bytes, its header says {end:,}; download it again")
    return stretch, kind, shape, start


def _norb_matrix(file: Path) -> np.ndarray:
    stretch, kind, shape, start = _norb_header(file)
    size = int(np.prod(shape, dtype=object)) * kind.itemsize
    require(size <= 2**26, f"{file.name} has {size:,} bytes of labels; it is not a matrix of labels")
    return np.frombuffer(stretch.read(start, size), kind).reshape(shape)
