"""CIFAR-10 and CIFAR-100 as distributed: the binary files, or the pickles, which are parsed without unpickling."""

from pathlib import Path
from typing import Literal, cast

import numpy as np

from vitlab.data.sources.arrays import PixelSource
from vitlab.data.sources.pickles import read_pickle
from vitlab.require import require
from vitlab.user_files import read_lines, read_regular

PIXELS = 3 * 32 * 32  # bytes of one image: the red plane, the green, the blue
LARGEST_BINARY = 400_000_000  # bytes; the largest, CIFAR-100's train, has 153,700,000
LARGEST_NAMES = 100_000  # bytes of a list of class names
LARGEST_PICKLE = 400_000_000  # bytes; the largest, CIFAR-100's train, has 155,249,918
FOLDERS = {10: ("cifar-10-batches-bin", "cifar-10-batches-py"), 100: ("cifar-100-binary", "cifar-100-python")}
FILES = {  # classes, split: names without `.bin`, which the binary form adds
    (10, "train"): ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"),
    (10, "test"): ("test_batch",),
    (100, "train"): ("train",),
    (100, "test"): ("test",),
}
LABEL_BYTES = {10: 1, 100: 2}  # of the binary form; the last one is used (CIFAR-100 has the coarse label first)
NAMES = {  # (file of the binary form, file of the python form, its entry), and the entry of the labels
    10: ("batches.meta.txt", "batches.meta", "label_names", "labels"),
    100: ("fine_label_names.txt", "meta", "fine_label_names", "fine_labels"),
}


class CifarSource(PixelSource):
    """The 32x32 images of one split in file order, with fine labels; `path` has the files, or the unpacked folder."""

    def __init__(self, classes: Literal[10, 100], path: Path, split: Literal["train", "test"] = "train") -> None:
        require((classes, split) in FILES, f"CIFAR-{classes}, split {split!r}: known are 10 and 100, train and test")
        folder, files, is_binary = _find(Path(path), classes, split)
        parts = [_read_binary(file, classes) if is_binary else _read_python(file, classes) for file in files]
        pixels, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
        images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # (n, 32, 32, 3)
        names = _class_names(folder, classes, is_binary)
        require(len(names) == classes, f"{folder} names {len(names)} classes, not {classes}")
        super().__init__(images, labels, names, f"{folder.name} ({split})", files)


def _find(folder: Path, classes: int, split: str) -> tuple[Path, list[Path], bool]:
    """The folder, its files in order, and whether they are of the binary form."""
    for place in (folder, *(folder / name for name in FOLDERS[classes])):
        for suffix in (".bin", ""):
            files = [place / f"{name}{suffix}" for name in FILES[classes, split]]
            if all(file.is_file() for file in files):
                return place, files, suffix == ".bin"
    wanted = ", ".join(FILES[classes, split])
    raise ValueError(f"{folder} has no CIFAR-{classes} ({wanted}, with or without .bin); unpack the download there")


def _read_binary(file: Path, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (n, 3072) and labels (n,)."""
    data, record = np.frombuffer(read_regular(file, LARGEST_BINARY), np.uint8), LABEL_BYTES[classes] + PIXELS
    whole = len(data) > 0 and len(data) % record == 0
    require(whole, f"{file.name} has {len(data):,} bytes, not a multiple of {record}; download it again")
    records = data.reshape(-1, record)
    return records[:, -PIXELS:], records[:, -PIXELS - 1].astype(np.int32)


def _read_python(file: Path, classes: int) -> tuple[np.ndarray, np.ndarray]:
    entries, entry = _entries(file), NAMES[classes][3]
    pixels, labels = entries.get("data"), entries.get(entry)
    is_pixels = isinstance(pixels, np.ndarray) and pixels.ndim == 2 and pixels.shape[1] == PIXELS
    require(is_pixels, f"{file.name} has no array `data` of (n, {PIXELS})")
    are_labels = isinstance(labels, list) and all(type(n) is int and 0 <= n < classes for n in labels)
    require(are_labels, f"{file.name} has no list `{entry}` of numbers from 0 to {classes - 1}")
    found = np.array(cast(list[int], labels), np.int32)
    images = cast(np.ndarray, pixels)
    require(len(found) == len(images), f"{file.name} has {len(images):,} images and {len(found):,} labels")
    return images, found


def _entries(file: Path) -> dict[str, object]:
    data = read_regular(file, LARGEST_PICKLE)
    try:
        value = read_pickle(data)
    except ValueError as error:
        raise ValueError(f"{file.name} {error}") from None
    require(isinstance(value, dict), f"{file.name} holds a {type(value).__name__}, not the entries of a CIFAR file")
    return cast(dict[str, object], value)


def _class_names(folder: Path, classes: int, is_binary: bool) -> tuple[str, ...]:
    text, pickled, entry, _ = NAMES[classes]
    file = folder / (text if is_binary else pickled)
    require(file.is_file(), f"{file} is missing; it is part of the download and names the classes")
    if is_binary:
        return tuple(read_lines(file, LARGEST_NAMES))
    names = _entries(file).get(entry)
    require(isinstance(names, list), f"{file.name} has no list `{entry}`")
    return tuple(n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in cast(list[object], names))
