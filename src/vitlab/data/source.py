"""What every data source is: a length, and any sample by its number."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Sample:
    """One image with its labels: encoded bytes for the gate, or (H, W, 3) pixels of uint8.

    `id` names the sample in messages, quarantine lists and splits; it is unique in its source and the same on every
    machine (a relative path, a key, a running number), never an absolute path. `labels` are class numbers: one for
    most sets, several or none for multi-label ones.
    """

    data: bytes | np.ndarray
    labels: tuple[int, ...]
    id: str


class Paths(Protocol):
    """Whole paths by number: a list, or something smaller."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> str: ...


class Source(Protocol):
    """Samples by number, 0 to len-1; opening one is cheap and reading one touches no other.

    Some sources have more: `stamp` (see `stamps.py`), `paths` (see `contents.py`), `identity` where samples are drawn,
    `excluded`, `max_pixels` (see `pixel_limit`), `block` and `window` for the training order, and `first_not_single`,
    the number of the first sample with several labels or none, where there is one.
    """

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their numbers."""
        ...

    def __len__(self) -> int: ...

    def item(self, index: int) -> Sample:
        """The sample of that number; raises IndexError outside 0..len-1 and BadImage where it cannot be read."""
        ...

    def label(self, index: int) -> tuple[int, ...]:
        """Its labels alone, without reading the image where the format allows."""
        ...

    def id(self, index: int) -> str:
        """Its id alone."""
        ...


def pixel_limit(source: Source) -> int | None:
    """The most pixels an image may have, where the source sets a limit of its own (the option `max_pixels` of data)."""
    return getattr(source, "max_pixels", None)
