"""Image sets packed once: the 1000 training and all test images of a set in shards, with the labels of its tasks.

    ROOT/prepared/SET/train800-00000.tar, val200-00000.tar, test-00000.tar, ...
    ROOT/prepared/SET/vitlab-shards.index
    ROOT/prepared/SET/vtab.json     keys, labels and class names; written last

Two tasks on the same images share a pack. An interrupted packing continues with the first shard that is missing.
"""

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from vitlab.data.source import Paths
from vitlab.data.sources.shard_writing import PER_SHARD, Written, write_shards
from vitlab.data.sources.shards import INDEX, ShardSource, index_folder
from vitlab.data.vtab.image_sets import image_set
from vitlab.data.vtab.originals import choose, open_original
from vitlab.data.vtab.task_source import Part, TaskSource
from vitlab.files.store import make_folder, remove_folder, remove_leftovers, write_json
from vitlab.files.strict_json import from_json, read_json, to_json
from vitlab.paper.vtab import TaskSplit, VtabTask
from vitlab.require import require

FOLDER: Final = "prepared"
CARD, PLAN = "vtab.json", "plan.json"
SPLITS: Final[tuple[TaskSplit, ...]] = ("train800", "val200", "test")
AGAIN = "remove its folder and run vitlab data prepare vtab again"


@dataclass(frozen=True)
class PackedTask:
    """Class names and the labels by split."""

    class_names: tuple[str, ...]
    labels: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class PackCard:
    """What a pack holds: the ids of its images by split, in the order of the shards, and its tasks."""

    format: str
    version: int
    ids: dict[str, tuple[str, ...]]
    tasks: dict[str, PackedTask]


def pack_folder(root: Path, task: VtabTask) -> Path:
    """The folder of a task's pack."""
    return root / FOLDER / image_set(task).key


def has_pack(root: Path, task: VtabTask) -> bool:
    """Whether there is a finished pack with the labels of the task."""
    file = pack_folder(root, task) / CARD
    return file.is_file() and task.key in _card(file).tasks


def open_pack(root: Path, task: VtabTask, split: TaskSplit) -> TaskSource:
    """Open one split of a task from its pack."""
    folder = pack_folder(root, task)
    card, shards = _card(folder / CARD), ShardSource(folder)
    packed = card.tasks[task.key]
    order = sorted(SPLITS)  # as the names of the shards
    wanted = {name: sum(part.images for part in task.slices(name)) for name in SPLITS}
    found = {name: len(card.ids.get(name, ())) for name in SPLITS}
    is_whole = found == wanted and sum(found.values()) == len(shards) and len(packed.class_names) == task.classes
    require(is_whole, f"the pack {folder} does not hold the images of {task.key}; {AGAIN}")
    parts = []
    for name in ("train800", "val200") if split == "train800val200" else (split,):
        start = sum(found[other] for other in order[: order.index(name)])
        parts.append(Part(card.ids[name], np.array(packed.labels[name]), ShardPictures(shards, start)))
    return TaskSource(parts, packed.class_names)


class ShardPictures:
    """Images of shards from a number on."""

    def __init__(self, shards: ShardSource, start: int) -> None:
        self._shards, self._start = shards, start

    def read(self, index: int) -> bytes:
        data = self._shards.item(self._start + index).data
        assert isinstance(data, bytes)
        return data

    def stamp(self, index: int) -> tuple[int, ...]:
        return self._shards.stamp(self._start + index)

    def paths(self) -> Paths:
        return self._shards.paths()


def _card(file: Path) -> PackCard:
    card = from_json(PackCard, read_json(file), file.name)
    is_known = (card.format, card.version) == ("vitlab-vtab", 1)
    require(is_known, f"{file} is not a pack of this version; {AGAIN}")
    return card


# -- Packing ---------------------------------------------------------------------------------------


def write_pack(root: Path, tasks: Sequence[VtabTask]) -> Generator[Written]:
    """Pack the images of tasks that share an image set; yields how far it is. Finished shards are not written again."""
    first, folder = tasks[0], pack_folder(root, tasks[0])
    require(len({image_set(task).key for task in tasks}) == 1, "the tasks of a pack must share their images")
    chosen = {(task.key, split): choose(root, task, split) for task in tasks for split in SPLITS}
    card = PackCard(
        format="vitlab-vtab",
        version=1,
        ids={split: tuple(name for part in chosen[first.key, split] for name in part.ids) for split in SPLITS},
        tasks={
            task.key: PackedTask(
                class_names=chosen[task.key, "test"][0].listing.class_names,
                labels={
                    split: tuple(label for part in chosen[task.key, split] for label in part.labels.tolist())
                    for split in SPLITS
                },
            )
            for task in tasks
        },
    )
    _begin(folder, hashlib.sha256(repr(to_json(card)).encode("utf-8", "surrogateescape")).hexdigest())
    total, before = sum(len(ids) for ids in card.ids.values()), 0
    for split in SPLITS:
        source = open_original(root, first, split)
        for written in write_shards(source, folder, split, PER_SHARD):
            yield Written(before + written.done, total)
        before += len(source)
    (folder / INDEX).unlink(missing_ok=True)
    found = index_folder(folder)
    require(
        found.samples == total, f"{found.samples:,} of {total:,} images could be stored: {found.excluded.described()}"
    )
    write_json(folder / CARD, to_json(card))


def _begin(folder: Path, plan: str) -> None:
    """Continue the packing of the same images, or start a new one."""
    if (folder / PLAN).is_file() and read_json(folder / PLAN) != {"plan": plan}:
        remove_folder(folder)
    make_folder(folder)
    remove_leftovers(folder)
    write_json(folder / PLAN, {"plan": plan})
