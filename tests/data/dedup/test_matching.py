"""The pixel check of candidates, and which pairs are listed."""

import numpy as np
import pytest

from near_duplicates import picture
from vitlab.data.dedup.hash_files import Hashes
from vitlab.data.dedup.hashing import digests, perceptual_hashes, thumbnail
from vitlab.data.dedup.matching import Criteria, TestPictures, correlations, distinct


def hashed(thumbnails, start=0):
    small = np.stack(thumbnails)
    return Hashes(
        numbers=np.arange(start, start + len(small)),
        hashes=perceptual_hashes(small),
        digests=digests(small),
        contents=digests(small),
        thumbnails=small,
    )


def pairs(test, train, criteria=None, floor=None):
    rows = TestPictures([hashed(test)], criteria or Criteria()).pairs(hashed(train), floor)
    return [(int(row["train"]), int(row["test"])) for row in rows]


def small(seed):
    return thumbnail(picture(seed))


def test_the_correlation_is_pearsons():
    one, two = (np.stack([small(seed) for seed in seeds]) for seeds in (range(5), range(5, 10)))
    first, second = np.array([0, 1, 4, 4]), np.array([3, 1, 0, 4])
    expected = [np.corrcoef(one[a].ravel(), two[b].ravel())[0, 1] for a, b in zip(first, second, strict=True)]
    assert correlations(one, two, first, second) == pytest.approx(expected, abs=1e-5)


def test_brightness_and_contrast_do_not_matter():
    own = small(0)
    other = (own * 0.5 + 40).astype(np.uint8)
    assert correlations(own[None], other[None], np.array([0]), np.array([0])) == pytest.approx([1], abs=1e-3)


@pytest.mark.parametrize(("other", "expected"), [(128, 1.0), (129, 1.0), (140, 0.0)])
def test_pictures_of_one_colour_are_the_same_if_it_is_the_same_colour(other, expected):
    flat = np.full((1, 32, 32), 128, np.uint8), np.full((1, 32, 32), other, np.uint8)
    assert correlations(*flat, np.array([0]), np.array([0])).tolist() == [expected]


def test_a_picture_with_structure_is_unlike_one_of_a_single_colour():
    flat = np.full((32, 32), 128, np.uint8)
    found = correlations(flat[None], small(0)[None], np.array([0]), np.array([0]))
    assert abs(found[0]) < 0.1


def test_only_pairs_that_pass_the_pixel_check_are_listed():
    noisy = (small(1).astype(int) + np.random.default_rng(0).normal(0, 60, (32, 32))).clip(0, 255).astype(np.uint8)
    assert pairs([small(0), small(1)], [small(0), small(2)]) == [(0, 0)]
    assert pairs([small(1)], [noisy], Criteria(16, 0.92)) == []
    assert pairs([small(1)], [noisy], Criteria(16, 0.92), floor=0.3) == [(0, 0)]


def test_the_best_match_comes_first():
    worse = (small(0).astype(int) + np.random.default_rng(0).normal(0, 12, (32, 32))).clip(0, 255).astype(np.uint8)
    assert pairs([worse, small(5), small(0)], [small(0)]) == [(0, 2), (0, 0)]


def test_of_many_equal_pictures_ten_are_listed_for_each_training_picture():
    blank = np.full((32, 32), 255, np.uint8)
    found = pairs([blank] * 30, [small(3), *[blank] * 40])
    assert {train for train, _ in found} == set(range(1, 41))
    assert len(found) == 400


def test_identical_content_is_marked():
    test, train = hashed([small(0), small(1)]), hashed([small(0), small(1) ^ 1])
    found = TestPictures([test], Criteria()).pairs(train)
    assert [(int(row["train"]), bool(row["same"])) for row in found] == [(0, True), (1, False)]


def test_keys_are_grouped():
    keys = np.array([[1, 2], [3, 4], [1, 2], [1, 3]], np.uint64)
    first, own = distinct(keys)
    assert (keys[first][own] == keys).all()
    assert sorted(first.tolist()) == [0, 1, 3]
