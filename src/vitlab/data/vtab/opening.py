"""A task of VTAB-1k as a data set: `vtab:ROOT?task=NAME&split=train800val200`."""

from pathlib import Path
from typing import Literal

from vitlab.data.vtab import packs, split_lists
from vitlab.data.vtab.image_sets import vtab_task
from vitlab.data.vtab.originals import open_original
from vitlab.data.vtab.task_source import TaskSource
from vitlab.paper.vtab import TaskSplit, VtabTask
from vitlab.require import require

Origin = Literal["pack", "lists", "original files"]


class VtabSource(TaskSource):
    """A task by name; `path` is the folder of all downloads.

    It is read from the pack that `vitlab data prepare vtab` made, from lists of images and labels that others have
    published, or from the original files: the first of these that is there.
    """

    def __init__(
        self,
        path: Path,
        task: str = "",
        split: Literal["train800", "val200", "train800val200", "test"] = "train800val200",
    ) -> None:
        require(bool(task), "vtab needs a task: vtab:PATH?task=dsprites_location")
        known = ("train800", "val200", "train800val200", "test")
        require(split in known, f"split {split!r:.60}; known are {', '.join(known)}")
        opened = open_task(Path(path), vtab_task(task), split)
        super().__init__(opened.parts, opened.class_names)


def open_task(root: Path, task: VtabTask, split: TaskSplit) -> TaskSource:
    """Open one split of a task; raises Missing if its files are not there, and ValueError if they are damaged."""
    match origin(root, task):
        case "pack":
            return packs.open_pack(root, task, split)
        case "lists":
            return split_lists.open_lists(root, task, split)
    return open_original(root, task, split)


def origin(root: Path, task: VtabTask) -> Origin:
    """Where a task is read from."""
    require(root.is_dir(), f"{root} is not a folder; give the folder of the downloads")
    if packs.has_pack(root, task):
        return "pack"
    return "lists" if split_lists.find(root, task) is not None else "original files"
