"""The idx files of MNIST and its family (Fashion-MNIST, KMNIST, EMNIST), plain or gzipped."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Literal, cast

import numpy as np

from vitlab.data.sources.arrays import PixelSource, StoredImages
from vitlab.files.user_files import open_regular
from vitlab.npz import LARGEST_RATIO
from vitlab.require import require

LARGEST_IDX = 2**30  # bytes, uncompressed; the largest, EMNIST by class, has 547,178,704
SPLITS = {"train": ("train",), "test": ("t10k", "test")}  # in the file names of each split
UINT8 = 0x08  # the type byte of the format


class IdxSource(PixelSource):
    """Grey images of one split, such as `train-images-idx3-ubyte` with `train-labels-idx1-ubyte`, as RGB.

    Uncompressed images are read one by one, gzipped ones are unpacked into memory. Classes are named by number.
    """

    def __init__(self, path: Path, split: Literal["train", "test"] = "train") -> None:
        folder = Path(path)
        self._arguments = (folder.absolute(), split)
        require(split in SPLITS, f"split {split!r}; known are {', '.join(SPLITS)}")
        file = _find(folder, split, "images", 3)
        images = _read(file, sides=3)
        labels = cast(np.ndarray, _read(_find(folder, split, "labels", 1), sides=1))
        super().__init__(images, labels, (), f"{folder.name} ({split})", [file])

    def __reduce__(self) -> tuple[object, ...]:
        return self.reopened(*self._arguments)  # unpacked images would be copied whole


def _find(folder: Path, split: str, kind: str, sides: int) -> Path:
    require(folder.is_dir(), f"{folder} is not a folder; give the folder of the idx files")
    found = sorted(
        file
        for part in SPLITS[split]
        for file in folder.glob(f"*{part}-{kind}?idx{sides}-ubyte*")
        if file.name.endswith(("-ubyte", "-ubyte.gz"))
    )
    plain = [file for file in found if file.suffix != ".gz"] or found  # unpacked beside the compressed one
    names = [file.name for file in plain]
    require(len(plain) == 1, f"{folder} needs one file of {split} {kind} (*-{kind}-idx{sides}-ubyte[.gz]), has {names}")
    return plain[0]


def _read(file: Path, sides: int) -> np.ndarray | StoredImages:
    """Read the uint8 array of a file, checked against its length."""
    is_packed = file.suffix == ".gz"
    start = 4 + 4 * sides
    try:
        with open_regular(file) as plain, gzip.open(plain) if is_packed else plain as stream:
            header = stream.read(start)
            require(len(header) == start, f"{file.name} ends in its header; download it again")
            zero, kind, count = struct.unpack(">HBB", header[:4])
            wanted = f"an idx file of {sides} sides of unsigned bytes"
            is_idx = (zero, kind, count) == (0, UINT8, sides)
            require(is_idx, f"{file.name} starts with {header[:4]!r}; it is not {wanted}")
            shape = struct.unpack(f">{sides}I", header[4:])
            size = math.prod(shape)
            if not is_packed:
                found = file.stat().st_size - start
                require(found == size > 0, f"{file.name} has a header for shape {shape}, but {found:,} bytes of data")
                if sides == 3:
                    return StoredImages(file, start, shape)
                return np.frombuffer(stream.read(size), np.uint8).reshape(shape)
            allowed = min(LARGEST_IDX, LARGEST_RATIO * file.stat().st_size + 2**20)
            require(size <= allowed, f"{file.name} would unpack to {size:,} bytes; at most {allowed:,} are allowed")
            data = stream.read(size + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{file.name} is not a valid gzip file ({error}); download it again") from None
    require(len(data) == size, f"{file.name} has a header for shape {shape}, but not {size:,} bytes of data")
    return np.frombuffer(data, np.uint8).reshape(shape)
