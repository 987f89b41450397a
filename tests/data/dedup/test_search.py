"""The search finds exactly the pairs that a comparison of all pairs finds, with far fewer comparisons."""

import numpy as np
import pytest

from vitlab.data.dedup import search
from vitlab.data.dedup.search import HashIndex, chunks_for

BITS = 64


def brute_force(items, queries, radius):
    found = []
    for number, query in enumerate(queries):
        distance = np.bitwise_count(items ^ query)
        found += [(number, int(item), int(distance[item])) for item in np.flatnonzero(distance <= radius)]
    return found


def searched(items, queries, radius):
    return [
        tuple(map(int, pair))
        for matches in HashIndex(items, radius).search(queries)
        for pair in zip(*matches, strict=True)
    ]


def clustered(rng, size, centres=50):
    """Hashes up to 10 bits away from a few centres, which all calls share: many pairs at every distance."""
    common = np.random.default_rng(99).integers(0, 2**64, centres, dtype=np.uint64)
    hashes = common[rng.integers(0, centres, size)]
    for _ in range(10):
        hashes = hashes ^ (np.uint64(1) << rng.integers(0, BITS, size, dtype=np.uint64)) * rng.integers(
            0, 2, size, dtype=np.uint64
        )
    return hashes


@pytest.mark.parametrize("radius", [0, 1, 2, 5, 8, 11, 12])
@pytest.mark.parametrize("size", [1, 300, 3000])
def test_every_pair_within_the_radius_is_found_once(size, radius):
    rng = np.random.default_rng(radius)
    items, queries = clustered(rng, size), clustered(rng, 100)
    queries[: min(size, 20)] = items[:20]
    expected = brute_force(items, queries, radius)
    assert expected
    assert searched(items, queries, radius) == expected


def test_ten_thousand_hashes_agree_with_brute_force():
    rng = np.random.default_rng(0)
    items = np.concatenate([rng.integers(0, 2**64, 9_000, dtype=np.uint64), clustered(rng, 1_000, 300)])
    queries = np.concatenate([rng.integers(0, 2**64, 9_000, dtype=np.uint64), clustered(rng, 1_000, 300)])
    queries[::10] = items[::10] ^ np.uint64(0b1011)
    found = searched(items, queries, 11)
    assert len(found) >= 1_000
    assert found == brute_force(items, queries, 11)


def test_a_missing_chunk_is_noticed(monkeypatch):
    """The agreement is no accident: without one of the tables, pairs are missing."""
    rng = np.random.default_rng(1)
    items, queries = clustered(rng, 2000), clustered(rng, 50)
    whole = brute_force(items, queries, 11)
    monkeypatch.setattr(search, "chunks_for", lambda size, radius: chunks_for(size, radius)[1:])
    assert len(searched(items, queries, 11)) < len(whole)


@pytest.mark.parametrize("radius", range(16))
@pytest.mark.parametrize("size", [1, 10_000, 1_000_000, 10**9])
def test_the_chunks_leave_no_room_for_a_missed_pair(size, radius):
    plan = chunks_for(size, radius)
    assert sum(chunk.most + 1 for chunk in plan) == radius + 1
    bits = [bit for chunk in plan for bit in range(chunk.shift, chunk.shift + chunk.bits)]
    assert len(bits) == len(set(bits))
    assert set(bits) <= set(range(BITS))
    assert all(len(chunk.masks()) == len(set(chunk.masks().tolist())) == chunk.lookups for chunk in plan)


def test_the_work_of_a_query_grows_slower_than_the_number_of_hashes():
    def work(size):
        return sum(chunk.lookups * (1 + size / 2**chunk.bits) for chunk in chunks_for(size, 11))

    for size in (10_000, 100_000):
        assert work(10 * size) < 7 * work(size)
    assert work(1_000_000) < 1_000_000 / 100


def test_equal_hashes_are_compared_in_bounded_parts(monkeypatch):
    monkeypatch.setattr(search, "CANDIDATES", 100)
    monkeypatch.setattr(search, "LOOKUPS", 1000)
    items, queries = np.zeros(500, np.uint64), np.zeros(7, np.uint64)
    assert searched(items, queries, 3) == [(query, item, 0) for query in range(7) for item in range(500)]


def test_nothing_is_found_among_nothing():
    none, some = np.zeros(0, np.uint64), np.zeros(3, np.uint64)
    assert searched(none, some, 11) == searched(some, none, 11) == searched(none, none, 11) == []


def test_a_radius_that_would_match_everything_is_refused():
    with pytest.raises(ValueError, match="0 to 31 bits"):
        HashIndex(np.zeros(3, np.uint64), 40)
