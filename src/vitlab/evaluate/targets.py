"""Which predictions are right besides the data's own labels: ReaL's, or a user's map to the model's classes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from vitlab.require import require
from vitlab.strict_json import read_json

ILSVRC_ID = re.compile(r"ILSVRC2012_val_(\d{8})(?:\.\w+)?$")
REAL_IMAGES, REAL_CLASSES = 50_000, 1000


@dataclass(frozen=True)
class RealLabels:
    """ReaL's labels of ImageNet's validation images; an empty list is an image that is not scored."""

    lists: tuple[tuple[int, ...], ...]

    def of(self, name: str) -> tuple[int, ...]:
        """The labels of the sample of that id, which must be ImageNet's own name for it."""
        match = ILSVRC_ID.search(name)
        require(match is not None, f"sample {name!r:.100} is no ILSVRC2012_val_ image, and ReaL labels only those")
        assert match is not None
        number = int(match[1])
        require(1 <= number <= len(self.lists), f"sample {name!r:.100} is outside ReaL's {len(self.lists):,} images")
        return self.lists[number - 1]


def read_real(path: Path) -> RealLabels:
    """`real.json` as its authors publish it: entry i belongs to ILSVRC2012_val_{i+1:08d}."""
    value = read_json(path)
    require(
        isinstance(value, list) and len(value) == REAL_IMAGES,
        f"{path.name} is no list of {REAL_IMAGES:,} lists; give the real.json of the ReaL labels",
    )
    lists = []
    for number, labels in enumerate(cast(list[object], value), 1):
        is_list = isinstance(labels, list) and all(type(n) is int and 0 <= n < REAL_CLASSES for n in labels)
        require(is_list, f"{path.name}: entry {number} is {labels!r:.60}, no list of classes 0 to {REAL_CLASSES - 1}")
        lists.append(tuple(dict.fromkeys(cast(list[int], labels))))
    return RealLabels(tuple(lists))


@dataclass(frozen=True)
class LabelMap:
    """The model's classes that are right for each of the data's; none means that its samples are skipped."""

    classes: tuple[tuple[int, ...], ...]  # by the data's class number

    def of(self, labels: Sequence[int]) -> tuple[int, ...]:
        """The model's classes that are right for a sample of the data."""
        return tuple(dict.fromkeys(own for label in labels for own in self.classes[label]))

    @property
    def used(self) -> tuple[int, ...]:
        """Every class of the model that is right for something, in order."""
        return tuple(sorted({own for right in self.classes for own in right}))


def read_label_map(path: Path, data_names: Sequence[str], model_names: Sequence[str]) -> LabelMap:
    """A JSON object: a class of the data -> a class of the model, or a list of several or none of them.

    The data's classes are named, every one of them; the model's are names or numbers. Where the model's names are
    whole numbers, a number is such a name.
    """
    value = read_json(path)
    require(isinstance(value, dict), f"{path.name} must be an object such as {{'class of the data': 'of the model'}}")
    given = cast(dict[str, object], value)
    missing, strange = sorted(set(data_names) - set(given)), sorted(set(given) - set(data_names))
    require(
        not missing and not strange,
        f"{path.name} must name every class of the data: it lacks {missing[:10]!r} and has {strange[:10]!r}, which the "
        f"data does not; write [] for a class whose samples are to be skipped",
    )
    numbers: dict[str, int | None] = {}
    for number, name in enumerate(model_names):
        numbers[name] = None if name in numbers else number  # ImageNet has two cranes

    are_numbers = all(name.isascii() and name.isdigit() for name in model_names)
    by_number = {int(name) if are_numbers else number: number for number, name in enumerate(model_names)}

    def number_of(one: object) -> int:
        if type(one) is int:
            require(one in by_number, f"{path.name}: the model has no class {one}")
            return by_number[one]
        known = isinstance(one, str) and one in numbers
        require(known, f"{path.name}: the model has no class {one!r:.100}; give its name or its number")
        number = numbers[cast(str, one)]
        require(number is not None, f"{path.name}: the model has several classes {one!r:.100}; give the number")
        return cast(int, number)

    def numbers_of(right: object) -> tuple[int, ...]:
        listed = cast(list[object], right) if isinstance(right, list) else [right]
        return tuple(dict.fromkeys(number_of(one) for one in listed))

    return LabelMap(tuple(numbers_of(given[name]) for name in data_names))
