"""dSprites: white shapes on black. The tasks are the x position and the orientation, in 16 bins each."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitlab.data.archives.hdf5 import open_array
from vitlab.data.vtab.listing import InFiles, Listing, Pictures, rgb
from vitlab.data.vtab.places import Place
from vitlab.npz import NpzError, open_archive, open_member
from vitlab.paper.vtab import VtabTask
from vitlab.require import require

DSPRITES = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64"
SPRITE = (64, 64)
LATENTS = {"dsprites_orientation": (3, 40), "dsprites_location": (4, 32)}  # column of latents_classes, its values
ROWS = 8192  # images read at a time


def dsprites(place: Place, split: str, task: VtabTask) -> Listing:
    """The .npz or the .hdf5 file: x position or orientation, in 16 bins each."""
    file = place.file(f"{DSPRITES}.npz", f"{DSPRITES}.hdf5")
    column, values = LATENTS[task.key]
    latents = (_npz_latents if file.suffix == ".npz" else _hdf5_latents)(file)[:, column].astype(np.int64)
    fits = bool(len(latents)) and latents.min() >= 0 and latents.max() < values
    require(fits, f"{file.name} has latents_classes outside 0 to {values - 1} in column {column}; download it again")
    labels = latents * task.classes // values  # floor(x / 2), floor(orientation / 2.5)

    def choose(numbers: np.ndarray) -> Pictures:
        return Sprites(file, numbers)

    unit = "x" if column == 4 else "orientation"
    shares = [sorted(v for v in range(values) if v * task.classes // values == n) for n in range(task.classes)]
    class_names = tuple(f"{unit} {share[0]} to {share[-1]}" for share in shares)
    return Listing([str(n) for n in range(len(labels))], labels, class_names, choose)


class Sprites(InFiles):
    """Chosen sprites, one bit per pixel in memory: the file is compressed as a whole and is read once, in order."""

    def __init__(self, file: Path, numbers: np.ndarray) -> None:
        super().__init__([file])
        order = np.argsort(numbers, kind="stable")
        ordered, bits = numbers[order], np.empty((len(numbers), SPRITE[0] * SPRITE[1] // 8), np.uint8)
        for start, rows in (_npz_images if file.suffix == ".npz" else _hdf5_images)(file):
            first, last = np.searchsorted(ordered, (start, start + len(rows)))
            own = rows[ordered[first:last] - start].reshape(last - first, SPRITE[0] * SPRITE[1])
            require(
                not len(own) or int(own.max()) <= 1, f"{file.name} has pixels other than 0 and 1; download it again"
            )
            bits[order[first:last]] = np.packbits(own, axis=1)
        self._bits = bits

    def read(self, index: int) -> np.ndarray:
        return rgb(np.unpackbits(self._bits[index]).reshape(SPRITE) * np.uint8(255))


def _npz_latents(file: Path) -> np.ndarray:
    try:
        with open_archive(file, 100) as archive, open_member(archive, archive.getinfo("latents_classes.npy")) as opened:
            header, stream = opened
            shape = header.shape
            require(len(shape) == 2 and shape[1] == 6 and shape[0] < 10**7, f"{file.name} has latents of {shape}")
            return header.array(stream.read())
    except (NpzError, KeyError) as error:
        raise ValueError(f"{file.name} is not a valid .npz archive: {error}; download it again") from None


def _npz_images(file: Path) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (number of the first, images) in order; reading to the end checks the CRC."""
    try:
        with open_archive(file, 100) as archive, open_member(archive, archive.getinfo("imgs.npy")) as (header, stream):
            is_sprites = header.dtype == np.uint8 and header.shape[1:] == SPRITE and not header.is_fortran
            require(
                is_sprites, f"{file.name} has images {header.shape} of {header.dtype}; expected (n, 64, 64) of uint8"
            )
            size = SPRITE[0] * SPRITE[1]
            for start in range(0, header.shape[0], ROWS):
                count = min(ROWS, header.shape[0] - start)
                yield start, np.frombuffer(stream.read(count * size), np.uint8).reshape(count, *SPRITE)
            stream.read(1)
    except (NpzError, KeyError) as error:
        raise ValueError(f"{file.name} is not a valid .npz archive: {error}; download it again") from None


def _hdf5_latents(file: Path) -> np.ndarray:
    with open_array(file, "latents/classes") as array:
        require(array.ndim == 2 and array.shape[1] == 6 and array.shape[0] < 10**7, f"has latents of {array.shape}")
        return np.asarray(array[()])


def _hdf5_images(file: Path) -> Iterator[tuple[int, np.ndarray]]:
    with open_array(file, "imgs") as array:
        require(array.dtype == np.uint8 and array.shape[1:] == SPRITE, f"has images {array.shape} of {array.dtype}")
        for start in range(0, array.shape[0], ROWS):
            yield start, np.asarray(array[start : start + ROWS])
