"""Parts of a data set: development splits, nested subsets, and the order in which TFDS stores a set."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from vitlab.data.loading.order import permuted
from vitlab.data.source import Sample, Source, check_index


@dataclass(eq=False, repr=False)
class Subset(Source):
    """Some samples of a source; `number` maps their numbers, so that a subset of a billion samples needs no list."""

    source: Source
    samples: int
    number: Callable[[int], int]

    @property
    def class_names(self) -> tuple[str, ...]:  # pyrefly: ignore[bad-override] - may be made when asked for
        """All classes of the source, including those without samples in the subset."""
        return self.source.class_names

    @property
    def is_multi_label(self) -> bool:
        """As for the source."""
        return self.source.is_multi_label

    def __post_init__(self) -> None:
        self.empty_folders, self.max_pixels = self.source.empty_folders, self.source.max_pixels
        self.is_prepared, self.transform = self.source.is_prepared, self.source.transform

    def __len__(self) -> int:
        return self.samples

    def item(self, index: int) -> Sample:
        """See `Source.item`."""
        return self.source.item(self._inside(index))

    def label(self, index: int) -> tuple[int, ...]:
        """See `Source.label`."""
        return self.source.label(self._inside(index))

    def id(self, index: int) -> str:
        """See `Source.id`."""
        return self.source.id(self._inside(index))

    def stamp(self, index: int) -> tuple[int, ...]:
        """See `Source.stamp`."""
        return self.source.stamp(self._inside(index))

    def _inside(self, index: int) -> int:
        return self.number(check_index(index, self.samples))


def take(source: Source, numbers: Sequence[int] | np.ndarray) -> Subset:
    """Return the samples with these numbers, in this order."""
    held = np.asarray(numbers, dtype=np.int64)
    return Subset(source, len(held), partial(_entry, held))


def tfds_order(keys: Iterable[str], split: str) -> list[int]:
    """Return the places of the keys in the order in which TFDS stores a split: by the MD5 of split name and key.

    For CIFAR the keys are running numbers; for sets of files, paths relative to the root.
    """
    salt = split.encode()
    digests = [hashlib.md5(salt + key.encode("utf-8", "surrogateescape")).digest() for key in keys]
    return sorted(range(len(digests)), key=digests.__getitem__)


def in_tfds_order(source: Source, split: str = "train", keys: Iterable[str] | None = None) -> Subset:
    """Return a source in the order of TFDS; the keys are its ids unless others are given."""
    return take(source, tfds_order(map(source.id, range(len(source))) if keys is None else keys, split))


def development_split(source: Source, fraction: float, split: str = "train") -> tuple[Subset, Subset]:
    """Return (training, development) parts; development is the last `fraction` of the set in TFDS order.

    That is the order of hashes, so the classes are mixed even if the source is sorted by class.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction {fraction} is outside (0, 1)")
    order = tfds_order(map(source.id, range(len(source))), split)
    kept = round(len(order) * (1 - fraction))  # rounded as TFDS rounds percentages
    if not 0 < kept < len(order):
        raise ValueError(f"{fraction:g} of {len(order)} samples leaves one of the two parts empty")
    return take(source, order[:kept]), take(source, order[kept:])


def nested_subset(source: Source, samples: int, seed: int = 0) -> Subset:
    """Return a random subset in constant memory; of two subsets with one seed, the larger contains the smaller."""
    if not 1 <= samples <= len(source):
        raise ValueError(
            f"a subset of {samples:,} samples cannot be drawn from {len(source):,}; give 1 to {len(source):,}"
        )
    key = hashlib.blake2b(f"subset/{seed}".encode(), digest_size=32).digest()
    return Subset(source, samples, partial(_permuted, len(source), key))


def _entry(held: np.ndarray, index: int) -> int:
    return int(held[index])


def _permuted(samples: int, key: bytes, index: int) -> int:
    return permuted(index, samples, key)
