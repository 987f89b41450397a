"""Parts of a data set: development splits and nested subsets."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from vitlab.data.loading.order import permuted
from vitlab.data.source import Source, Wrapped, check_index
from vitlab.require import require


class Subset(Wrapped):
    """Some samples of a source; `number` maps their numbers, so that a subset of a billion samples needs no list."""

    def __init__(self, source: Source, samples: int, number: Callable[[int], int]) -> None:
        super().__init__(source)
        self.samples, self.number = samples, number

    @property
    def class_names(self) -> tuple[str, ...]:  # pyrefly: ignore[bad-override] - may be made when asked for
        """All classes of the source, including those without samples in the subset."""
        return self.source.class_names

    def __len__(self) -> int:
        return self.samples

    def place(self, index: int) -> int:
        """See `Wrapped.place`."""
        return self.number(check_index(index, self.samples))


def take(source: Source, numbers: Sequence[int] | np.ndarray) -> Subset:
    """Return the samples with these numbers, in this order."""
    held = np.asarray(numbers, dtype=np.int64)
    return Subset(source, len(held), held.item)


def tfds_order(keys: Iterable[str], split: str) -> list[int]:
    """Return the places of the keys in the order in which TFDS stores a split: by the MD5 of split name and key."""
    salt = split.encode()
    digests = [hashlib.md5(salt + key.encode("utf-8", "surrogateescape")).digest() for key in keys]
    return sorted(range(len(digests)), key=digests.__getitem__)


def development_split(source: Source, fraction: float, split: str = "train") -> tuple[Subset, Subset]:
    """Return (training, development) parts; development is the last `fraction` of the set in TFDS order.

    That is the order of hashes, so the classes are mixed even if the source is sorted by class.
    """
    require(0 < fraction < 1, f"fraction {fraction} is outside (0, 1)")
    order = tfds_order(map(source.id, range(len(source))), split)
    kept = round(len(order) * (1 - fraction))  # rounded as TFDS rounds percentages
    require(0 < kept < len(order), f"{fraction:g} of {len(order)} samples leaves one of the two parts empty")
    return take(source, order[:kept]), take(source, order[kept:])


def nested_subset(source: Source, samples: int, seed: int = 0) -> Subset:
    """Return a random subset in constant memory; of two subsets with one seed, the larger contains the smaller."""
    require(1 <= samples <= len(source), f"a subset of {samples:,} samples; the data has 1 to {len(source):,}")
    key = hashlib.blake2b(f"subset/{seed}".encode(), digest_size=32).digest()
    part = Subset(source, samples, partial(permuted, size=len(source), key=key))
    part.identity, part.imagenet_numbers = source.identity, source.imagenet_numbers
    if source.first_not_single is not None:
        part.first_not_single = next((n for n in range(samples) if len(part.label(n)) != 1), None)
    return part
