"""MixUp and CutMix equal plain loops and timm, and no label gets lost."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from vitlab.spec.pixels import Augmentation
from vitlab.spec.recipe import SGD, Recipe, Schedule
from vitlab.train.mixing import cutmix_box, mixing_of, mixup_share
from vitlab.world.device import seed_of

RECIPE = Recipe(
    name="mixed",
    source="tests",
    batch=12,
    image=(10, 14),
    schedule=Schedule(peak=0.1, total=10, warmup=0),
    optimizer=SGD(),
)
SIZE = (10, 14)
DEIT = {"mixup": 0.8, "cutmix": 1.0}


def pictures(count, seed=0):
    rng = np.random.default_rng(seed)
    pixels = torch.from_numpy(rng.integers(0, 256, (count, 3, *SIZE), dtype=np.uint8))
    return pixels, torch.nn.functional.one_hot(torch.from_numpy(rng.integers(0, 5, count)), 5).double()


def by_loop(mixing, pixels, targets):
    """Every pixel of every picture, one after the other."""
    mixed, labels = np.zeros(pixels.shape), np.zeros(targets.shape)
    for i in range(len(pixels)):
        j, share = int(mixing.partners[i]), float(mixing.shares[i])
        top, bottom, left, right = map(int, mixing.boxes[i])
        for c, y, x in np.ndindex(*pixels.shape[1:]):
            if bottom > top:
                inside = top <= y < bottom and left <= x < right
                mixed[i, c, y, x] = pixels[j if inside else i, c, y, x]
            else:
                mixed[i, c, y, x] = share * float(pixels[i, c, y, x]) + (1 - share) * float(pixels[j, c, y, x])
        labels[i] = share * targets[i].numpy() + (1 - share) * targets[j].numpy()
    return mixed, labels


@pytest.mark.parametrize("options", [{"mixup": 0.4}, {"cutmix": 1.0}, DEIT, {"mixup": 0.5, "partners": "rolled"}])
def test_mixing_equals_a_loop_over_pixels_and_conserves_labels(options):
    recipe = replace(RECIPE, **options)
    pixels, targets = pictures(9)
    kinds = set()
    for step in range(6):
        mixing = mixing_of(recipe, 1, step, {0: 4, 2: 5}, SIZE)
        kinds |= {bool(box.any()) for box in mixing.boxes}
        mixed, labels = by_loop(mixing, pixels, targets)
        np.testing.assert_allclose(mixing.pictures(pixels.double(), range(9)), mixed, rtol=1e-12, atol=1e-9)
        np.testing.assert_allclose(mixing.pictures(pixels, range(9)), mixed, rtol=1e-5)  # bytes are mixed as float32
        found = mixing.blended(targets, range(9))
        np.testing.assert_allclose(found, labels, rtol=1e-12)
        np.testing.assert_allclose(found.sum(dim=1), np.ones(9), rtol=1e-12)
        for chosen in (range(3), range(3, 6), range(6, 9)):  # pieces are parts of the whole
            part = mixing.pictures(pixels.double(), chosen)
            np.testing.assert_allclose(part, mixed[chosen.start : chosen.stop], rtol=1e-12, atol=1e-9)
    assert kinds == ({False, True} if options == DEIT else {"cutmix" in options})


def test_label_mass_is_the_share_of_pixels_that_are_shown():
    """CutMix over many draws: what a label weighs is counted, box or border."""
    recipe = replace(RECIPE, cutmix=1.0)
    black_and_white = torch.stack([torch.zeros(3, *SIZE), torch.ones(3, *SIZE)])
    targets = torch.eye(2, dtype=torch.float64)
    for step in range(200):
        mixing = mixing_of(recipe, 3, step, {0: 2}, SIZE)
        shown = mixing.pictures(black_and_white, range(2))[:, 0].double().mean(dim=(1, 2))  # of the white one
        torch.testing.assert_close(mixing.blended(targets, range(2))[:, 1], shown, rtol=0, atol=1e-6)


def test_partners_stay_in_their_shard_and_the_odd_one_is_its_own():
    assert mixing_of(replace(RECIPE, mixup=1.0), 0, 0, {0: 3, 1: 2}, SIZE).partners.tolist() == [2, 1, 0, 4, 3]
    rolled = mixing_of(replace(RECIPE, mixup=1.0, partners="rolled"), 0, 0, {0: 3, 1: 2}, SIZE)
    assert rolled.partners.tolist() == [2, 0, 1, 4, 3]  # numpy.roll(x, 1)


@pytest.mark.parametrize("repeats", [2, 3, 5])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_no_sample_is_its_own_rolled_partner_however_often_it_is_repeated(repeats, before):
    recipe = replace(RECIPE, mixup=1.0, partners="rolled", augmentation=Augmentation(repeats=repeats))
    for count in range(2 * repeats, 4 * repeats):  # wherever a shard begins and ends
        samples = [(before + place) // repeats for place in range(count)]
        partners = mixing_of(recipe, 0, 0, {0: count}, SIZE).partners.tolist()
        assert sorted(partners) == list(range(count))
        assert all(samples[place] != samples[partner] for place, partner in enumerate(partners))
    assert mixing_of(recipe, 0, 0, {0: 1}, SIZE).partners.tolist() == [0]


def test_a_shard_too_short_for_two_repeated_samples_is_rolled_by_half():
    recipe = replace(RECIPE, mixup=1.0, partners="rolled", augmentation=Augmentation(repeats=5))
    partners = {count: mixing_of(recipe, 0, 0, {0: count}, SIZE).partners.tolist() for count in (2, 3, 4, 5)}
    assert partners == {2: [1, 0], 3: [2, 0, 1], 4: [2, 3, 0, 1], 5: [3, 4, 0, 1, 2]}


def test_rolled_mixup_never_lets_the_partner_win():
    recipe = replace(RECIPE, mixup=0.5, partners="rolled")
    for step in range(50):
        share = mixup_share(0.5, 0, step)
        assert float(mixing_of(recipe, 0, step, {0: 2}, SIZE).shares[0]) == max(share, 1 - share)


def test_boxes_are_timms(monkeypatch):
    """With the same lambda and the same centres, for many of both."""
    pytest.importorskip("peers", reason="the peer libraries are not installed", exc_type=ImportError)
    from timm.data.mixup import cutmix_bbox_and_lam

    rng = np.random.default_rng(0)
    for _ in range(300):
        share = float(rng.beta(1, 1))
        centres = [int(rng.integers(side)) for side in SIZE]
        waiting = iter(centres)
        monkeypatch.setattr(np.random, "randint", lambda *_, size=None, waiting=waiting: next(waiting))
        box, kept = cutmix_bbox_and_lam((3, *SIZE), share)

        class Given:
            def __init__(self, values):
                self.values = iter(values)

            def integers(self, side):
                return next(self.values)

        assert cutmix_box(share, SIZE, Given(centres)) == (pytest.approx(kept), tuple(map(int, box)))


def test_draws_are_functions_of_seed_step_and_shard_and_both_kinds_occur_equally():
    recipe = replace(RECIPE, **DEIT)
    one, again = (mixing_of(recipe, 5, 7, {3: 4}, SIZE) for _ in range(2))
    assert torch.equal(one.shares, again.shares)
    assert torch.equal(one.boxes, again.boxes)
    whole = mixing_of(recipe, 5, 7, {0: 4, 3: 4}, SIZE)
    assert torch.equal(whole.shares[4:], one.shares)
    # A box may be empty where lambda is near 1: a little fewer than half show one.
    cut = sum(bool(mixing_of(recipe, 0, step, {0: 1}, SIZE).boxes.any()) for step in range(1000))
    assert 430 < cut < 560


def test_of_both_kinds_each_has_a_chance_of_exactly_one_half():
    """An interval around a share lets 0.45 pass for 0.5; the draw that decides is made again from its key."""
    recipe = replace(RECIPE, **DEIT)
    first = {step: np.random.default_rng(seed_of("cutmix", 0, step, 0)).random() for step in range(3000)}
    shares = {step: float(mixing_of(recipe, 0, step, {0: 1}, SIZE).shares[0]) for step in first}
    is_mixup = {step: shares[step] == mixup_share(recipe.mixup, 0, step) for step in first}
    cut, blended = ([first[step] for step in first if is_mixup[step] is kind] for kind in (False, True))
    assert max(cut) < 0.5 <= min(blended)
    assert min(blended) - max(cut) < 0.002


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0])
def test_the_share_that_is_kept_is_a_draw_of_beta(alpha):
    """By its first two moments, within five standard errors; CutMix's before its box is cut at the border."""
    shares = np.array([mixup_share(alpha, 0, step) for step in range(4000)])
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(shares.mean() - 0.5) < 5 * np.sqrt(variance / len(shares))
    squares = (shares - 0.5) ** 2
    assert abs(squares.mean() - variance) < 5 * squares.std() / np.sqrt(len(shares))
    assert len({mixup_share(alpha, seed, step, shard) for seed in (0, 1) for step in (0, 1) for shard in (0, 1)}) == 8
