"""Any map-style torch Dataset of (picture, label) as a source."""

import contextlib
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
from vitlab.data.source import Labels, Sample, Source, check_index
from vitlab.require import require

HASHED = 1_000  # evenly spaced items, by which a resumed run recognises the data set
PICTURES = "a PIL image, an (H, W, 3) array or (3, H, W) tensor of uint8, or a float tensor (3, H, W)"
LABELS = "an int, a list of ints, a 1-D array or tensor with a 0 or 1 for each class, or None for no label"


class DatasetSource(Source):
    """The items of a torch Dataset, by number.

    An item is (picture, label). PIL images, (H, W, 3) arrays and (3, H, W) tensors of uint8 get a recipe's transforms.
    Float tensors (3, H, W) are taken as they are. All items must be of one of the two kinds.

    Class names are those of the dataset's attribute `classes`, as in torchvision; without one, the class numbers.
    Labels come from its attribute `targets` if it has one for each item; otherwise all items are read once. An item
    that raises is a bad image; a wrong type or label is a ValueError that names the item.
    """

    most_hashed = HASHED

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._kind = type(dataset).__name__
        has_numbers = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if isinstance(dataset, IterableDataset | str | bytes | dict | np.ndarray | Tensor) or not has_numbers:
            raise ValueError(
                f"data is {self._kind}, whose items cannot be read by number; give a string such as 'folder:photos' or "
                f"a map-style torch Dataset: one with __len__ and __getitem__ that returns (picture, label)"
            )
        self.dataset, self.spec = dataset, f"dataset:{self._kind}"
        require(len(self) > 0, f"the dataset {self._kind} is empty")
        names = _attribute(dataset, "classes")
        self.class_names = tuple(map(str, names)) if isinstance(names, Sequence) and not isinstance(names, str) else ()
        flat, ends, width = array("i"), array("q"), 0
        self._unreadable: set[int] = set()
        for number, given in enumerate(self._given_labels()):
            if isinstance(given, BadImage):
                self._unreadable.add(number)
            else:
                labels, places = self._checked(given, number)
                other = f"{self._item(number)} has a label for {places} classes, earlier items for {width}"
                require(places in (0, width or places), other)
                flat.extend(labels)
                width = width or places
            ends.append(len(flat))
        self.labels = Labels(flat, ends)
        self.class_names = self.class_names or tuple(map(str, range(width or self.labels.numbers.max(initial=-1) + 1)))
        self.first_not_single = self.labels.first_not_single(self._unreadable) if self.class_names else None
        self.is_prepared = self._first_is_prepared()

    def __len__(self) -> int:
        return len(self.dataset)  # pyrefly: ignore[bad-argument-type] - checked when it was given

    def item(self, index: int) -> Sample:
        """Read an item; raises BadImage if the dataset raises, and ValueError if it returns something else."""
        index = check_index(index, len(self))
        picture, given = self._pair(index)
        labels, _ = self._checked(given, index)
        is_same = index in self._unreadable or labels == self.label(index)
        changed = f"{self._item(index)} has labels {labels}, and had {self.label(index)} when opened or in `targets`"
        require(is_same, f"{changed}; a dataset must return the same label each time")
        data = self._content(picture, index)
        other = f"{self._item(index)} is {_kind(picture)}, the first item is not"
        is_alike = isinstance(data, Tensor) == self.is_prepared
        require(is_alike, f"{other}; return pictures (PIL images or uint8) or float tensors for all items")
        return Sample(data, labels, str(index))

    def _item(self, index: int) -> str:
        return f"item {index} of {self._kind}"

    def _pair(self, index: int) -> tuple[object, object]:
        try:
            item = self.dataset[index]
        except Exception as error:  # a dataset may raise anything
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            failed = BadImage(Reason.unreadable, f"cannot be read: the dataset raised {said:.200}", str(index))
        else:
            is_pair = isinstance(item, tuple | list) and len(item) == 2
            require(is_pair, f"{self._item(index)} is {_kind(item)}; it must be a pair (picture, label)")
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
        known, places = len(self.class_names), 0
        has = f"{self._item(index)} has the label {given!r:.100}"
        if isinstance(given, np.ndarray | np.generic | Tensor) and given.ndim == 1:
            values, places = np.asarray(given), len(given)
            is_hot = bool(np.isin(values, (0, 1)).all()) and places == (known or places)
            require(is_hot, f"{has}; an array or tensor must hold a 0 or 1 for each of the {known or places} classes")
            numbers: Iterable[object] = np.flatnonzero(values)
        else:
            numbers = () if given is None else given if isinstance(given, list | tuple) else [given]
        labels = tuple(sorted({_whole(value, has) for value in numbers}))
        most = known or MOST_CLASSES
        is_known = not labels or (labels[0] >= 0 and labels[-1] < most)
        require(is_known, f"{has}; class numbers go from 0 to {most - 1}")
        return labels, places

    def _content(self, picture: object, index: int) -> np.ndarray | Tensor:
        """(H, W, 3) of uint8, or a float tensor (3, H, W)."""
        if isinstance(picture, Tensor) and picture.is_floating_point():
            shape = tuple(picture.shape)
            is_picture = len(shape) == 3 and shape[0] == 3 and 0 not in shape
            require(is_picture, f"{self._item(index)} is a float tensor of shape {shape}; it must be (3, H, W)")
            tensor = picture.detach().to("cpu", torch.float32)
            if not tensor.isfinite().all():
                raise BadImage(Reason.corrupt, "has NaN or infinite values", str(index))
            return tensor
        is_picture = isinstance(picture, Image.Image | np.ndarray | Tensor)
        require(is_picture, f"{self._item(index)} has {_kind(picture)} for a picture; return {PICTURES}")
        try:
            check_picture(picture)
        except ValueError as error:
            raise ValueError(f"{self._item(index)}: {error}") from None
        return np.asarray(read_picture(picture, str(index)).image)  # pyrefly: ignore[bad-argument-type] - checked

    def _first_is_prepared(self) -> bool:
        """Whether the first item that can be read is a float tensor."""
        for number in range(len(self)):
            with contextlib.suppress(BadImage):
                picture, _ = self._pair(number)
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


def _whole(value: object, has: str) -> int:
    if isinstance(value, np.ndarray | Tensor) and value.ndim == 0:
        value = value.item()
    require(isinstance(value, int | np.integer), f"{has}; a label is {LABELS}")
    return int(value)  # pyrefly: ignore[bad-argument-type] - checked


def _kind(value: object) -> str:
    return f"{type(value).__name__} of length {len(value)}" if isinstance(value, tuple | list) else type(value).__name__
