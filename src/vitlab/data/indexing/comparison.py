"""What differs between an index and the data as it is now. Memory hardly grows with the number of samples."""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from vitlab.data.indexing.index_file import UNREADABLE, IndexFile, Row
from vitlab.data.indexing.listing import Hashed

State = Literal["changed", "missing", "added", "unreadable", "label", "class", "shard"]
PAIR = np.dtype([("hash", "<u8", (2,)), ("number", "<i8")])  # of an id
NUMBER = np.dtype("<i8")
BUCKET = 2**16  # ids that are matched at a time
MOST_BUCKETS = 1024  # files of each side; more than 67 million ids make larger buckets instead
CHUNK = 2**16  # ids that are hashed at a time
ADDED = -1
AS_BEFORE = " (it was not readable either when it was indexed)"


class Difference(NamedTuple):
    """One line of a report."""

    state: State
    id: str  # of a sample, a shard or a class
    detail: str = ""


def id_text(name: bytes) -> str:
    """An id as text; broken bytes are kept."""
    return name.decode("utf-8", "surrogateescape")


# -- One sample ------------------------------------------------------------------------------------


def compare_sample(then: Row | None, now: Hashed, names: "Naming") -> Iterator[Difference]:
    """Compare a sample with its row in the index; None if it is not in the index."""
    name = id_text(now.row.id)
    if then is None:
        yield Difference("added", name)
        return
    if now.problem:
        yield Difference("unreadable", name, now.problem + (AS_BEFORE if then.size == UNREADABLE else ""))
    elif then.size == UNREADABLE:
        yield Difference("changed", name, "can be read now, but not when it was indexed")
    elif now.hash != then.hash:
        yield Difference("changed", name, other_content(then.size, now.size))
    yield from names.compare(name, then.labels, now.row.labels)


def other_content(then: int, now: int) -> str:
    """How a content differs, in words."""
    return f"has {now:,} bytes, {then:,} when it was indexed" if then != now else f"has other content of {now:,} bytes"


class Naming(NamedTuple):
    """The class names of the index and of the data."""

    then: Sequence[str]
    now: Sequence[str]

    def compare(self, sample: str, then: tuple[int, ...], now: tuple[int, ...]) -> Iterator[Difference]:
        """Compare the labels of a sample by name, so that a renumbered class is no difference."""
        before, after = _named(self.then, then), _named(self.now, now)
        if before != after:
            yield Difference("label", sample, f"is {_listed(after)}, {_listed(before)} when it was indexed")

    def differences(self) -> Iterator[Difference]:
        """Compare the classes themselves."""
        yield from self.lost()
        then = set(self.then)
        yield from (Difference("class", name, "is new") for name in self.now if name not in then)

    def lost(self) -> Iterator[Difference]:
        """The classes of the index that are missing, or have another number though no class is missing or new."""
        then, now = set(self.then), set(self.now)
        yield from (Difference("class", name, "is missing") for name in self.then if name not in now)
        if then == now:
            for number, (before, after) in enumerate(zip(self.then, self.now, strict=False)):
                if before != after:
                    yield Difference("class", after, f"has the number {number}, which {before!r} had")


def _named(names: Sequence[str], labels: tuple[int, ...]) -> list[str]:
    return sorted(names[label] if 0 <= label < len(names) else str(label) for label in labels)


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "without a label"


# -- Which sample was which ------------------------------------------------------------------------


