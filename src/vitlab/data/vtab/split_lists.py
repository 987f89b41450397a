"""Tasks as others have published them: a folder of images with lists of file names and labels.

The lists are `train800.txt`, `val200.txt`, `train800val200.txt` and `test.txt` with lines of `images/... LABEL`, or the
same as `.json`: an object of file names and labels. They are in a folder named after the task, beside the images.
"""

import os
from pathlib import Path
from typing import Final

import numpy as np

from vitlab.data.sources.folders import Files
from vitlab.data.vtab.task_source import Part, TaskSource
from vitlab.files.strict_json import read_json
from vitlab.files.user_files import read_lines
from vitlab.paper.vtab import TaskSplit, VtabTask
from vitlab.require import require

LARGEST_LIST = 64 * 2**20  # bytes
SHORTER: Final = {  # names of folders in use, besides the key of the task
    "cifar100": "cifar",
    "oxford_iiit_pet": "oxford_pet",
    "clevr_distance": "clevr_dist",
    "dsprites_location": "dsprites_loc",
    "dsprites_orientation": "dsprites_ori",
    "kitti_distance": "kitti",
    "smallnorb_azimuth": "smallnorb_azi",
    "smallnorb_elevation": "smallnorb_ele",
}


def find(root: Path, task: VtabTask) -> Path | None:
    """The folder of a task with lists, or None."""
    for name in (task.key, SHORTER.get(task.key, task.key)):
        if any((root / name / f"train800val200{suffix}").is_file() for suffix in (".txt", ".json")):
            return root / name
    return None


def open_lists(root: Path, task: VtabTask, split: TaskSplit) -> TaskSource:
    """Open one split of a task; classes are named by number, because the lists have no names."""
    folder = find(root, task)
    assert folder is not None
    plain, packed = folder / f"{split}.txt", folder / f"{split}.json"
    file = plain if plain.is_file() else packed
    pairs = _lines(file) if file is plain else _object(file)
    where = f"{folder.name}/{file.name}"
    wanted = sum(part.images for part in task.slices(split))
    require(len(pairs) == wanted, f"{where} lists {len(pairs):,} images, not {wanted:,}")
    sound = all(0 <= label < task.classes for _, label in pairs)
    require(sound, f"{where} has labels outside 0 to {task.classes - 1}")
    names = [name for name, _ in pairs]
    require(len(set(names)) == len(names), f"{where} lists an image twice")
    missing = [name for name in names if not (folder / name).exists()]
    require(not missing, f"{len(missing):,} images of {where} are missing, such as {missing[:1]!r:.100}")
    images = Files(folder, map(os.fsencode, names))
    labels = np.array([label for _, label in pairs])
    return TaskSource([Part(names, labels, images)], tuple(str(number) for number in range(task.classes)))


def _lines(file: Path) -> list[tuple[str, int]]:
    found = []
    for number, line in enumerate(read_lines(file, LARGEST_LIST), 1):
        name, _, label = line.rpartition(" ")
        require(bool(name) and label.isdecimal(), f"{file.name}, entry {number}: {line!r:.100} is not `NAME LABEL`")
        found.append((name.strip(), int(label)))
    return found


def _object(file: Path) -> list[tuple[str, int]]:
    value = read_json(file)
    sound = isinstance(value, dict) and all(type(label) is int for label in value.values())
    require(sound, f"{file.name} is not an object of file names and labels")
    assert isinstance(value, dict)
    return [(str(name), int(str(label))) for name, label in value.items()]
