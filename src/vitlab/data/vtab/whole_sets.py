"""Pets and Flowers as their authors distribute them, whole: `pets:DIR?split=test` and `flowers:DIR`, for transfer."""

from pathlib import Path
from typing import Literal

import numpy as np

from vitlab.data.vtab.image_sets import vtab_task
from vitlab.data.vtab.originals import list_split
from vitlab.data.vtab.places import Place
from vitlab.data.vtab.task_source import Part, TaskSource
from vitlab.paper.vtab import VtabTask
from vitlab.require import require


class PetsSource(TaskSource):
    """Oxford-IIIT Pets: 3,680 training and 3,669 test images of 37 breeds; ids are file names, as in TFDS.

    `path` has `images` and `annotations`, unpacked or as .tar.gz.
    """

    def __init__(self, path: Path, split: Literal["train", "test"] = "train") -> None:
        require(split in ("train", "test"), f"split {split!r:.60}; known are train and test")
        opened = open_whole(Path(path), vtab_task("oxford_iiit_pet"), (split,))
        super().__init__(opened.parts, opened.class_names)


class FlowersSource(TaskSource):
    """Oxford Flowers-102: 1,020 training, 1,020 validation and 6,149 test images; ids are file names, as in TFDS.

    `path` has `jpg` or 102flowers.tgz, imagelabels.mat and setid.mat. The paper does not say whether its training
    images include those of validation: `train+validation` has both.
    """

    def __init__(self, path: Path, split: Literal["train", "validation", "test", "train+validation"] = "train") -> None:
        known = ("train", "validation", "test", "train+validation")
        require(split in known, f"split {split!r:.60}; known are {', '.join(known)}")
        opened = open_whole(Path(path), vtab_task("oxford_flowers102"), tuple(split.split("+")))
        super().__init__(opened.parts, opened.class_names)


def open_whole(path: Path, task: VtabTask, splits: tuple[str, ...]) -> TaskSource:
    """Open all images of TFDS splits, in the order of the files."""
    require(path.is_dir(), f"{path} is not a folder; give the folder of the downloads")
    parts, class_names = [], ()
    for split in splits:
        listing = list_split(Place(path, ("",)), task, split)
        class_names = listing.class_names
        parts.append(Part(tuple(listing.keys), listing.labels, listing.choose(np.arange(len(listing.keys)))))
    return TaskSource(parts, class_names)
