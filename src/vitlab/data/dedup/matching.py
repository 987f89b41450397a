"""Which training pictures are near-duplicates of test pictures: candidates by hash, then a check of their pixels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vitlab.data.dedup.hash_files import Hashes
from vitlab.data.dedup.search import HashIndex

# Measured by bench/experiments/dedup.py on 200 photographs: compressed, resized or brightened by up to 20 %, they
# differ from the originals in at most 10 bits and correlate by over 0.95.
MAX_DISTANCE = 11  # bits
MIN_CORRELATION = 0.92
PER_PICTURE = 10  # test pictures that are listed of one training picture
COMPARED = 4096  # pairs of thumbnails at a time
FLAT = 16.0  # norm of a thumbnail without its mean, below which it has no structure: half a grey level per pixel
SAME_GREY = 2.0  # grey levels between two pictures of one colour that count as the same
PAIR = np.dtype(
    [
        ("train", "<i8"),  # number of the training picture
        ("test", "<i8"),  # number among all test pictures, one set after another
        ("distance", "<i4"),  # bits
        ("correlation", "<f4"),
        ("same", "?"),  # whether the files, or the pixels, are equal byte by byte
    ]
)


@dataclass(frozen=True)
class Criteria:
    """What makes a pair count: `max_distance` bits at most, and a correlation of `min_correlation` at least."""

    max_distance: int = MAX_DISTANCE
    min_correlation: float = MIN_CORRELATION


class TestPictures:
    """The hashes of all test pictures, ready to be searched; pictures with the same thumbnail are searched as one."""

    __test__ = False  # not a test of pytest's

    def __init__(self, parts: Sequence[Hashes], criteria: Criteria) -> None:
        """Take the files of all test sets in order; their numbers must go on from one set to the next."""
        self.criteria = criteria
        self.numbers = np.concatenate([part.numbers for part in parts])
        self.contents = np.concatenate([part.contents for part in parts])
        self._first, own = distinct(np.concatenate([part.digests for part in parts]))
        self._members = np.argsort(own, kind="stable")  # numbers of the pictures, one thumbnail after another
        self._ends = np.cumsum(np.bincount(own, minlength=len(self._first)))
        self._thumbnails = np.concatenate([part.thumbnails for part in parts])[self._first]
        self._index = HashIndex(np.concatenate([part.hashes for part in parts])[self._first], criteria.max_distance)

    def pairs(self, train: Hashes, floor: float | None = None) -> np.ndarray:
        """(m,) of PAIR: the near-duplicates among training pictures, at most ten test pictures for each, best first.

        `floor` is a lower correlation, for candidates that something else will judge.
        """
        first, own = distinct(train.digests)
        found = self._matches(train, first, self.criteria.min_correlation if floor is None else floor)
        starts = np.searchsorted(found["train"], np.arange(len(first) + 1))
        has_match = np.flatnonzero(starts[own] < starts[own + 1])
        rows = [
            (train.numbers[place], self.numbers[member], match["distance"], match["correlation"], same)
            for place in has_match.tolist()
            for match, member in self._listed(found[starts[own[place]] : starts[own[place] + 1]])
            for same in [bool((self.contents[member] == train.contents[place]).all())]
        ]
        return np.array(rows, PAIR)

    def _matches(self, train: Hashes, first: np.ndarray, least: float) -> np.ndarray:
        """(m,) of PAIR between distinct thumbnails, by training thumbnail, the best first."""
        hashes, thumbnails, found = train.hashes[first], train.thumbnails[first], [np.zeros(0, PAIR)]
        for query, item, distance in self._index.search(hashes):
            values = correlations(thumbnails, self._thumbnails, query, item)
            near = values >= least
            some = np.zeros(int(near.sum()), PAIR)
            some["train"], some["test"], some["distance"] = query[near], item[near], distance[near]
            some["correlation"] = values[near]
            found.append(some)
        whole = np.concatenate(found)
        return whole[np.lexsort((whole["test"], -whole["correlation"], whole["train"]))]

    def _listed(self, matches: np.ndarray) -> Iterator[tuple[np.void, int]]:
        """The first ten test pictures of the matches of one training picture, each with its match."""
        left = PER_PICTURE
        for match in matches:
            end = int(self._ends[match["test"]])
            start = int(self._ends[match["test"] - 1]) if match["test"] else 0
            for member in self._members[start : min(end, start + left)].tolist():
                yield match, member
            left -= min(end - start, left)
            if not left:
                return


def distinct(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n, 2) of uint64 -> the place of the first of each distinct key, and (n,) which of them each key is."""
    whole = np.ascontiguousarray(keys).view([("high", "<u8"), ("low", "<u8")]).ravel()
    _, first, own = np.unique(whole, return_index=True, return_inverse=True)
    return first, own


def correlations(ours: np.ndarray, theirs: np.ndarray, our: np.ndarray, their: np.ndarray) -> np.ndarray:
    """(m,) the correlation of the thumbnails ours[our] and theirs[their], which brightness and contrast do not change.

    Two pictures of one colour each correlate by 1 if it is the same grey value, else by 0.
    """
    found = np.zeros(len(our), np.float32)
    for start in range(0, len(our), COMPARED):
        part = slice(start, start + COMPARED)
        first, second = (_centred(some[at[part]]) for some, at in ((ours, our), (theirs, their)))
        norms = [np.linalg.norm(centred, axis=1) for centred, _ in (first, second)]
        product = (first[0] * second[0]).sum(axis=1) / np.maximum(norms[0] * norms[1], FLAT**2)
        are_flat = (norms[0] < FLAT) & (norms[1] < FLAT)
        found[part] = np.where(are_flat, np.abs(first[1] - second[1]) <= SAME_GREY, product)
    return found


def _centred(thumbnails: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    pixels = thumbnails.reshape(len(thumbnails), -1).astype(np.float32)
    mean = pixels.mean(axis=1)
    return pixels - mean[:, None], mean
