"""The order of samples: a permutation every epoch, found at any position in constant time."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitlab.data.loading.order import Order, permuted, unpermuted

SHAPES = {"block": st.integers(1, 40), "window": st.integers(1, 9), "seed": st.integers(0, 2**64)}


@settings(max_examples=150, deadline=None)
@given(samples=st.integers(1, 700), epoch=st.integers(0, 10**6), **SHAPES)
def test_every_epoch_has_every_sample_once(samples, epoch, block, window, seed):
    order = Order(samples, seed=seed, block=block, window=window)
    seen = [order.at(epoch * samples + place) for place in range(samples)]
    assert {e for e, _ in seen} == {epoch}
    assert sorted(number for _, number in seen) == list(range(samples))


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 3000), key=st.binary(min_size=32, max_size=32))
def test_the_permutation_is_one_and_has_an_inverse(size, key):
    images = [permuted(number, size, key) for number in range(size)]
    assert sorted(images) == list(range(size))
    assert [unpermuted(image, size, key) for image in images] == list(range(size))


def test_epochs_and_seeds_differ():
    order = Order(500)
    first, second = ([order.at(epoch * 500 + i)[1] for i in range(500)] for epoch in (0, 1))
    other = [Order(500, seed=1).at(i)[1] for i in range(500)]
    assert first != second
    assert first != other
    fixed = sum(a == b for a, b in zip(first, second, strict=True))
    assert fixed < 10  # a random permutation keeps one place on average


def test_position_a_billion_is_found_without_touching_earlier_ones():
    order = Order(10**9, seed=3)
    tracemalloc.start()
    found = [order.at(10**9 * 5 + place) for place in (0, 1, 123_456_789, 10**9 - 1)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000  # bytes
    assert {epoch for epoch, _ in found} == {5}
    assert len({number for _, number in found}) == 4


def test_a_set_sorted_by_class_is_mixed_in_every_batch():
    order = Order(1_281_167)
    for step in (0, 100, 311):
        classes = {order.at(position)[1] * 1000 // 1_281_167 for position in range(step * 4096, (step + 1) * 4096)}
        assert len(classes) > 960  # 983 expected of independent draws


def test_the_end_of_an_epoch_is_as_mixed_as_its_beginning():
    order = Order(66_000, block=64, window=64)
    last = [order.at(position)[1] * 10 // 66_000 for position in range(65_000, 66_000)]
    assert len(set(last)) == 10


def test_neighbours_stay_near_on_disk_and_batches_mix_blocks():
    order = Order(10**8, block=1024)
    blocks = {order.at(position)[1] // order.block for position in range(4096)}
    assert order.window - 1 <= len(blocks) <= order.window + 1  # one window: 64 places to read from, not 4096
    numbers = [order.at(position)[1] for position in range(256)]
    assert len({number // order.block for number in numbers}) > 50


def test_samples_are_spread_evenly_over_the_epoch():
    order = Order(10_000, block=10, window=100)
    places = [order.at(place)[1] for place in range(10_000)]
    for start in range(0, 10_000, 1000):
        mean = sum(places[start : start + 1000]) / 1000
        assert 3500 < mean < 6500


@pytest.mark.parametrize("bad", [{"samples": 0}, {"samples": 5, "block": 0}, {"samples": 5, "window": 0}])
def test_impossible_orders_are_refused(bad):
    with pytest.raises(ValueError, match="at least 1"):
        Order(**bad)


def test_golden_order():
    """The order is a promise: checkpoints of today must find their data tomorrow."""
    plain, blocks = Order(1000, seed=0), Order(1000, seed=0, block=8, window=4)
    assert [plain.at(i)[1] for i in range(12)] == [108, 26, 932, 191, 114, 6, 999, 388, 148, 566, 833, 152]
    assert [blocks.at(i)[1] for i in range(12)] == [548, 244, 947, 243, 546, 45, 41, 242, 951, 949, 40, 950]
    # 1024 numbers fit into two halves of five bits: one bit more would still be a permutation, but another one.
    assert [Order(1024).at(i)[1] for i in range(8)] == [108, 1014, 932, 191, 114, 6, 999, 388]
    assert [Order(4096, seed=1, block=8, window=4).at(i)[1] for i in range(6)] == [3430, 3431, 1575, 3429, 3425, 3424]