class Matches:
    """For every sample of the data its number in the index, and the samples of the index that are missing.

    `match_ids` writes both as files of 64-bit numbers.
    """

    def __init__(self, folder: Path) -> None:
        self.places, self.missing = folder / "listing.places", folder / "listing.missing"

    def place(self, start: int, stop: int) -> np.ndarray:
        """The numbers in the index of some samples; ADDED for those that are not in it."""
        return _numbers(self.places, start, stop)

    def missing_numbers(self) -> Iterator[int]:
        """The numbers in the index of the missing samples."""
        for at in range(0, self.missing.stat().st_size // NUMBER.itemsize, CHUNK):
            yield from _numbers(self.missing, at, at + CHUNK).tolist()


def _numbers(path: Path, start: int, stop: int) -> np.ndarray:
    with path.open("rb") as file:
        file.seek(start * NUMBER.itemsize)
        return np.frombuffer(file.read((stop - start) * NUMBER.itemsize), NUMBER)


def match_ids(then: IndexFile, now: IndexFile, folder: Path) -> Matches:
    """Match the samples of an index and of a listing by id; scratch files are in `folder`.

    Ids go to buckets by their hash, and one bucket at a time is sorted.
    """
    matches = Matches(folder)
    buckets = min(-(-max(len(then), len(now)) // BUCKET), MOST_BUCKETS)
    for name, index in (("then", then), ("now", now)):
        _scatter(index, folder, name, buckets)
    with matches.places.open("w+b") as places, matches.missing.open("wb") as missing:
        places.truncate(len(now) * NUMBER.itemsize)
        mapped = np.memmap(places, NUMBER, "r+")
        for bucket in range(buckets):
            pairs = [_bucket(folder, name, bucket) for name in ("then", "now")]
            found, gone = _matched(*pairs)
            mapped[found[:, 1]] = found[:, 0]
            missing.write(np.sort(gone).tobytes())
        mapped.flush()
    return matches


def _scatter(index: IndexFile, folder: Path, name: str, buckets: int) -> None:
    """Write the hash and the number of every id to the file of its bucket."""
    for bucket in range(buckets):
        _bucket_path(folder, name, bucket).write_bytes(b"")
    for at in range(0, len(index), CHUNK):
        stop = min(at + CHUNK, len(index))
        pairs = np.zeros(stop - at, PAIR)
        hashes = b"".join(hashlib.blake2b(row.id, digest_size=16).digest() for row in index.rows(at, stop))
        pairs["hash"] = np.frombuffer(hashes, "<u8").reshape(-1, 2)
        pairs["number"] = np.arange(at, stop)
        home = pairs["hash"][:, 0] % np.uint64(buckets)
        for bucket in range(buckets):
            with _bucket_path(folder, name, bucket).open("ab") as file:
                file.write(pairs[home == bucket].tobytes())


def _bucket_path(folder: Path, name: str, bucket: int) -> Path:
    return folder / f"listing.{name}-{bucket}"


def _bucket(folder: Path, name: str, bucket: int) -> np.ndarray:
    """Read a bucket, which is then not needed any more."""
    path = _bucket_path(folder, name, bucket)
    with path.open("rb") as file:
        pairs = np.frombuffer(file.read(), PAIR)
    path.unlink()
    return pairs


def _matched(then: np.ndarray, now: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((n, 2) of a number in the index or ADDED and a number of the data, numbers in the index that have no match).

    Equal ids, which only damaged data has, are matched in their order.
    """
    both = np.concatenate([then, now])
    is_now = np.arange(len(both)) >= len(then)
    order = np.lexsort((both["number"], both["hash"][:, 1], both["hash"][:, 0]))
    # The n-th sample with an id in the index is the n-th with that id in the data.
    hashes = both["hash"][order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (hashes[1:] != hashes[:-1]).any(axis=1)
    group, sides, numbers = np.cumsum(is_first), is_now[order], both["number"][order]
    ranks = np.zeros(len(order), np.int64)
    for side in (False, True):
        own = np.flatnonzero(sides == side)
        begins = np.searchsorted(group[own], group[own])
        ranks[own] = np.arange(len(own)) - begins
    again = np.lexsort((sides, ranks, group))
    group, sides, ranks, numbers = group[again], sides[again], ranks[again], numbers[again]
    is_pair = np.zeros(len(group), bool)  # an element of the index whose successor is its sample
    is_pair[:-1] = (group[1:] == group[:-1]) & (ranks[1:] == ranks[:-1]) & ~sides[:-1] & sides[1:]
    is_second = np.roll(is_pair, 1)
    pairs = np.stack([numbers[is_pair], numbers[is_second]], 1)
    new = numbers[sides & ~is_second]
    added = np.stack([np.full(len(new), ADDED), new], 1)
    return np.concatenate([pairs, added]), numbers[~sides & ~is_pair]


def lost_records(then: IndexFile, now: IndexFile, folder: Path) -> Iterator[Difference]:
    """What an index records and a later one does not: classes, and samples with their contents and labels.

    Scratch files are in `folder`.
    """
    names = Naming(then.meta.class_names, now.meta.class_names)
    yield from names.lost()
    if then.meta.shards and now.meta.shards:
        yield from _lost_in_shards(then, now, names)
    else:
        yield from _lost_samples(then, now, names, match_ids(then, now, folder))


def _lost_samples(then: IndexFile, now: IndexFile, names: Naming, matches: Matches) -> Iterator[Difference]:
    """See `lost_records`."""
    for at in range(0, len(now), CHUNK):
        stop = min(at + CHUNK, len(now))
        for before, after in zip(rows_at(then, matches.place(at, stop)), now.rows(at, stop), strict=True):
            if before is not None:
                yield from _lost_sample(id_text(after.id), before, after, names)
    for number in matches.missing_numbers():
        (row,) = then.rows(number, number + 1)
        yield Difference("missing", id_text(row.id))


def _lost_sample(name: str, then: Row, now: Row, names: Naming) -> Iterator[Difference]:
    if then.size != UNREADABLE and then.hash != now.hash:
        yield Difference("changed", name)
    yield from names.compare(name, then.labels, now.labels)


def _lost_in_shards(then: IndexFile, now: IndexFile, names: Naming) -> Iterator[Difference]:
    """See `lost_records`; the samples of one shard at a time are in memory."""
    starts = itertools.accumulate((entry.samples for entry in now.meta.shard_entries), initial=0)
    after = {entry.name: (entry, start) for entry, start in zip(now.meta.shard_entries, starts, strict=False)}
    start = 0
    for entry in then.meta.shard_entries:
        other, first = after.get(entry.name, (None, 0))
        if other is None or other.hash != entry.hash:
            rows = now.rows(first, first + other.samples) if other else ()
            found = {row.id: row for row in rows}
            for row in then.rows(start, start + entry.samples):
                name = f"{entry.name.removesuffix('.tar')}/{id_text(row.id)}"
                if row.id in found:
                    yield from _lost_sample(name, row, found[row.id], names)
                else:
                    yield Difference("missing", name)
        start += entry.samples


def rows_at(index: IndexFile, places: np.ndarray) -> Iterator[Row | None]:
    """The rows with these numbers; None for ADDED. Neighbours are read together."""
    edges = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
    for begin, end in itertools.pairwise(edges):
        run = places[begin:end].tolist()
        if run and run[0] == ADDED:  # a run may start there: -1, 0, 1, ...
            yield None
            run = run[1:]
        if run:
            yield from index.rows(run[0], run[-1] + 1)
