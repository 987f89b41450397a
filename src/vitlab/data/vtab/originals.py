"""Tasks from the files that the authors of the image sets publish, with the splits and the order of TFDS."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitlab.data.splits import tfds_order
from vitlab.data.vtab.image_sets import image_set
from vitlab.data.vtab.listing import Listing
from vitlab.data.vtab.places import Place
from vitlab.data.vtab.task_source import Part, TaskSource
from vitlab.paper.vtab import TaskSplit, VtabTask
from vitlab.require import require


class Chosen(NamedTuple):
    """The images that a split of a task takes from one TFDS split."""

    split: str
    listing: Listing
    numbers: np.ndarray

    @property
    def ids(self) -> tuple[str, ...]:
        """See `Part`."""
        return tuple(f"{self.split}/{self.listing.keys[number]}" for number in self.numbers.tolist())

    @property
    def labels(self) -> np.ndarray:
        """The labels of the chosen images."""
        return self.listing.labels[self.numbers]


def open_original(root: Path, task: VtabTask, split: TaskSplit) -> TaskSource:
    """Open one split of a task; raises Missing if its files are not there, and ValueError if they are damaged."""
    chosen = choose(root, task, split)
    parts = [Part(part.ids, part.labels, part.listing.choose(part.numbers)) for part in chosen]
    return TaskSource(parts, chosen[0].listing.class_names)


def choose(root: Path, task: VtabTask, split: TaskSplit) -> list[Chosen]:
    """Find the images of a split of a task, without opening them."""
    places: dict[str, list[int]] = {}
    for part in task.slices(split):
        places.setdefault(part.split, []).extend(range(part.start, part.stop))
    found = []
    for name, wanted in places.items():
        listing = list_split(image_set(task).place(root), task, name)
        order = tfds_order(listing.keys, name)
        found.append(Chosen(name, listing, np.array([order[place] for place in wanted], np.int64)))
    return found


def list_split(place: Place, task: VtabTask, split: str) -> Listing:
    """List a TFDS split of the task's images; raises unless it is complete."""
    images = image_set(task)
    listing = images.reader(place, split, task)
    found, wanted = len(listing.keys), task.sizes[split]
    is_whole = found == wanted and len(listing.labels) == wanted
    require(is_whole, f"{images.key} has {found:,} images in the split {split}, not {wanted:,}; download it again")
    classes = len(listing.class_names)
    require(classes == task.classes, f"{images.key} has {classes} classes, not {task.classes}; download it again")
    require(len(set(listing.keys)) == found, f"{images.key} has two images of one name; download it again")
    return listing
