"""Splits and subsets: TFDS order, development parts, nesting, shots, and label maps that may not change."""

import pickle
import tracemalloc

import numpy as np
import pytest

from vitlab.data.class_names import check_class_names
from vitlab.data.fingerprint import describe, fingerprint
from vitlab.data.source import Sample, Source
from vitlab.data.sources.catalogue import open_source
from vitlab.data.splits import development_split, nested_subset, take, tfds_order
from vitlab.paper.finetuning import IMAGE_SETS, finetuning_row


class Plain(Source):
    """Samples without pictures: label n % 10, id the running number."""

    def __init__(self, samples, class_names=tuple("abcdefghij")):
        self.samples, self.class_names = samples, class_names

    def __len__(self):
        return self.samples

    def label(self, index):
        return (index % 10,)

    def id(self, index):
        return str(index)

    def item(self, index):
        return Sample(np.zeros((1, 1, 3), np.uint8), self.label(index), self.id(index))


def numbers(subset):
    return [int(subset.id(i)) for i in range(len(subset))]


def test_cifar_is_in_the_published_order_of_tfds():
    order = tfds_order(map(str, range(50_000)), "train")
    assert order[:5] == [16399, 1680, 47917, 17307, 27051]
    assert sorted(order) == list(range(50_000))
    assert numbers(take(Plain(50_000), order))[:5] == order[:5]


@pytest.mark.parametrize(
    ("data", "fraction", "sizes"), [("CIFAR-10", 0.02, (49_000, 1_000)), ("Oxford-IIIT Pets", 0.1, (3_312, 368))]
)
def test_development_splits_are_the_papers(data, fraction, sizes):
    assert (IMAGE_SETS[data].train, finetuning_row(data).dev_fraction) == (sum(sizes), fraction)
    train, development = development_split(Plain(sum(sizes)), fraction)
    assert (len(train), len(development)) == sizes
    assert sorted(numbers(train) + numbers(development)) == list(range(sum(sizes)))
    assert numbers(train)[:3] == tfds_order(map(str, range(sum(sizes))), "train")[:3]


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 0.001])
def test_development_splits_that_leave_nothing_are_refused(fraction):
    with pytest.raises(ValueError, match=r"fraction|empty"):
        development_split(Plain(20), fraction)


def test_subsets_of_one_seed_are_nested_and_seeds_differ():
    small, large = (numbers(nested_subset(Plain(1000), n, seed=4)) for n in (90, 300))
    assert len(set(large)) == 300
    assert set(small) < set(large)
    assert set(small) != set(numbers(nested_subset(Plain(1000), 90, seed=5)))
    assert 400 < np.mean(large) < 600


def test_a_subset_of_a_billion_is_opened_and_read_in_constant_memory():
    tracemalloc.start()
    subset = nested_subset(Plain(10**9), 10**8)
    picked = {subset.id(i) for i in (0, 1, 10**8 - 1)}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(picked) == 3
    assert peak < 100_000
    with pytest.raises(IndexError):
        subset.id(10**8)


def test_subsets_can_be_sent_to_workers():
    for subset in (take(Plain(50), [3, 1, 2]), nested_subset(Plain(50), 7)):
        assert numbers(pickle.loads(pickle.dumps(subset))) == numbers(subset)  # noqa: S301


class TestTheSameData:
    def test_the_fingerprint_changes_with_classes_samples_ids_and_labels(self):
        class Renamed(Plain):
            def id(self, index):
                return f"x{index}"

        class Relabelled(Plain):
            def label(self, index):
                return ((index + 1) % 10,)

        sources = [Plain(50), Plain(51), Plain(50, tuple("ABCDEFGHIJ")), Renamed(50), Relabelled(50)]
        assert len({fingerprint(source) for source in sources}) == len(sources)
        assert fingerprint(Plain(50)) == fingerprint(Plain(50))

    def test_the_same_classes_pass(self):
        check_class_names(("a", "b"), ["a", "b"])

    def test_renamed_classes_are_refused(self):
        with pytest.raises(ValueError, match=r"missing 'b', new 'c'"):
            check_class_names(("a", "b"), ("a", "c"))

    def test_reordered_classes_are_refused_not_permuted(self):
        with pytest.raises(ValueError, match="number 1 is 'b' for the model and 'c' in the data"):
            check_class_names(("a", "b", "c"), ("a", "c", "b"))

    def test_the_fingerprint_of_drawn_images_knows_their_seed_and_size(self):
        specs = ("shapes?images=50", "shapes?images=50&seed=1", "shapes?images=50&size=32", "fractals?images=50")
        found = [fingerprint(open_source(f"{spec}&classes=10")) for spec in specs]
        assert len(set(found)) == len(specs)
        assert found[0] == fingerprint(open_source("shapes?images=50&classes=10"))

    def test_a_card_accepts_its_data_and_no_other(self):
        card = describe(Plain(50), "plain")
        card.check(describe(Plain(50), "plain"))
        with pytest.raises(ValueError, match="50 samples of 'plain' then, 51 now"):
            card.check(describe(Plain(51), "plain"))
        with pytest.raises(ValueError, match="classes differ"):
            card.check(describe(Plain(50, tuple("ABCDEFGHIJ")), "plain"))
