"""CLEVR: rendered scenes. The tasks are the number of objects, and the depth of the nearest one in bins."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from vitlab.data.vtab.bins import bin_names, binned
from vitlab.data.vtab.listing import Listing, file_listing
from vitlab.data.vtab.places import Place
from vitlab.paper.vtab import VtabTask
from vitlab.require import require

CLEVR = {"train": "train", "validation": "val"}
LEAST_OBJECTS = 3
LARGEST_SCENES = 2**30  # bytes; those of the 70,000 training images have about 190 MB


class Scene(NamedTuple):
    """What the tasks need of a scene."""

    file: str
    objects: int
    nearest: float


def clevr(place: Place, split: str, task: VtabTask) -> Listing:
    """Rendered scenes: the number of objects, or the depth of the nearest one in bins."""
    members = place.members(("CLEVR_v1.0",), ("CLEVR_v1.0.zip",))
    file = f"scenes/CLEVR_{CLEVR[split]}_scenes.json"
    found = list(scenes(members.read(file, LARGEST_SCENES), file))
    if task.edges:
        class_names, classes = bin_names(task.edges), [binned(scene.nearest, task.edges) for scene in found]
    else:
        class_names = tuple(f"{LEAST_OBJECTS + n} objects" for n in range(task.classes))
        classes = [scene.objects - LEAST_OBJECTS for scene in found]
        fits = all(0 <= number < task.classes for number in classes)
        require(fits, f"{file} has a scene whose number of objects is not {LEAST_OBJECTS} to {task.classes + 2}")
    keys = [scene.file for scene in found]
    names = [f"images/{CLEVR[split]}/{key}" for key in keys]
    return file_listing(members, names, keys, [class_names[number] for number in classes], class_names)


def scenes(data: bytes, name: str) -> Iterator[Scene]:
    """Yield the scenes of a file one by one, so that its objects are never in memory at once."""
    try:
        text = data.decode()
        for scene in _array_items(text, "scenes"):
            depths = [float(thing["pixel_coords"][2]) for thing in scene["objects"]]
            yield Scene(str(scene["image_filename"]), len(depths), min(depths))
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        said = f"{type(error).__name__}: {error!s:.80}"
        raise ValueError(f"{name} is not a complete file of scenes ({said}); download it again") from None


def _array_items(text: str, wanted: str) -> Iterator[Any]:
    """Yield the items of the array `wanted` of a JSON object."""
    decoder = json.JSONDecoder()

    def skip(at: int, mark: str = "") -> int:
        while text[at] in " \t\r\n":
            at += 1
        if mark and text[at] != mark:
            raise ValueError(f"expected {mark!r} at character {at:,}")
        return at + len(mark)

    at = skip(0, "{")
    while True:
        key, at = decoder.raw_decode(text, skip(at))
        at = skip(skip(at, ":"))
        if key == wanted:
            break
        _, at = decoder.raw_decode(text, at)
        at = skip(at, ",")
    at = skip(skip(at, "["))
    while text[at] != "]":
        item, at = decoder.raw_decode(text, at)
        yield item
        at = skip(at)
        at = skip(at + 1) if text[at] == "," else at
    skip(at + 1)  # raises if the file ends here
