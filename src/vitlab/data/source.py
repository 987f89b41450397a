"""`Source`, the base class of every data set: a torch Dataset whose samples also have labels, ids and a history."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import index as whole
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from vitlab.data.images.gate import Decoded, Decoding, Opened, open_image, read_image
from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.loading.accounting import Excluded
from vitlab.drawing.page import html_table
from vitlab.errors import first_few

Kept = TypeVar("Kept")
SHOWN = 10  # classes that a notebook names
Transform = Callable[[Any], Any]  # of the picture, in `Source.__getitem__`


@dataclass(frozen=True)
class Sample:
    """One image and its labels."""

    data: bytes | np.ndarray | Tensor  # an image file, (H, W, 3) of uint8, or (3, H, W) floats that a model takes as is
    labels: tuple[int, ...]  # class numbers: one, or any number in a multi-label set
    id: str  # unique in its source, and the same on every machine: a relative path, a key or a running number


class Paths(Protocol):
    """Absolute paths by number: a list, or something smaller."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> str: ...


class Labels:
    """The class numbers of all samples: one each, or with `ends` any number, one sample's after another's."""

    def __init__(self, numbers: ArrayLike, ends: ArrayLike | None = None) -> None:
        self.numbers = np.asarray(numbers, np.int32)
        self.ends = None if ends is None else np.asarray(ends, np.int64)

    def __len__(self) -> int:
        return len(self.numbers if self.ends is None else self.ends)

    def __getitem__(self, index: int) -> tuple[int, ...]:
        if self.ends is None:
            return (int(self.numbers[index]),)
        start = self.ends[index - 1] if index else 0
        return tuple(sorted(self.numbers[start : self.ends[index]].tolist()))

    def first_not_single(self, besides: Iterable[int] = ()) -> int | None:
        """Return the number of the first sample with several labels or none, `besides` some that are unknown."""
        several = np.flatnonzero(np.diff(() if self.ends is None else self.ends, prepend=0) != 1)
        several = np.setdiff1d(several, list(besides))
        return int(several[0]) if len(several) else None


class Source(Dataset[tuple[Any, int | Tensor]], ABC):
    """A data set whose samples are read by number, 0 to len - 1.

    Subclasses implement `item`, set `class_names` and `labels` (or implement `__len__` and `label`), and override the
    other defaults where they know better. Opening a source is cheap, reading a sample touches no other, and a source
    can be sent to worker processes.
    """

    class_names: tuple[str, ...]  # in the order of the class numbers
    labels: Labels

    spec: str = ""  # the string the source was opened from
    transform: Transform | None = None  # applied by `__getitem__` only; training and evaluation use the recipe's
    max_pixels: int | None = None  # the most pixels an image may have; None: the limit of each format
    decoding: Decoding = "exact"  # or "fast": JPEGs that are larger than needed are decoded at a reduced size
    excluded: Excluded = Excluded()  # files left out by rule
    empty_folders: tuple[str, ...] = ()  # class folders without images; they are not classes
    first_not_single: int | None = None  # number of the first sample with several labels or none
    imagenet_numbers: tuple[tuple[int, ...], ...] = ()  # of data that has its own map to ImageNet's classes, by class
    is_prepared: bool = False  # whether the samples are float tensors, taken as they are
    identity: str = ""  # what decides the pixels of samples that are drawn rather than stored
    most_hashed: int = 1_000_000  # samples hashed to recognise data that is in no file; evenly spaced
    block: int = 1  # neighbouring samples that the training order keeps together
    window: int = 64  # blocks whose samples it mixes

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def item(self, index: int) -> Sample:
        """Read a sample. Raises IndexError outside 0..len - 1 and BadImage where the sample cannot be read."""

    def label(self, index: int) -> tuple[int, ...]:
        """Return the labels of a sample, without reading the image where the format allows."""
        return self.labels[check_index(index, len(self))]

    def id(self, index: int) -> str:
        """Return the id of a sample: by default its number."""
        return str(check_index(index, len(self)))

    def stamp(self, index: int) -> tuple[int, ...]:
        """Return size and modification time of the file a sample is in (see `file_stamp`); empty if it is in none."""
        check_index(index, len(self))
        return ()

    def paths(self) -> Paths | None:
        """Return the files that hold the images, in an order that moving them keeps; None if there are none."""
        return None

    def requested(self) -> dict[str, int]:
        """Return the counts of requests to a remote store, by this process and its workers; empty for local data."""
        return {}

    @property
    def is_multi_label(self) -> bool:
        """Whether samples may have several labels or none."""
        return self.first_not_single is not None or not self.class_names

    def __getitem__(self, index: int) -> tuple[Any, int | Tensor]:
        """Return (picture, label) for your own loop; the picture is an upright RGB PIL image, after `transform`.

        The label is a class number, or for a multi-label set a (K,) float tensor of 0 and 1. A float tensor of a
        wrapped Dataset stays a tensor. Negative numbers count from the end. Raises BadImage where the image cannot be
        read.
        """
        sample = self.item(index + len(self) if -len(self) <= index < 0 else index)
        picture = sample.data if isinstance(sample.data, Tensor) else decode(sample, self.max_pixels).image
        if self.transform is not None:
            picture = self.transform(picture)
        if not self.is_multi_label:
            return picture, sample.labels[0]
        hot = torch.zeros(len(self.class_names))
        hot[list(sample.labels)] = 1
        return picture, hot

    def with_transform(self, transform: Transform | None) -> Self:
        """Return a copy that applies `transform` to the picture of each item; it shares the data."""
        made = copy.copy(self)
        made.transform = transform
        return made

    def reopened(self, *arguments: object) -> tuple[object, ...]:
        """Return what `__reduce__` returns for a source that another process opens itself, with the same settings."""
        kept = ("spec", "transform", "max_pixels", "decoding")
        return type(self), arguments, {name: getattr(self, name) for name in kept}

    def _repr_html_(self) -> str:
        classes = f"{len(self.class_names):,}: {first_few(self.class_names, SHOWN)}"
        labels = "any number per sample" if self.is_multi_label else "one per sample"
        data = self.spec or type(self).__name__
        return html_table([("data", "samples", "classes", "labels"), (data, f"{len(self):,}", classes, labels)])

    def __repr__(self) -> str:
        given = f"{self.spec!r}, " if self.spec else ""
        return f"{type(self).__name__}({given}{len(self):,} samples, {len(self.class_names):,} classes)"


