"""Images as files in folders: one folder per class, or no classes."""

import contextlib
import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

import numpy as np

from vitlab.data.class_names import in_order
from vitlab.data.fingerprint import file_stamp
from vitlab.data.images.gate import file_bytes, regular_file
from vitlab.data.images.refusals import READ_SUFFIXES, BadImage, Reason
from vitlab.data.indexing.hashing import stream_hash
from vitlab.data.loading.accounting import Excluded
from vitlab.data.source import Labels, Sample, Source, check_index
from vitlab.files.user_files import broken_link, reading
from vitlab.require import require

SUFFIXES = tuple(suffix.encode() for suffix in READ_SUFFIXES)
# Folders that operating systems create: resource forks, thumbnails, deleted files.
SYSTEM_FOLDERS = {"__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found"}
SPLITS = (("train", "training"), ("val", "validation", "valid"), ("test",))  # each row: names of one split


Taken = TypeVar("Taken")


class Files:
    """The files below a folder by number, in 24 bytes and the name for each, so that millions fit in memory.

    Names are stored as bytes and returned as `os.fsdecode` decodes them, even if they are not valid UTF-8.
    """

    def __init__(self, root: Path, names: Iterable[bytes]) -> None:
        self.root = os.path.realpath(root)
        blob, ends, stamps = bytearray(), array("q"), array("q")
        for name in names:
            blob += name
            ends.append(len(blob))
            stamps.extend(file_stamp(f"{self.root}/{os.fsdecode(name)}"))
        self._blob = bytes(blob)
        self._ends = np.array(ends, np.int64)
        self._stamps = np.array(stamps, np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._ends)

    def name(self, index: int) -> str:
        """Return the path below the folder, with `/`."""
        check_index(index, len(self))
        start = self._ends[index - 1] if index else 0
        return os.fsdecode(self._blob[start : self._ends[index]])

    def __getitem__(self, index: int) -> str:
        """Return the absolute path."""
        return f"{self.root}/{self.name(index)}"

    def paths(self) -> "Files":
        """Return the absolute paths: itself."""
        return self

    def stamp(self, index: int) -> tuple[int, ...]:
        """Return the size and modification time that the file had when the folder was opened."""
        check_index(index, len(self))
        return tuple(self._stamps[index].tolist())

    def read(self, index: int) -> bytes:
        """Read a file; raises BadImage unless it is a regular file inside the folder that has not changed."""
        return self._unchanged(index, file_bytes, len)

    def hashed(self, index: int) -> tuple[int, bytes]:
        """The size and the hash of a file, which may be larger than images are; raises like `read`."""
        return self._unchanged(index, _size_and_hash, itemgetter(0))

    def _unchanged(self, index: int, take: Callable[[str], Taken], size: Callable[[Taken], int]) -> Taken:
        """What `take` makes of a file, if that has the size that the file had when the folder was opened."""
        name, path = self.name(index), self[index]
        try:
            _check_inside(path, self.root)
            taken = take(path)
            if file_stamp(path) != self.stamp(index) or size(taken) != self._stamps[index, 0]:
                raise BadImage(Reason.changed, "changed since the data was opened; stop its writer and start again")
        except BadImage as bad:
            reason, detail = bad.reason, bad.detail
        else:
            return taken
        raise BadImage(reason, detail, name)


def _size_and_hash(path: str) -> tuple[int, bytes]:
    with regular_file(path) as file:
        return stream_hash(file)


class PackedFiles(ABC):
    """Images in one archive by number; the counterpart of `Files`."""

    def __init__(self, path: Path, names: Iterable[str], stamp: tuple[int, ...]) -> None:
        self._path, self._names, self._stamp = path, list(names), stamp

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        """Return the name in the archive."""
        check_index(index, len(self))
        return self._names[index]

    def stamp(self, index: int) -> tuple[int, ...]:
        """Return the size and modification time that the archive had when it was opened."""
        check_index(index, len(self))
        return self._stamp

    def paths(self) -> list[str]:
        """Return the path of the archive."""
        return [str(self._path)]

    @abstractmethod
    def read(self, index: int) -> bytes:
        """Read a file; raises BadImage if that is not possible or the archive has changed."""


def _check_inside(path: str, root: str) -> None:
    try:
        real = os.path.realpath(path)  # of a loop of links: itself, which cannot be opened
    except ValueError:  # a NUL in the path
        raise BadImage(Reason.missing, "is not a valid path; give the path of an image") from None
    if not real.startswith(f"{root.rstrip('/')}/"):
        raise BadImage(Reason.outside_root, "is a link to a place outside the data folder; copy the file into it")


class FilesSource(Source):
    """Samples that are the images of `files`, named as there."""

    files: "Files | PackedFiles"

    def item(self, index: int) -> Sample:
        return Sample(self.files.read(index), self.label(index), self.id(index))

    def id(self, index: int) -> str:
        return self.files.name(index)

    def stamp(self, index: int) -> tuple[int, ...]:
        return self.files.stamp(index)

    def paths(self) -> "Files | list[str]":
        return self.files.paths()


