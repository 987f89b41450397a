"""The images of one split of a task as a data set."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vitlab.data.images.refusals import BadImage
from vitlab.data.source import Labels, Paths, Sample, Source, check_index
from vitlab.data.vtab.listing import Pictures


class Part(NamedTuple):
    """Images that are read in the same way; an id is `SPLIT/KEY` of TFDS."""

    ids: Sequence[str]
    labels: np.ndarray  # (n,)
    pictures: Pictures


class TaskSource(Source):
    """The images of one split of a task, in the order of TFDS."""

    def __init__(self, parts: Sequence[Part], class_names: tuple[str, ...]) -> None:
        self.parts, self.class_names = tuple(parts), class_names
        self.labels = Labels(np.concatenate([part.labels for part in parts]))
        self._ends = np.cumsum([len(part.ids) for part in parts])

    def item(self, index: int) -> Sample:
        part, number = self._place(index)
        name = part.ids[number]
        try:
            return Sample(part.pictures.read(number), self.label(index), name)
        except BadImage as bad:
            reason, detail = bad.reason, bad.detail
        raise BadImage(reason, detail, name)

    def id(self, index: int) -> str:
        part, number = self._place(index)
        return part.ids[number]

    def stamp(self, index: int) -> tuple[int, ...]:
        part, number = self._place(index)
        return part.pictures.stamp(number)

    def paths(self) -> Paths:
        """See `Source.paths`; a file that several parts are in is listed once."""
        listed = [part.pictures.paths() for part in self.parts]
        if len(listed) == 1:
            return listed[0]
        return list(dict.fromkeys(paths[number] for paths in listed for number in range(len(paths))))

    def _place(self, index: int) -> tuple[Part, int]:
        index = check_index(index, len(self))
        part = int(np.searchsorted(self._ends, index, side="right"))
        return self.parts[part], index - (int(self._ends[part - 1]) if part else 0)
