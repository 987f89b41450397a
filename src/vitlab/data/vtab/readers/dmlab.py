"""DMLab: frames of a 3D environment with rewards at some distance, in TFRecord files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitlab.data.archives.members import open_members
from vitlab.data.archives.stretches import Damaged, FileStretch, Stretch
from vitlab.data.archives.tfrecord import example, records
from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.vtab.listing import InFiles, Listing, Pictures
from vitlab.data.vtab.places import Missing, Place
from vitlab.paper.vtab import VtabTask
from vitlab.require import require

REWARDS, DISTANCES = ("positive", "negative"), ("close", "far", "very far")


def dmlab(place: Place, split: str, task: VtabTask) -> Listing:
    """TFRecord files with image, filename and label; every checksum is verified."""
    files = _record_files(place, f"dmlab-{split}.tfrecord")
    keys: list[str] = []
    labels: list[int] = []
    places: list[tuple[int, int, int]] = []  # file, offset, size
    for number, (name, stretch, _) in enumerate(files):
        try:
            for record in records(stretch):
                found = example(record.data)
                (key,), (label,) = found["filename"], found["label"]
                assert isinstance(key, bytes)
                assert isinstance(label, int)
                keys.append(key.decode("utf-8", "surrogateescape"))
                labels.append(label)
                places.append((number, record.offset, len(record.data)))
        except Damaged as error:
            raise ValueError(f"{name} {error}; download it again") from None
        except (KeyError, ValueError, AssertionError):
            raise ValueError(f"{name} has a record without one filename and one label; download it again") from None
    fits = bool(labels) and min(labels) >= 0 and max(labels) < task.classes
    require(fits, f"dmlab-{split}.tfrecord has labels outside 0 to {task.classes - 1}")
    rows = np.array(places, np.int64).reshape(-1, 3)
    class_names = tuple(f"{distance}, {reward}" for reward in REWARDS for distance in DISTANCES)

    def choose(numbers: np.ndarray) -> Pictures:
        return RecordImages([(stretch, file) for _, stretch, file in files], rows[numbers])

    return Listing(keys, np.array(labels), class_names, choose)


def _record_files(place: Place, start: str) -> list[tuple[str, Stretch, Path]]:
    """(name, bytes, file on disk) of every TFRecord file of a split."""
    for folder in place.folders():
        for inside in (folder, folder / "dmlab"):
            found = [file for file in sorted(inside.glob(f"{start}*")) if file.is_file()]
            if found:
                return [(file.name, FileStretch(file), file) for file in found]
    packed = place.find("dmlab.tar", "dmlab.tar.gz")
    if packed is None:
        raise Missing(f"{start}* or dmlab.tar.gz is missing; put it into {place.root / place.names[0]} or above it")
    members = open_members(packed)
    names = [name for name in members.names() if name.rpartition("/")[2].startswith(start)]
    require(bool(names), f"{packed.name} has no {start}*; download it again")
    return [(f"{packed.name}, {name}", members.stretch_of(name), packed) for name in names]


class RecordImages(InFiles):
    """The images in records of TFRecord files; `rows` are (file, offset, size)."""

    def __init__(self, files: Sequence[tuple[Stretch, Path]], rows: np.ndarray) -> None:
        super().__init__(sorted({file for _, file in files}))
        self._stretches, self._rows = [stretch for stretch, _ in files], rows
        self._stamps = [stretch.stamp() for stretch, _ in files]

    def read(self, index: int) -> bytes:
        file, offset, size = self._rows[index].tolist()
        try:
            image = example(self._stretches[file].read(offset, size))["image"][0]
        except (OSError, ValueError, KeyError, IndexError):
            image = None
        if self._stretches[file].stamp() != self._stamps[file]:
            raise BadImage(Reason.changed, "is in a TFRecord file that changed since it was opened; start again")
        if not isinstance(image, bytes):
            raise BadImage(Reason.corrupt, "is not in its record; download the file again")
        return image
