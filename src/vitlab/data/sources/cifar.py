"""CIFAR-10 and CIFAR-100 as distributed: the binary files, or the pickles, which are parsed without unpickling."""

from pathlib import Path
from typing import Literal, cast

import numpy as np

from vitlab.data.archives.members import FolderMembers, Members, open_members
from vitlab.data.sources.arrays import PixelSource
from vitlab.data.sources.pickles import read_pickle
from vitlab.require import require

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
    """The 32x32 images of one split in file order, with fine labels.

    `path` has the files, the unpacked folder, or the archive as downloaded.
    """

    def __init__(self, classes: Literal[10, 100], path: Path, split: Literal["train", "test"] = "train") -> None:
        require((classes, split) in FILES, f"CIFAR-{classes}, split {split!r}: known are 10 and 100, train and test")
        members, names, is_binary = _find(Path(path), classes, split)
        parts = [
            _read_binary(members, name, classes) if is_binary else _read_python(members, name, classes)
            for name in names
        ]
        pixels, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
        images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # (n, 32, 32, 3)
        class_names = _class_names(members, classes, is_binary)
        require(len(class_names) == classes, f"{members.path} names {len(class_names)} classes, not {classes}")
        files = [Path(file) for file in members.choose(names).paths()]
        super().__init__(images, labels, class_names, f"{members.path.name} ({split})", files)


def _find(folder: Path, classes: int, split: str) -> tuple[Members, list[str], bool]:
    """The folder or archive, its files in order, and whether they are of the binary form."""
    for place in (folder, *(folder / name for name in FOLDERS[classes])):
        for suffix in (".bin", ""):
            names = [f"{name}{suffix}" for name in FILES[classes, split]]
            if all((place / name).is_file() for name in names):
                return FolderMembers(place), names, suffix == ".bin"
    for inside, suffix in zip(FOLDERS[classes], (".bin", ""), strict=True):
        packed = next((file for end in ("tar", "tar.gz") if (file := folder / f"{inside}.{end}").is_file()), None)
        if packed is not None:
            names = [f"{name}{suffix}" for name in FILES[classes, split]]
            return open_members(packed).below(f"{inside}/"), names, suffix == ".bin"
    wanted = ", ".join(FILES[classes, split])
    raise ValueError(
        f"{folder} has no CIFAR-{classes} ({wanted}, with or without .bin); put the download there, unpacked or not"
    )


def _read_binary(members: Members, name: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (n, 3072) and labels (n,)."""
    data, record = np.frombuffer(members.read(name, LARGEST_BINARY), np.uint8), LABEL_BYTES[classes] + PIXELS
    whole = len(data) > 0 and len(data) % record == 0
    require(whole, f"{name} has {len(data):,} bytes, not a multiple of {record}; download it again")
    records = data.reshape(-1, record)
    return records[:, -PIXELS:], records[:, -PIXELS - 1].astype(np.int32)


def _read_python(members: Members, name: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    entries, entry = _entries(members, name), NAMES[classes][3]
    pixels, labels = entries.get("data"), entries.get(entry)
    is_pixels = isinstance(pixels, np.ndarray) and pixels.ndim == 2 and pixels.shape[1] == PIXELS
    require(is_pixels, f"{name} has no array `data` of (n, {PIXELS})")
    are_labels = isinstance(labels, list) and all(type(n) is int and 0 <= n < classes for n in labels)
    require(are_labels, f"{name} has no list `{entry}` of numbers from 0 to {classes - 1}")
    found = np.array(cast(list[int], labels), np.int32)
    images = cast(np.ndarray, pixels)
    require(len(found) == len(images), f"{name} has {len(images):,} images and {len(found):,} labels")
    return images, found


def _entries(members: Members, name: str) -> dict[str, object]:
    data = members.read(name, LARGEST_PICKLE)
    try:
        value = read_pickle(data)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None
    require(isinstance(value, dict), f"{name} holds a {type(value).__name__}, not the entries of a CIFAR file")
    return cast(dict[str, object], value)


def _class_names(members: Members, classes: int, is_binary: bool) -> tuple[str, ...]:
    text, pickled, entry, _ = NAMES[classes]
    file = text if is_binary else pickled
    require(
        members.contains(file), f"{members.path / file} is missing; it is part of the download and names the classes"
    )
    if is_binary:
        return tuple(members.lines(file, LARGEST_NAMES))
    names = _entries(members, file).get(entry)
    require(isinstance(names, list), f"{file} has no list `{entry}`")
    return tuple(n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in cast(list[object], names))