class FolderSource(FilesSource):
    """One folder per class, with images anywhere below it; ids are paths below `path`, or below the split's folder.

    `split` chooses among the folders train, val (validation) and test. Folders, FIFOs and links named like an image
    are samples that are refused when read; other files are counted in `excluded`. A folder without images is not a
    class, but one of `empty_folders`. Links to folders are not followed; one in place of a class folder is an error.
    Samples are sorted by id, classes by name, or by number if all are whole numbers.
    """

    def __init__(self, path: Path, split: str = "") -> None:
        folder = split_folder(Path(path), split)
        self.excluded = Excluded()  # found = len + the sum of these
        classes = class_folders(folder, self.excluded)
        counts = []

        def names() -> Iterator[bytes]:
            for name in classes:
                images = images_below(folder, name, self.excluded)
                counts.append(len(images))
                yield from images

        self.files = Files(folder, names())
        self.empty_folders = tuple(name for name, count in zip(classes, counts, strict=True) if not count)
        for name in self.empty_folders:
            self.excluded.leave_out("empty_class_folder", name)
        self.class_names = in_order(set(classes) - set(self.empty_folders))
        place = {name: number for number, name in enumerate(self.class_names)}
        self.labels = Labels(np.repeat([place.get(name, -1) for name in classes], counts))
        what = f"{folder} has no images ({_known()}) in its {len(classes)} class folders"
        require(len(self) > 0, f"{what}; {self.excluded.described() or 'they are empty'}")


def class_folders(folder: Path, excluded: Excluded) -> list[str]:
    """The class folders of a folder, sorted; counts what else there is."""
    classes = []
    for entry in list(os.scandir(folder)):  # a list: the handle is closed even if a link raises
        if entry.name.startswith("."):
            excluded.leave_out("hidden", entry.name)
        elif entry.name in SYSTEM_FOLDERS:
            excluded.leave_out("system_folder", entry.name)
        elif entry.is_dir(follow_symlinks=False):
            classes.append(entry.name)
        else:
            is_link = Path(entry).is_dir()
            require(not is_link, f"class folder {entry.path!r} is a link, which is not followed; copy it")
            excluded.leave_out("no_class_folder", entry.name)
    images = sum(is_image_name(os.fsencode(entry.name)) for entry in os.scandir(folder)) if not classes else 0
    found = f"has {images:,} images but no class folders" if images else "has no class folders"
    require(bool(classes), f"{folder} {found}; give a folder that has one folder per class")
    return sorted(classes, key=os.fsencode)


def images_below(folder: Path, below: str, excluded: Excluded, suffixes: tuple[bytes, ...] = SUFFIXES) -> list[bytes]:
    """Return the sorted paths, relative to the folder, of the images anywhere in its part `below`; count the rest."""
    return sorted(_walked(folder, below, excluded, suffixes))


def _walked(folder: Path, below: str, excluded: Excluded, suffixes: tuple[bytes, ...]) -> Generator[bytes]:
    waiting = [below]
    while waiting:
        inside = waiting.pop()
        with reading(folder / inside), os.scandir(folder / inside) as entries:
            for entry in entries:
                path = f"{inside}/{entry.name}" if inside else entry.name
                if entry.name.startswith("."):
                    excluded.leave_out("hidden", path)
                elif entry.name in SYSTEM_FOLDERS:
                    excluded.leave_out("system_folder", path)
                elif os.fsencode(entry.name).lower().endswith(suffixes):
                    yield os.fsencode(path)
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                else:
                    excluded.leave_out("linked_folder" if Path(entry).is_dir() else "other_suffix", path)


class StreamedFolder:
    """The ids and labels of a `FolderSource` one after the other, with no more than one class folder in memory."""

    is_as_stored = True

    def __init__(self, path: Path, split: str = "") -> None:
        self._folder = split_folder(Path(path), split)
        self.root, self.excluded = os.path.realpath(self._folder), Excluded()  # counted while the rows are read
        self._classes = class_folders(self._folder, self.excluded)
        used = [name for name in self._classes if self._has_images(name)]
        self.class_names = in_order(used)

    def _has_images(self, name: str) -> bool:
        with contextlib.closing(_walked(self._folder, name, Excluded(), SUFFIXES)) as images:
            return next(images, None) is not None

    def rows(self) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        """Yield the id and the labels of every sample, in order."""
        place = {name: (number,) for number, name in enumerate(self.class_names)}
        for name in self._classes:
            if name not in place:
                self.excluded.leave_out("empty_class_folder", name)
            for image in images_below(self._folder, name, self.excluded):
                yield image, place[name]


def is_image_name(name: bytes) -> bool:
    """Whether a file name ends like that of an image."""
    return name.lower().endswith(SUFFIXES)


def _known() -> str:
    return ", ".join(suffix.decode() for suffix in SUFFIXES)


class PictureSource(FolderSource):
    """Images anywhere below a folder, without labels, for training that needs none."""

    def __init__(self, path: Path, split: str = "") -> None:
        folder = split_folder(Path(path), split)
        self.excluded = Excluded()
        self.class_names = ()
        self.files = Files(folder, images_below(folder, "", self.excluded))
        self.labels = Labels((), np.zeros(len(self.files)))
        why = self.excluded.described() or "it is empty"
        require(len(self) > 0, f"{folder} has no images ({_known()}) in it; {why}")


def split_folder(root: Path, split: str) -> Path:
    """Return the folder of a split, or `root` itself if none is asked for and there are none."""
    require(root.is_dir(), f"{broken_link(root) or f'{root} is not a folder'}; give the folder of the images")
    groups = {name: group for group in SPLITS for name in group}
    found = (entry.name for entry in os.scandir(root) if entry.is_dir())
    folders = [name for name in found if not name.startswith(".") and name not in SYSTEM_FOLDERS]
    found = {name.casefold(): name for name in folders if name.casefold() in groups}
    if not split:
        # A single folder `train` among others may be a class of vehicles.
        are_splits = len(found) > 1 or 0 < len(found) == len(folders)
        require(not are_splits, f"{root} has the splits {', '.join(sorted(found))}; choose one with ?split=NAME")
        return root
    require(split in groups, f"split {split!r}; known are {', '.join(groups)}")
    for name in (split, *groups[split]):
        if name in found:
            return root / found[name]
    raise ValueError(f"{root} has no folder for the split {split!r}; it has {sorted(found) or 'no splits'}")
