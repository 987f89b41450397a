"""Any map-style torch Dataset of (picture, label) as a source."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset

from vitlab.data.class_names import MOST_CLASSES
from vitlab.data.images.pictures import check_picture, read_picture
from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.source import Sample, Source, check_index
from vitlab.require import require

HASHED = 1_000  # evenly spaced items, by which a resumed run recognises the data set
LABELS = (
    "a class number (an int), a list of class numbers, a 1-D array or tensor with a 0 or 1 for each class, or None for "
    "no label"
)


class DatasetSource(Source):
    """The items of a torch Dataset, by number.

    An item is (picture, label). PIL images, (H, W, 3) arrays and (3, H, W) tensors of uint8 are pictures, to which a
    recipe's transforms apply. Float tensors (3, H, W) are taken as they are: nothing is decoded, resized, augmented or
    normalised. All items must be of one of the two kinds.

    Class names are those of the dataset's attribute `classes`, as in torchvision; without one, the class numbers.
    Labels come from its attribute `targets` if it has one for each item; otherwise all items are read once. An item
    that raises is a bad image; a wrong type or label is a ValueError that names the item.
    """

    most_hashed = HASHED

    def __init__(self, dataset: Dataset[Any]) -> None:
        kind = type(dataset).__name__
        has_numbers = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if isinstance(dataset, IterableDataset | str | bytes | dict | np.ndarray | Tensor) or not has_numbers:
            raise ValueError(
                f"data is {kind}, whose items cannot be read by number; give a string such as 'folder:photos', or a "
                f"map-style torch Dataset: one with __len__ and __getitem__ that returns (picture, label)"
            )
        self.dataset, self.spec = dataset, f"dataset:{kind}"
        require(len(self) > 0, f"the dataset {kind} is empty")
        names = _attribute(dataset, "classes")
        self.class_names = tuple(map(str, names)) if isinstance(names, Sequence) and not isinstance(names, str) else ()
        flat, ends, width = array("i"), array("q"), 0
        self._unreadable: set[int] = set()
        for number, given in enumerate(self._given_labels()):
            if isinstance(given, BadImage):
                self._unreadable.add(number)
            else:
                labels, places = self._checked(given, number)
                require(
                    places in (0, width or places),
                    f"item {number} of {kind} has a label for {places} classes, earlier items for {width}",
                )
                flat.extend(labels)
                width = width or places
            ends.append(len(flat))
        self._labels, self._ends = np.array(flat, np.int32), np.array(ends, np.int64)
        self.class_names = self.class_names or tuple(map(str, range(width or self._labels.max(initial=-1) + 1)))
        counts = np.diff(self._ends, prepend=0)
        counts[list(self._unreadable)] = 1
        several = np.flatnonzero(counts != 1)
        self.first_not_single = int(several[0]) if len(several) and self.class_names else None
        self.is_prepared = self._first_is_prepared()

    def __len__(self) -> int:
        return len(self.dataset)  # pyrefly: ignore[bad-argument-type] - checked when it was given

    def item(self, index: int) -> Sample:
        """Read an item; raises BadImage if the dataset raises, and ValueError if it returns something else."""
        index = check_index(index, len(self))
        picture, given = self._pair(index)
        labels, _ = self._checked(given, index)
        if index not in self._unreadable:
            require(
                labels == self.label(index),
                f"item {index} of {type(self.dataset).__name__} has labels {labels}, and had {self.label(index)} when "
                f"the dataset was opened or in its `targets`; a dataset must return the same label each time",
            )
        data = self._content(picture, index)
        require(
            isinstance(data, Tensor) == self.is_prepared,
            f"item {index} of {type(self.dataset).__name__} is {_kind(picture)}, the first item is not; return either "
            f"pictures (PIL images or uint8) or float tensors for all items",
        )
        return Sample(data, labels, str(index))

    def label(self, index: int) -> tuple[int, ...]:
        """Return the labels of an item; none if it could not be read to find them."""
        index = check_index(index, len(self))
        start = self._ends[index - 1] if index else 0
        return tuple(self._labels[start : self._ends[index]].tolist())

    def id(self, index: int) -> str:
        """Return the number of an item."""
        return str(check_index(index, len(self)))

    def _pair(self, index: int) -> tuple[object, object]:
        try:
            item = self.dataset[index]
        except Exception as error:  # a dataset may raise anything
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            failed = BadImage(Reason.unreadable, f"cannot be read: the dataset raised {said:.200}", str(index))
        else:
            is_pair = isinstance(item, tuple | list) and len(item) == 2
            require(
                is_pair,
                f"item {index} of {type(self.dataset).__name__} is {_kind(item)}; it must be a pair (picture, label)",
            )
            return item[0], item[1]
        raise failed

    def _given_labels(self) -> Iterator[object]:
        """The label of every item as the dataset gives it, or the BadImage raised instead of the item."""
        targets = _attribute(self.dataset, "targets")
        if isinstance(targets, Sequence | np.ndarray | Tensor) and len(targets) == len(self):
            yield from targets.numpy() if isinstance(targets, Tensor) else targets
            return
        for number in range(len(self)):
            try:
                yield self._pair(number)[1]
            except BadImage as bad:
                require(number < len(self) - 1 or len(self._unreadable) < number, f"no item can be read: {bad}")
                yield bad

    def _checked(self, given: object, index: int) -> tuple[tuple[int, ...], int]:
        """Class numbers in ascending order, and the length of a label with a 0 or 1 for each class (else 0)."""
        where, known = f"item {index} of {type(self.dataset).__name__}", len(self.class_names)
        places = 0
        if isinstance(given, np.ndarray | np.generic | Tensor) and given.ndim == 1:
            values, places = np.asarray(given), len(given)
            require(
                bool(((values == 0) | (values == 1)).all()) and places == (known or places),
                f"{where} has the label {values!r:.100}; a 1-D array or tensor must hold a 0 or 1 for each of the "
                f"{known or places} classes",
            )
            numbers: Iterable[object] = np.flatnonzero(values)
        elif given is None:
            numbers = ()
        else:
            numbers = given if isinstance(given, list | tuple) else [given]
        labels = tuple(sorted({_whole(value, where) for value in numbers}))
        most = known or MOST_CLASSES
        require(
            not labels or (labels[0] >= 0 and labels[-1] < most),
            f"{where} has the label {given!r:.100}; class numbers go from 0 to {most - 1}",
        )
        return labels, places

    def _content(self, picture: object, index: int) -> np.ndarray | Tensor:
        """(H, W, 3) of uint8, or a float tensor (3, H, W)."""
        if isinstance(picture, Tensor) and picture.is_floating_point():
            shape, kind = tuple(picture.shape), type(self.dataset).__name__
            require(
                len(shape) == 3 and shape[0] == 3 and 0 not in shape,
                f"item {index} of {kind} is a float tensor of shape {shape}; it must be (3, H, W)",
            )
            tensor = picture.detach().to("cpu", torch.float32)
            if not tensor.isfinite().all():
                raise BadImage(Reason.corrupt, "has NaN or infinite values", str(index))
            return tensor
        require(
            isinstance(picture, Image.Image | np.ndarray | Tensor),
            f"item {index} of {type(self.dataset).__name__} has {_kind(picture)} for a picture; return a PIL image, an "
            f"(H, W, 3) array or (3, H, W) tensor of uint8, or a float tensor (3, H, W)",
        )
        try:
            check_picture(picture)
        except ValueError as error:
            raise ValueError(f"item {index} of {type(self.dataset).__name__}: {error}") from None
        return np.asarray(read_picture(picture, str(index)).image)  # pyrefly: ignore[bad-argument-type] - checked

    def _first_is_prepared(self) -> bool:
        """Whether the first item that can be read is a float tensor."""
        for number in range(len(self)):
            try:
                picture, _ = self._pair(number)
            except BadImage:
                continue
            return isinstance(picture, Tensor) and picture.is_floating_point()
        return False


def _attribute(dataset: object, name: str) -> object:
    """An attribute of a dataset, None if it has none; for a torch Subset, that of the whole set for its items."""
    if isinstance(dataset, Source):
        return dataset.class_names if name == "classes" else None
    if not isinstance(dataset, Subset):
        return getattr(dataset, name, None)
    whole = _attribute(dataset.dataset, name)
    if name == "classes" or not isinstance(whole, Sequence | np.ndarray | Tensor):
        return whole
    return [whole[number] for number in dataset.indices]


def _whole(value: object, where: str) -> int:
    if isinstance(value, np.ndarray | Tensor) and value.ndim == 0:
        value = value.item()
    if isinstance(value, int | np.integer):
        return int(value)
    raise ValueError(f"{where} has the label {value!r:.100}; a label is {LABELS}")


def _kind(value: object) -> str:
    return f"{type(value).__name__} of length {len(value)}" if isinstance(value, tuple | list) else type(value).__name__
