"""Class names and class numbers: what a whole number means as a label, and how the classes of two data sets match.

In a table or an array (CSV, npz, parquet, shards, idx) a label that is a whole number is a class number: 7 is class 7,
and the classes are 0 to the largest. A folder's name is a name: folders 1 to 102 are 102 classes. If all names are
whole numbers, zero-padded or not, they are sorted and matched by number.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vitlab.data.source import Paths, Sample, Source, Wrapped
from vitlab.errors import first_few
from vitlab.require import require

MOST_CLASSES = 1_000_000  # where class numbers are given without names: a name is made for each
WHOLE = re.compile(r"[0-9]{1,300}")
NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf)", re.IGNORECASE)
SHOWN = 10  # classes that a message names


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sort class names: by number if all are whole numbers, otherwise as text."""
    listed = list(names)
    if are_whole(listed):
        return tuple(sorted(listed, key=lambda name: (int(name), os.fsencode(name))))
    return tuple(sorted(listed, key=os.fsencode))


def are_whole(names: Iterable[str]) -> bool:
    """Whether all names are whole numbers, zero-padded or not."""
    return all(map(WHOLE.fullmatch, names))


def class_number(label: str) -> int | None:
    """Return a label as a class number; None if it is not one."""
    return int(label) if WHOLE.fullmatch(label) and int(label) < MOST_CLASSES else None


def are_numbers(places: Mapping[str, str]) -> bool:
    """Whether labels are class numbers rather than names, given where each label first occurs.

    Some names may be numbers, as those of cars are. If at least half of the labels are numbers, one that is not a class
    number is a mistake: the ValueError names its place.
    """
    others = [label for label in places if class_number(label) is None]
    words = [label for label in others if not NUMBER.fullmatch(label)]
    if not others or len(words) >= len(places) - len(words):
        return not others
    found = f"{others[0]!r:.60} is not a class number, but {len(places) - len(others):,} of {len(places):,} labels are"
    allowed = f"give a number from 0 to {MOST_CLASSES - 1:,}, or the option numbers=names"
    raise ValueError(f"{places[others[0]]}: {found}; {allowed}")


def numbers_of(names: Sequence[str]) -> tuple[int, ...]:
    """Return the class number of each name: the name itself if all are whole numbers, otherwise its place."""
    if not are_whole(names):
        return tuple(range(len(names)))
    numbers = tuple(map(int, names))
    count = Counter(numbers)
    twice = sorted(name for name in names if count[int(name)] > 1)
    require(not twice, f"classes {_named(twice)} are the same number; rename all but one of them")
    return numbers


def matched(expected: Sequence[str], found: Sequence[str]) -> tuple[int, ...]:
    """Return the place among `expected` of each class in `found`, by name, or by number if all are whole numbers.

    Expected classes may be missing. Raises ValueError if a class is not expected or matches several.
    """
    if tuple(expected) == tuple(found):
        return tuple(range(len(found)))
    theirs, own = list(expected), list(found)
    if not set(own) <= set(theirs) and are_whole([*theirs, *own]):
        theirs, own = ([str(number) for number in numbers_of(names)] for names in (theirs, own))
    place = {name: number for number, name in enumerate(theirs)}
    require(set(own) <= set(theirs) and (bool(own) or not theirs), _difference(theirs, own))
    count = Counter(theirs) | Counter(own)
    twice = sorted(name for name in set(own) if count[name] > 1)
    require(not twice, f"the classes cannot be matched by name: several are called {_named(twice)}; rename them")
    return tuple(place[name] for name in own)


class Renumbered(Wrapped):
    """A source with the class numbers of another set: class k becomes `numbers[k]`."""

    def __init__(self, source: Source, class_names: tuple[str, ...], numbers: tuple[int, ...]) -> None:
        super().__init__(source)
        self.class_names, self.numbers = class_names, numbers
        self.spec, self.identity, self.excluded = source.spec, source.identity, source.excluded
        self.first_not_single, self.most_hashed = source.first_not_single, source.most_hashed
        self.block, self.window = source.block, source.window

    def item(self, index: int) -> Sample:
        sample = self.source.item(index)
        return replace(sample, labels=self._there(sample.labels))

    def label(self, index: int) -> tuple[int, ...]:
        return self._there(self.source.label(index))

    def paths(self) -> Paths | None:
        return self.source.paths()

    def missing(self) -> tuple[str, ...]:
        """Return the classes that the source lacks."""
        return tuple(name for number, name in enumerate(self.class_names) if number not in set(self.numbers))

    def _there(self, labels: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(self.numbers[label] for label in labels))


def check_class_names(expected: Sequence[str], found: Sequence[str]) -> None:
    """Raise unless the classes are the same in the same order: a permuted label map scores nonsense silently."""
    require(sorted(expected) == sorted(found), _difference(expected, found))
    for place, (ours, theirs) in enumerate(zip(expected, found, strict=True)):
        found = f"number {place} is {ours!r} for the model and {theirs!r} in the data"
        require(ours == theirs, f"the classes are in another order: {found}; bring the data into the model's order")


def _difference(expected: Sequence[str], found: Sequence[str]) -> str:
    missing, added = ([name for name in a if name not in set(b)] for a, b in ((expected, found), (found, expected)))
    return (
        f"the classes differ: {len(expected)} expected, {len(found)} found; missing {_named(missing)}, new "
        f"{_named(added)}; use data with the expected classes, or train a new head"
    )


def _named(names: Sequence[str]) -> str:
    return first_few([repr(name) for name in names], SHOWN) or "none"


def renumbered(source: Source, class_names: Sequence[str]) -> Source:
    """Return the source with its classes numbered as in `class_names`. Raises ValueError if they do not match."""
    if tuple(source.class_names) == tuple(class_names):
        return source
    return Renumbered(source, tuple(class_names), matched(class_names, source.class_names))