class Wrapped(Source):
    """A source whose samples are those of another; `place` maps their numbers."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.empty_folders, self.max_pixels, self.decoding = source.empty_folders, source.max_pixels, source.decoding
        self.is_prepared, self.transform = source.is_prepared, source.transform

    def place(self, index: int) -> int:
        """Return the number of a sample in the wrapped source."""
        return index

    @property
    def is_multi_label(self) -> bool:
        """Whether samples of the wrapped source may have several labels or none."""
        return self.source.is_multi_label

    def __len__(self) -> int:
        return len(self.source)

    def item(self, index: int) -> Sample:
        return self.source.item(self.place(index))

    def label(self, index: int) -> tuple[int, ...]:
        return self.source.label(self.place(index))

    def id(self, index: int) -> str:
        return self.source.id(self.place(index))

    def stamp(self, index: int) -> tuple[int, ...]:
        return self.source.stamp(self.place(index))

    def requested(self) -> dict[str, int]:
        return self.source.requested()


def check_index(index: int, length: int) -> int:
    """Return the index as an int; raise IndexError unless it is in 0..length - 1."""
    if not 0 <= whole(index) < length:
        raise IndexError(f"sample {index} does not exist; numbers go from 0 to {length - 1}")
    return whole(index)


def keep(kept: dict[int, Kept], key: int, value: Kept, most: int) -> Kept:
    """Add a value to those kept open, and drop the oldest of over `most`; it closes with its last reference."""
    if len(kept) >= most:
        kept.pop(next(iter(kept)))
    kept[key] = value
    return value


def decode(sample: Sample, max_pixels: int | None = None) -> Decoded:
    """Return the picture of a sample: an encoded file goes through the gate, pixels are taken as they are."""
    if isinstance(sample.data, bytes):
        return read_image(sample.data, name=sample.id, max_pixels=max_pixels)
    if isinstance(sample.data, Tensor):
        raise BadImage(Reason.not_an_image, "is a float tensor, which has no picture to show", sample.id)
    return Decoded(Image.fromarray(sample.data), (), "pixels")


def opened(sample: Sample, source: Source) -> Image.Image | Opened:
    """Return what pixels are made from: a checked file that is decoded as far as needed, or a picture."""
    if isinstance(sample.data, bytes):
        return open_image(sample.data, name=sample.id, max_pixels=source.max_pixels, decoding=source.decoding)
    return decode(sample).image
