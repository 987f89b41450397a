"""Which patches are corrupted: the right shares, and the same for any workers, ranks, batches and resumes."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from vitlab.data.loading.batches import evaluation_batches, training_batches
from vitlab.data.loading.order import Order
from vitlab.data.source import Sample, Source
from vitlab.data.transforms.corruption import HIDDEN, Corruption, corruption_plan
from vitlab.spec import CONVENTIONS
from vitlab.spec.pixels import Augmentation
from vitlab.spec.recipe import Masking

SIZE = (8, 8)
HALF = Corruption(patches=16, chosen=8, masked=0.8, swapped=0.1)


class Numbers(Source):
    """A source of small noise; `bad` pictures are broken."""

    class_names = ()

    def __init__(self, samples, bad=()):
        self.samples, self.bad = samples, frozenset(bad)

    def __len__(self):
        return self.samples

    def id(self, index):
        return f"n{index}"

    def label(self, index):
        return ()

    def item(self, index):
        pixels = np.random.default_rng(index).integers(0, 256, (12, 10, 3), dtype=np.uint8)
        return Sample(b"broken" if index in self.bad else pixels, (), self.id(index))


def train(source, **options):
    options = {"batch": 7, "size": SIZE, "augmentation": Augmentation(), "stop": 6} | options
    return list(training_batches(source, Order(len(source)), **options))


def evaluate(source, **options):
    how = CONVENTIONS["paper"].preprocessing
    options = {"batch": 7, "size": SIZE, "preprocessing": how, "max_bad": 1.0} | options
    return list(evaluation_batches(source, **options))


def plans(how, count, *, seed=0):
    return np.stack([corruption_plan(how, seed, 0, str(number)).numpy() for number in range(count)])


def likely(found, draws, share):
    """Whether so many of independent draws lie within five deviations."""
    return abs(found - draws * share) <= 5 * math.sqrt(draws * share * (1 - share))


@pytest.mark.parametrize(
    ("corrupted", "patches", "chosen"),
    [(0.5, 196, 98), (0.5, 256, 128), (0.15, 196, 29), (0.3, 16, 5), (1.0, 9, 9), (0.01, 196, 2)],
)
def test_every_picture_has_exactly_the_rounded_number_of_corrupted_patches(corrupted, patches, chosen):
    how = Masking("mean-colour", corrupted, 0.8, 0.1, 0.1)
    assert how.chosen(patches) == chosen
    for places, sources in plans(Corruption(patches, chosen, 0.8, 0.1), 50):
        assert len(set(places)) == chosen
        assert sorted(places) == list(places)
        assert set(places) <= set(range(patches))
        assert set(sources) <= set(range(patches)) | {HIDDEN}


@pytest.mark.parametrize(("masked", "swapped"), [(0.8, 0.1), (0.5, 0.5), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_of_the_corrupted_the_asked_shares_are_masked_swapped_and_kept(masked, swapped):
    drawn = plans(replace(HALF, masked=masked, swapped=swapped), 1500)
    places, sources = drawn[:, 0].ravel(), drawn[:, 1].ravel()
    counts = [(sources == HIDDEN).sum(), ((sources != HIDDEN) & (sources != places)).sum(), (sources == places).sum()]
    for count, share in zip(counts, (masked, swapped, 1 - masked - swapped), strict=True):
        assert likely(count, sources.size, share)


def test_every_place_is_chosen_equally_often_and_together_with_every_other():
    drawn = plans(HALF, 2000)[:, 0]
    singles = Counter(drawn.ravel().tolist())
    assert all(likely(singles[place], 2000, 8 / 16) for place in range(16))
    pairs = Counter((a, b) for row in drawn.tolist() for a in row for b in row if a < b)
    assert all(likely(pairs[a, b], 2000, (8 * 7) / (16 * 15)) for a in range(16) for b in range(a + 1, 16))


def test_a_swapped_patch_comes_from_every_other_place_equally_often():
    drawn = plans(replace(HALF, masked=0.0, swapped=1.0), 2000)
    moves = Counter(zip(drawn[:, 0].ravel().tolist(), drawn[:, 1].ravel().tolist(), strict=True))
    for place in range(16):
        total = sum(count for (own, _), count in moves.items() if own == place)
        assert moves[place, place] == 0
        assert all(likely(moves[place, other], total, 1 / 15) for other in range(16) if other != place)


def test_seed_epoch_and_sample_each_matter_and_nothing_else():
    base = corruption_plan(HALF, 1, 2, "a")
    assert torch.equal(base, corruption_plan(HALF, 1, 2, "a"))
    for other in ((0, 2, "a"), (1, 3, "a"), (1, 2, "b"), (1, 2, "a", 1)):
        assert not torch.equal(base, corruption_plan(HALF, *other))


def test_a_sample_that_comes_again_is_corrupted_otherwise():
    (batch,) = train(Numbers(2), batch=4, stop=1, augmentation=Augmentation(repeats=2), corruption=HALF)
    assert batch.ids[0] == batch.ids[1]
    assert not torch.equal(batch.plans[0], batch.plans[1])


def by_sample(batches):
    return {
        (epoch, name): plan.tolist()
        for batch in batches
        for epoch, name, plan in zip(batch.epochs, batch.ids, batch.plans, strict=True)
    }


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 5, "stop": 9},
        {"batch": 45, "stop": 1},
        {"batch": 9, "stop": 5, "augmentation": Augmentation(crop="none", flip=False)},
        pytest.param({"batch": 9, "stop": 5, "workers": 2}, marks=pytest.mark.slow),
    ],
)
def test_a_sample_has_one_plan_whatever_the_batch_workers_and_augmentation(options):
    expected = by_sample(train(Numbers(15), batch=15, stop=3, corruption=HALF))
    assert len(expected) == 45  # three epochs
    assert by_sample(train(Numbers(15), corruption=HALF, **options)) == expected


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_and_a_late_start_have_the_plans_of_the_whole(ranks):
    whole = train(Numbers(23), corruption=HALF)
    parts = [train(Numbers(23), corruption=HALF, rank=rank, ranks=ranks, start=2) for rank in range(ranks)]
    for step, batch in enumerate(whole[2:]):
        assert torch.equal(torch.cat([part[step].plans for part in parts]), batch.plans)


def test_plans_leave_the_pixels_as_they_are():
    for with_plans, without in zip(train(Numbers(9), corruption=HALF), train(Numbers(9)), strict=True):
        assert torch.equal(with_plans.pixels, without.pixels)
        assert with_plans.plans.shape == (7, 2, 8)
        assert without.plans is None


def test_an_evaluation_has_the_same_plans_every_time_and_bad_pictures_have_none():
    first, again = (evaluate(Numbers(11, bad={3}), batch=batch, corruption=HALF) for batch in (4, 11))
    assert by_sample(first) == by_sample(again)
    assert "n3" not in {name for _, name in by_sample(first)}
    (nothing,) = evaluate(Numbers(1, bad={0}), corruption=HALF)
    assert nothing.plans.shape == (0, 2, 8)
    assert nothing.pixels.shape == (0, 3, *SIZE)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"chosen": 0}, "0 of 16 patches would be corrupted"),
        ({"chosen": 17}, "17 of 16 patches would be corrupted"),
        ({"masked": 0.95}, "add up to 1 at most"),
        ({"swapped": -0.1}, "add up to 1 at most"),
        ({"patches": 1, "chosen": 1}, "no other patch to swap with"),
    ],
)
def test_impossible_corruptions_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        replace(HALF, **values)


def test_a_single_patch_can_be_masked():
    assert corruption_plan(Corruption(1, 1, 1.0, 0.0), 0, 0, "a").tolist() == [[0], [HIDDEN]]
