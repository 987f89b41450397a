"""Readers of the specialized sets: satellite, aerial and medical images. Each lists one TFDS split."""

import csv
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.data.archives.hdf5 import open_array, read_small
from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.vtab.listing import Converted, InFiles, Listing, Pictures, file_listing
from vitlab.data.vtab.places import Missing, Place
from vitlab.data.vtab.readers.retinopathy import as_stored
from vitlab.files.user_files import stream_text
from vitlab.paper.vtab import VtabTask
from vitlab.require import require

MOST_PATCHES = 1_000_000
CAMELYON = {"train": "train", "validation": "valid", "test": "test"}  # in file names and keys
LEVELS = ("no retinopathy", "mild", "moderate", "severe", "proliferative")


def patch_camelyon(place: Place, split: str, task: VtabTask) -> Listing:
    """x (n, 96, 96, 3) and y (n, 1, 1, 1) in HDF5 files; 1 means that the centre contains tumour tissue."""
    part = CAMELYON[split]
    stem = f"camelyonpatch_level_2_split_{part}"
    images, labels = (place.file(f"{stem}_{name}.h5", f"{stem}_{name}.h5.gz") for name in "xy")
    found = read_small(labels, "y", MOST_PATCHES).reshape(-1).astype(np.int64)
    with open_array(images, "x") as array:
        shape, kind = array.shape, array.dtype
    is_pixels = kind == np.uint8 and shape == (len(found), 96, 96, 3)
    require(is_pixels, f"{images.name} has {shape} of {kind}; expected uint8, ({len(found)}, 96, 96, 3) as its labels")
    require(set(found.tolist()) <= {0, 1}, f"{labels.name} has labels besides 0 and 1; download it again")

    def choose(numbers: np.ndarray) -> Pictures:
        return Hdf5Rows(images, "x", numbers)

    return Listing([f"{part}_{n}" for n in range(len(found))], found, ("no tumour", "tumour"), choose)


class Hdf5Rows(InFiles):
    """Rows of an array in an HDF5 file; each process opens the file itself and keeps it open."""

    def __init__(self, file: Path, name: str, numbers: np.ndarray) -> None:
        super().__init__([file])
        self._file, self._array_name, self._numbers = Path(file).absolute(), name, numbers
        self._opened: tuple[int, Any, Any] | None = None  # process, what closes the file, the array

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_opened": None}

    def read(self, index: int) -> np.ndarray:
        if self._opened is None or self._opened[0] != os.getpid():
            file = open_array(self._file, self._array_name)
            self._opened = os.getpid(), file, file.__enter__()
        try:
            return np.asarray(self._opened[2][int(self._numbers[index])])
        except (OSError, ValueError, RuntimeError) as error:
            said = str(error).splitlines()[0][:150]
            raise BadImage(Reason.unreadable, f"cannot be read ({said}); download {self._file.name} again") from None


def eurosat(place: Place, split: str, task: VtabTask) -> Listing:
    """Class folders. The keys are those of TFDS since 2022; those of the authors are not known."""
    inside = ("2750", "EuroSAT_RGB", "EuroSAT")
    return _class_folders(place, inside, ("EuroSAT_RGB.zip", "EuroSAT.zip"))


def resisc45(place: Place, split: str, task: VtabTask) -> Listing:
    """Class folders. The keys are those of TFDS since 2022; those of the authors are not known."""
    try:
        return _class_folders(place, ("NWPU-RESISC45",), ("NWPU-RESISC45.tar", "NWPU-RESISC45.zip"))
    except Missing as error:
        packed = place.find("NWPU-RESISC45.rar")
        require(packed is None, "NWPU-RESISC45.rar must be unpacked: RAR is not read")
        raise error from None


def _class_folders(place: Place, inside: tuple[str, ...], archives: tuple[str, ...]) -> Listing:
    members = place.members(inside, archives)
    names = [name for name in members.names() if name.count("/") == 1 and name.lower().endswith(".jpg")]
    keys = [name.replace("/", "_") for name in names]
    classes = [name.partition("/")[0] for name in names]
    return file_listing(members, names, keys, classes, sorted(set(classes)))


def diabetic_retinopathy(place: Place, split: str, task: VtabTask) -> Listing:
    """Kaggle's images with the levels of its two tables, normalised as in TFDS's configuration btgraham-300."""
    file = place.file("trainLabels.csv" if split == "train" else "retinopathy_solution.csv")
    usage = {"train": None, "validation": "Public", "test": "Private"}[split]
    rows = list(csv.DictReader(stream_text(file)))
    columns = {"image", "level"} | ({"Usage"} if usage else set())
    require(bool(rows) and columns <= set(rows[0]), f"{file.name} needs the columns {', '.join(sorted(columns))}")
    chosen = [(row["image"], row["level"]) for row in rows if usage is None or row["Usage"] == usage]
    sound = all(name and "/" not in name and level in tuple("01234") for name, level in chosen)
    require(sound and bool(chosen), f"{file.name} has a row whose level is not 0 to 4")
    folder = "train" if split == "train" else "test"
    members = place.members((folder,), (f"{folder}.zip",))
    keys = [name for name, _ in chosen]
    classes = [LEVELS[int(level)] for _, level in chosen]
    found = file_listing(members, [f"{key}.jpeg" for key in keys], keys, classes, LEVELS)
    return replace(found, choose=lambda numbers: Converted(found.choose(numbers), as_stored))
