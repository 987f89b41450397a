"""ObjectNet as distributed: objects in unusual places, for models of ImageNet's classes (appendix D.9)."""

import os
from pathlib import Path
from typing import cast

import numpy as np

from vitlab.data.images.gate import read_image
from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.loading.accounting import Excluded
from vitlab.data.source import Labels, Sample
from vitlab.data.sources.folders import Files, FilesSource, images_below
from vitlab.files.strict_json import read_json
from vitlab.files.user_files import read_lines
from vitlab.require import require

BORDER = 1  # pixels in red around every image, by which training on it can be noticed; they are cut off
CLASSES = 1000
LARGEST_LIST = 2**20  # bytes


class ObjectNetSource(FilesSource):
    """The images of the objects that ImageNet has classes for, without their red border; ids are `folder/file`.

    `path` has the folders `images` and `mappings`, or a folder `objectnet-1.0` that does. `imagenet_numbers` are the
    classes of ImageNet that count as correct for each object. Images of other objects are counted in `excluded`.
    """

    def __init__(self, path: Path) -> None:
        folder = next((p for p in (Path(path), Path(path) / "objectnet-1.0") if (p / "mappings").is_dir()), Path(path))
        packed = any(Path(path).glob("objectnet*.zip"))
        advice = "unpack the archive with its password" if packed else "give the folder of the unpacked archive"
        require((folder / "images").is_dir(), f"{path} has no folders images and mappings; {advice}")
        names = _texts(folder / "mappings" / "folder_to_objectnet_label.json")
        numbers = _imagenet_numbers(folder / "mappings")
        self.excluded = Excluded()
        found, objects = [], []
        for inside in sorted(entry.name for entry in os.scandir(folder / "images") if entry.is_dir()):
            require(inside in names, f"folder_to_objectnet_label.json does not name the folder {inside!r:.80}")
            images = images_below(folder / "images", inside, self.excluded)
            if names[inside] in numbers:
                found += images
                objects += [names[inside]] * len(images)
            else:
                for image in images:
                    self.excluded.leave_out("no_imagenet_class", os.fsdecode(image))
        require(bool(found), f"{folder / 'images'} has no images of objects that ImageNet has classes for")
        self.class_names = tuple(sorted(set(objects)))
        place = {name: number for number, name in enumerate(self.class_names)}
        self.labels = Labels(np.array([place[name] for name in objects]))
        self.imagenet_numbers = tuple(numbers[name] for name in self.class_names)
        self.files = Files(folder / "images", found)

    def item(self, index: int) -> Sample:
        name = self.id(index)
        image = read_image(self.files.read(index), name=name, max_pixels=self.max_pixels).image
        if min(image.size) <= 2 * BORDER:
            raise BadImage(Reason.corrupt, f"is {image.width} x {image.height}, nothing but its border", name)
        inside = image.crop((BORDER, BORDER, image.width - BORDER, image.height - BORDER))
        return Sample(np.asarray(inside), self.label(index), name)


def _texts(file: Path) -> dict[str, str]:
    value = read_json(file)
    sound = isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
    require(sound, f"{file.name} is not an object of names")
    return cast(dict[str, str], value)


def _imagenet_numbers(folder: Path) -> dict[str, tuple[int, ...]]:
    """The usual class numbers of ImageNet for each object that has any.

    Objects have descriptions of classes, separated by "; ", which are the lines of a file in the order of the
    development kit; another file gives the line of each usual class number, counted from 0 or from 1.
    """
    described = _texts(folder / "objectnet_to_imagenet_1k.json")
    lines = {line: number for number, line in enumerate(read_lines(folder / "imagenet_to_label_2012_v2", LARGEST_LIST))}
    value = read_json(folder / "pytorch_to_imagenet_2012_id.json")
    pairs = value.items() if isinstance(value, dict) else ()
    sound = all(number.isdecimal() and type(line) is int for number, line in pairs)
    usual = {cast(int, line): int(number) for number, line in pairs} if sound else {}
    first = min(usual, default=0)
    whole = first in (0, 1) and sorted(usual) == list(range(first, first + CLASSES)) and len(lines) == CLASSES
    whole = whole and sorted(usual.values()) == list(range(CLASSES))
    require(whole, f"{folder} does not give each of ImageNet's {CLASSES} classes a line; unpack the archive again")
    found = {}
    for name, text in described.items():
        classes = [one.strip() for one in text.split("; ")]
        unknown = [one for one in classes if one not in lines]
        require(not unknown, f"objectnet_to_imagenet_1k.json has {unknown[:1]!r:.100}, which is no class of ImageNet")
        found[name] = tuple(usual[lines[one] + first] for one in classes)
    return found
