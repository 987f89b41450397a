"""The labels a prediction is compared with: the data's own, the ReaL labels, or those of a label map."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from vitlab.files.strict_json import read_json
from vitlab.require import require

ILSVRC_ID = re.compile(r"ILSVRC2012_val_(\d{8})(?:\.\w+)?$")
REAL_IMAGES, REAL_CLASSES = 50_000, 1000


class Target(Protocol):
    """The model's classes that count as correct for a sample."""

    def of(self, labels: Sequence[int], id: str) -> Sequence[int]:
        """The correct classes of the sample with these labels and this id; none: the sample is skipped."""
        ...


@dataclass(frozen=True)
class OwnLabels:
    """The data's own labels; `numbers` are the model's class numbers of the data's classes, () where they agree."""

    numbers: tuple[int, ...] = ()

    def of(self, labels: Sequence[int], id: str) -> Sequence[int]:
        """See `Target.of`."""
        return [self.numbers[label] for label in labels] if self.numbers else labels


OWN: Mapping[str, Target] = {"own": OwnLabels()}


@dataclass(frozen=True)
class RealLabels:
    """The ReaL labels of the ImageNet validation images; an image without labels is not scored."""

    lists: tuple[tuple[int, ...], ...]

    def of(self, labels: Sequence[int], id: str) -> tuple[int, ...]:
        """The ReaL labels of the sample; `id` must end with ImageNet's own file name."""
        match = ILSVRC_ID.search(id)
        require(match is not None, f"sample {id!r:.100} is not an ILSVRC2012_val_ image; ReaL labels cover only those")
        assert match is not None
        number = int(match[1])
        require(1 <= number <= len(self.lists), f"sample {id!r:.100} is outside the {len(self.lists):,} ReaL images")
        return self.lists[number - 1]


def read_real(path: Path) -> RealLabels:
    """Read `real.json` as its authors publish it: entry i belongs to ILSVRC2012_val_{i+1:08d}."""
    value = read_json(path)
    is_real = isinstance(value, list) and len(value) == REAL_IMAGES
    require(is_real, f"{path.name} is not a list of {REAL_IMAGES:,} lists; give the real.json of the ReaL labels")
    lists = []
    for number, labels in enumerate(cast(list[object], value), 1):
        is_list = isinstance(labels, list) and all(type(n) is int and 0 <= n < REAL_CLASSES for n in labels)
        expected = f"not a list of classes 0 to {REAL_CLASSES - 1}"
        require(is_list, f"{path.name}: entry {number} is {labels!r:.60}, {expected}")
        lists.append(tuple(dict.fromkeys(cast(list[int], labels))))
    return RealLabels(tuple(lists))


@dataclass(frozen=True)
class LabelMap:
    """The model's classes that count as correct for each of the data's classes; samples without any are skipped."""

    classes: tuple[tuple[int, ...], ...]  # by the data's class number

    def of(self, labels: Sequence[int], id: str) -> tuple[int, ...]:
        """See `Target.of`."""
        return tuple(dict.fromkeys(own for label in labels for own in self.classes[label]))

    @property
    def used(self) -> tuple[int, ...]:
        """Every class of the model that the map mentions, in order."""
        return tuple(sorted({own for right in self.classes for own in right}))

    def restricted(self) -> "LabelMap":
        """The same map with classes numbered by their place in `used`, for scoring these classes alone."""
        place = {own: number for number, own in enumerate(self.used)}
        return LabelMap(tuple(tuple(place[own] for own in right) for right in self.classes))


def read_label_map(
    path: Path, data_names: Sequence[str], model_names: Sequence[str], model_numbers: Sequence[int]
) -> LabelMap:
    """Read a JSON object that maps each class of the data to a class of the model, or to a list of them.

    The data's classes are given by name, all of them; the model's by name or by number. `model_numbers` are the numbers
    by which the model's classes are called (see `data.class_names.numbers_of`).
    """
    value = read_json(path)
    require(isinstance(value, dict), f"{path.name} must be an object such as {{'class of the data': 'of the model'}}")
    given = cast(dict[str, object], value)
    missing, unknown = sorted(set(data_names) - set(given)), sorted(set(given) - set(data_names))
    differ = f"it lacks {missing[:10]!r} and has {unknown[:10]!r}, which the data does not"
    advice = "write [] for a class whose samples are to be skipped"
    require(not missing and not unknown, f"{path.name} must name every class of the data: {differ}; {advice}")
    numbered = {number: place for place, number in enumerate(model_numbers)}

    def place_of(one: object) -> int:
        places = [n for n, name in enumerate(model_names) if name == one] if type(one) is not int else []
        places += [numbered[one]] if type(one) is int and one in numbered else []
        require(bool(places), f"{path.name}: the model has no class {one!r:.100}; give its name or its number")
        require(len(places) == 1, f"{path.name}: the model has several classes {one!r:.100}; give the number")
        return places[0]  # ImageNet has two cranes

    def places_of(right: object) -> tuple[int, ...]:
        return tuple(dict.fromkeys(place_of(one) for one in (right if isinstance(right, list) else [right])))

    return LabelMap(tuple(places_of(given[name]) for name in data_names))
