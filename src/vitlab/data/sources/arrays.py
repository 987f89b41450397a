"""Images stored as arrays: what CIFAR, idx and npz have in common, and .npz files themselves."""

import contextlib
import math
import os
import struct
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from vitlab.data.class_names import MOST_CLASSES
from vitlab.data.fingerprint import file_stamp
from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.source import Labels, Sample, Source, check_index
from vitlab.files.user_files import open_regular
from vitlab.npz import NpzError, check_unpacked, open_archive, open_member, read_array
from vitlab.require import require

MOST_MEMBERS = 1_000
LABELS = "class numbers (n,), or 0 and 1 (n, K) for several per image; class names go into an array class_names"


class StoredImages:
    """Images (n, H, W) or (n, H, W, C) of uint8 in a file, read one at a time.

    The file is not memory-mapped, because truncating a mapped file kills the process. A file that changed is refused.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, file: Path, offset: int, shape: tuple[int, ...]) -> None:
        self._file, self._offset, self.shape = file.absolute(), offset, shape
        self.ndim, self.size = len(shape), math.prod(shape)
        self._stamp = file_stamp(self._file)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int) -> np.ndarray:
        size = math.prod(self.shape[1:])
        try:
            with open_regular(self._file) as file:
                same = file_stamp(file.fileno()) == self._stamp
                data = os.pread(file.fileno(), size, self._offset + index * size)
        except OSError as error:
            raise BadImage(Reason.unreadable, f"cannot be read ({error.strerror}); check {self._file.name}") from None
        if not same or len(data) != size:
            raise BadImage(Reason.changed, f"is in {self._file.name}, which changed since it was opened; start again")
        return np.frombuffer(data, np.uint8).reshape(self.shape[1:])


class PixelSource(Source):
    """Images (n, H, W) or (n, H, W, 3) of uint8 with labels (n,), or (n, K) of 0 and 1 for multi-label sets.

    Ids are running numbers, which are also the keys by which TFDS orders such sets. `files` hold the images.
    """

    def __init__(
        self,
        images: np.ndarray | StoredImages,
        labels: np.ndarray,
        class_names: tuple[str, ...],
        name: str,
        files: Sequence[Path] = (),
    ) -> None:
        require(images.dtype == np.uint8, f"{name} has images of {images.dtype}; allowed is uint8")
        is_image = images.ndim == 3 or (images.ndim == 4 and images.shape[3] in (1, 3))
        require(is_image and images.size > 0, f"{name} has images of shape {images.shape}; allowed is (n, H, W[, 3])")
        labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
        are_labels = labels.ndim in (1, 2) and labels.dtype.kind in "iub"
        require(are_labels, f"{name} has labels of {labels.dtype}, shape {labels.shape}; allowed are {LABELS}")
        require(len(labels) == len(images), f"{name} has {len(images):,} images and {len(labels):,} labels")
        if labels.ndim == 1:
            classes, most = int(labels.max()) + 1, len(class_names) or MOST_CLASSES
            wrong = (labels < 0) | (labels >= most)
            found = f"{name} has labels from {labels.min()} to {labels.max()}; allowed are 0 to {most - 1}"
            require(not wrong.any(), f"{found}; see image {wrong.argmax()}")
            self.labels = Labels(labels)
        else:
            classes, known = labels.shape[1], len(class_names)
            require(bool(np.isin(labels, (0, 1)).all()), f"{name} has several labels per image that are not 0 or 1")
            require(known in (0, classes), f"{name} has {classes} labels per image, {known} classes")
            self.labels = Labels(labels.nonzero()[1], labels.sum(axis=1).cumsum())
            self.first_not_single = self.labels.first_not_single()
        self.class_names = class_names or tuple(map(str, range(classes)))
        self._images = images
        self._files = [str(Path(file).absolute()) for file in files]
        self._stamp = tuple(number for file in files for number in file_stamp(file))

    def item(self, index: int) -> Sample:
        pixels = self._images[check_index(index, len(self))]
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels  # (H, W, 1 or 3)
        return Sample(np.array(np.broadcast_to(pixels, (*pixels.shape[:2], 3))), self.label(index), self.id(index))

    def stamp(self, index: int) -> tuple[int, ...]:
        check_index(index, len(self))
        return self._stamp

    def paths(self) -> list[str] | None:
        return self._files or None


class ArraySource(PixelSource):
    """A .npz file of images and labels; uncompressed images are read one by one, compressed ones all at once.

    Without a split, the arrays are `images` and `labels`, or `x` and `y`; with one, `train_images` and so on, or
    `x_train`. An array `class_names` of strings names the classes. Nothing is unpickled.
    """

    def __init__(self, path: Path, split: str = "") -> None:
        file = Path(path)
        self._arguments = (file.absolute(), split)
        with open_npz(file) as (archive, arrays):
            images, labels = _pair(file.name, set(arrays), split)
            names = read_array(archive, arrays["class_names"]) if "class_names" in arrays else np.empty(0, "U")
            require(names.dtype.kind == "U" and names.ndim == 1, f"class_names holds {names.dtype}, not strings")
            pixels = _stored(file, archive, arrays[images]) or read_array(archive, arrays[images])
            numbers = read_array(archive, arrays[labels])
        super().__init__(pixels, numbers, tuple(names.tolist()), file.name, [file])

    def __reduce__(self) -> tuple[object, ...]:
        return self.reopened(*self._arguments)  # compressed images would be copied whole


@contextlib.contextmanager
def open_npz(file: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """Open an archive and list its arrays by name; a damaged one is a ValueError that names the file."""
    try:
        with open_archive(file, MOST_MEMBERS) as archive:
            check_unpacked(archive, file)
            yield archive, {m.filename[:-4]: m for m in archive.infolist() if m.filename.endswith(".npy")}
    except NpzError as error:
        raise ValueError(f"{file.name} is not a valid .npz archive: {error}; make or download it again") from None


def _pair(file: str, names: set[str], split: str) -> tuple[str, str]:
    pairs = [("images", "labels"), ("x", "y")]
    if split:
        pairs = [(f"{split}_images", f"{split}_labels"), (f"x_{split}", f"y_{split}")]
    for images, labels in pairs:
        if images in names and labels in names:
            return images, labels
    wanted = " or ".join(" and ".join(pair) for pair in pairs)
    raise ValueError(f"{file} has no arrays {wanted}; it has {sorted(names)!r:.300}")


def _stored(file: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> StoredImages | None:
    """Images that are stored uncompressed, one after another; None if they must be unpacked or reordered."""
    with open_member(archive, member) as (header, stream):
        start, size = stream.tell(), math.prod(header.shape)
    if member.compress_type != zipfile.ZIP_STORED or header.is_fortran or header.dtype != np.uint8 or size == 0:
        return None
    with open_regular(file) as plain:
        plain.seek(member.header_offset)
        name, extra = struct.unpack("<26x2H", plain.read(30))
    offset = member.header_offset + 30 + name + extra + start
    require(offset + size <= file.stat().st_size, f"{file.name}: {member.filename} ends after the file does")
    return StoredImages(file, offset, header.shape)
