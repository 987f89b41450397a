"""Find all pairs of hashes that differ in at most `radius` bits, without comparing every pair.

A hash is cut into chunks, and a table per chunk lists the hashes by the chunk's value. If every chunk i of two hashes
differed in more than m_i bits, the hashes would differ in at least sum(m_i + 1) bits. The m_i are chosen so that this
sum is radius + 1. So two hashes within the radius agree in some chunk up to m_i bits, and looking up all values within
m_i bits of a chunk finds every pair: the result is exactly that of a comparison of all pairs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from vitlab.data.dedup.hashing import BITS
from vitlab.require import require

LARGEST_TABLE = 22  # bits of a chunk: 2**22 values are 32 MB
LOOKUPS = 2**20  # at a time, which bounds the memory
CANDIDATES = 2**21  # at a time


class Chunk(NamedTuple):
    """Bits [shift, shift + bits) of a hash, which are looked up with at most `most` of them changed."""

    shift: int
    bits: int
    most: int

    @property
    def lookups(self) -> int:
        """The number of values within `most` changed bits."""
        return sum(comb(self.bits, changed) for changed in range(self.most + 1))

    def keys(self, hashes: np.ndarray) -> np.ndarray:
        """The values of this chunk."""
        return ((hashes >> np.uint64(self.shift)) & np.uint64((1 << self.bits) - 1)).astype(np.int64)

    def masks(self) -> np.ndarray:
        """The bits to change, for each lookup."""
        changes = (places for count in range(self.most + 1) for places in combinations(range(self.bits), count))
        return np.array([sum(1 << place for place in places) for places in changes], np.int64)


class Matches(NamedTuple):
    """Pairs of hashes: numbers of the queries and of the indexed hashes, and the bits in which they differ."""

    query: np.ndarray
    item: np.ndarray
    distance: np.ndarray


def chunks_for(size: int, radius: int) -> tuple[Chunk, ...]:
    """The chunks that need the fewest lookups and comparisons per query among `size` evenly distributed hashes."""
    plans = [_cut(parts, radius) for parts in range(-(-BITS // LARGEST_TABLE), 9)]
    return min(plans, key=lambda plan: sum(chunk.lookups * (1 + size / 2**chunk.bits) for chunk in plan))


def _cut(parts: int, radius: int) -> tuple[Chunk, ...]:
    """Cut a hash into `parts` chunks of nearly the same size, and share radius + 1 differences among them."""
    found, shift = [], 0
    for part in range(parts):
        bits = BITS * (part + 1) // parts - shift
        share = (radius + 1) // parts + (part < (radius + 1) % parts)
        if share:  # else the other chunks suffice
            found.append(Chunk(shift, bits, share - 1))
        shift += bits
    return tuple(found)


@dataclass(frozen=True)
class _Table:
    """The hashes in the order of a chunk's value; those of value k are [starts[k], starts[k + 1])."""

    chunk: Chunk
    masks: np.ndarray
    starts: np.ndarray
    numbers: np.ndarray
    hashes: np.ndarray


class HashIndex:
    """The tables of (n,) hashes of uint64, to be searched within `radius` bits."""

    def __init__(self, hashes: np.ndarray, radius: int) -> None:
        require(0 <= radius < BITS // 2, f"radius is {radius}; allowed are 0 to {BITS // 2 - 1} bits")
        self.hashes, self.size, self.radius = hashes, len(hashes), radius
        self.tables = [_tabulated(hashes, chunk) for chunk in chunks_for(self.size, radius)]

    def search(self, queries: np.ndarray) -> Iterator[Matches]:
        """Yield all pairs within the radius, each once, by query and then by number; some queries at a time."""
        most = max(len(table.masks) for table in self.tables)
        step = max(LOOKUPS // most, 1)
        for start in range(0, len(queries), step):
            part = queries[start : start + step]
            found = [pairs for table in self.tables for pairs in self._pairs(table, part)]
            pair = np.unique(np.concatenate([*found, np.zeros(0, np.int64)]))  # one pair may agree in several chunks
            query, item = np.divmod(pair, max(self.size, 1))
            difference = part[query] ^ self.hashes[item]
            yield Matches(query + start, item, np.bitwise_count(difference).astype(np.int64))

    def _pairs(self, table: _Table, queries: np.ndarray) -> Iterator[np.ndarray]:
        """Yield query * size + item of the pairs within the radius that this table finds."""
        values = (table.chunk.keys(queries)[:, None] ^ table.masks).ravel()  # (queries * lookups,)
        first = table.starts[values]
        count = table.starts[values + 1] - first
        hit = np.flatnonzero(count)
        first, count, query = first[hit], count[hit], hit // len(table.masks)
        ends = np.cumsum(count)
        at = 0
        while at < len(hit):  # in parts, since a common value may have many hashes
            before = ends[at - 1] if at else 0
            to = max(int(np.searchsorted(ends, before + CANDIDATES, side="right")), at + 1)
            own = count[at:to]
            place = np.arange(own.sum()) + np.repeat(first[at:to] - (ends[at:to] - own - before), own)
            asked = np.repeat(query[at:to], own)
            near = np.bitwise_count(queries[asked] ^ table.hashes[place]) <= self.radius
            yield asked[near] * self.size + table.numbers[place[near]]
            at = to


def _tabulated(hashes: np.ndarray, chunk: Chunk) -> _Table:
    keys = chunk.keys(hashes)
    numbers = np.argsort(keys, kind="stable")
    starts = np.zeros((1 << chunk.bits) + 1, np.int64)
    np.cumsum(np.bincount(keys, minlength=1 << chunk.bits), out=starts[1:])
    return _Table(chunk, chunk.masks(), starts, numbers, hashes[numbers])
