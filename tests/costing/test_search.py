"""Which batch is tried next, on made-up times and memories."""

import random

import pytest

from vitlab.costing.search import EXACT, Largest, expected_seconds, largest_batch, next_batch

MB = 10**6


class Memory:
    """A machine whose batches take a known amount of memory; notes what is tried."""

    def __init__(self, peak, limit):
        self.peak, self.limit, self.tried = peak, limit, []

    def __call__(self, batch):
        self.tried.append(batch)
        size = self.peak(batch)
        return size if size <= self.limit else None

    def search(self, known=(), **how):
        return largest_batch(self, self.limit, {batch: self.peak(batch) for batch in known}, **how)


def truth(memory):
    batch = 0
    while memory.peak(batch + 1) <= memory.limit:
        batch += 1
    return batch


@pytest.mark.parametrize("limit", [309, 310, 311, 345, 500, 2_000])
def test_the_largest_batch_of_a_straight_line_is_exact_and_its_neighbour_was_tried(limit):
    memory = Memory(lambda batch: (300 + 10 * batch) * MB, limit * MB)
    found = memory.search(known=[batch for batch in (1, 2, 4) if memory.peak(batch) <= memory.limit])
    right = truth(memory)
    if right <= EXACT:
        assert found == Largest(right, is_tried=True)
    else:
        assert right - right // EXACT <= found.batch <= right
    assert len(memory.tried) <= 5
    assert sum(memory.peak(batch) > memory.limit for batch in memory.tried) <= 1


def test_without_any_known_peak_the_search_starts_with_one_image():
    memory = Memory(lambda batch: 100 * batch * MB, 550 * MB)
    assert memory.search() == Largest(5, is_tried=True)
    assert memory.tried[0] == 1
    assert Memory(lambda batch: 2, 1).search() == Largest(0, is_tried=True)


def test_a_batch_that_did_not_fit_is_not_tried_again():
    memory = Memory(lambda batch: (300 + 10 * batch) * MB, 400 * MB)
    assert memory.search(known=(1, 2, 4, 8), too_large=16) == Largest(10, is_tried=True)
    assert max(memory.tried) < 16


def jagged(seed):
    """Buffers that appear at some batch, and noise in every reading."""
    draw = random.Random(seed)
    base, slope, kink, jump = draw.randint(200, 400), draw.uniform(0.05, 50), draw.randint(2, 300), draw.randint(0, 200)
    noise = [draw.uniform(0, 15) for _ in range(1000)]

    def peak(batch):
        return int((base + slope * batch + jump * (batch >= kink) + noise[batch % 1000]) * MB)

    return Memory(peak, draw.randint(500, 4_000) * MB)


def test_a_jagged_memory_is_searched_to_the_end_in_few_tries():
    for memory in map(jagged, range(300)):
        found = memory.search(known=[batch for batch in (1, 2, 4, 8, 16) if memory.peak(batch) <= memory.limit])
        assert found.is_tried
        assert memory.peak(found.batch) <= memory.limit
        above = [batch for batch in memory.tried if batch > found.batch]
        assert min(above, default=found.batch) - found.batch <= max(found.batch // EXACT, 1)
        assert len(memory.tried) == len(set(memory.tried)) <= 12


def test_a_try_that_takes_too_long_is_replaced_by_the_line():
    memory = Memory(lambda batch: (300 + 10 * batch) * MB, 1_000 * MB)
    assert memory.search(known=(8, 16), is_affordable=lambda batch: batch < 50) == Largest(70, is_tried=False)
    assert memory.tried == []
    assert memory.search(known=(8, 16), too_large=64, is_affordable=lambda _: False) == Largest(63, is_tried=False)
    assert memory.search(known=(1,), is_affordable=lambda _: False) is None


def test_a_line_through_small_batches_is_not_believed_far_away():
    """Their memory hardly grows, because buffers of other things are reused."""
    memory = Memory(lambda batch: max(300 * MB + batch, (290 + 10 * batch) * MB * (batch > 2)), 1_000 * MB)
    assert memory.search(known=(1, 2), is_affordable=lambda _: False) is None
    assert memory.search(known=(1, 2)).batch in (70, 71)
    assert memory.tried[0] <= 16


def test_a_line_with_much_growth_is_believed_and_one_with_little_is_made_surer_first():
    memory = Memory(lambda batch: (300 + 10 * batch) * MB, 20_000 * MB)
    assert memory.search(known=(8, 16), is_affordable=lambda batch: batch <= 16) == Largest(1970, is_tried=False)
    assert memory.search(known=(2, 4), is_affordable=lambda batch: batch <= 16) == Largest(1970, is_tried=False)
    assert memory.tried == [8, 16]
    assert memory.search(known=(2, 4), is_affordable=lambda batch: batch <= 4) is None


def test_powers_of_two_are_timed_until_two_in_a_row_are_no_faster():
    assert next_batch({}, 10) == 1
    assert next_batch({1: 1.0}, 10) == 2
    assert next_batch({1: 1.0, 2: 1.5}, 100) == 4
    assert next_batch({1: 1.0, 2: 1.5, 4: 3.2}, 100) == 8  # one slower batch may be noise
    assert next_batch({1: 1.0, 2: 1.5, 4: 3.2, 8: 6.4}, 100) is None


def test_the_first_batches_do_not_end_the_search():
    assert next_batch({1: 1.0, 2: 2.1, 4: 4.3}, 100) == 8
    assert next_batch({1: 1.0, 2: 2.1, 4: 4.3, 8: 9.0}, 100) is None


def test_a_batch_is_not_timed_without_time_to_repeat_it():
    assert expected_seconds(6, {1: 1.0, 2: 1.5}) == 4.5
    assert next_batch({1: 1.0, 2: 1.5}, 12.0) == 4
    assert next_batch({1: 1.0, 2: 1.5}, 11.9) is None
