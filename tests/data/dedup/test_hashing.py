"""Hashes: the signs of a cosine transform, the same everywhere, and hardly changed by edits."""

import numpy as np
import pytest

from near_duplicates import EDITS, picture
from vitlab.data.dedup.hashing import FREQUENCIES, SPREAD, digests, perceptual_hashes, thumbnail


def test_a_bit_is_the_sign_of_a_frequency():
    """Against the definition of the cosine transform, summed here without rounding."""
    small = np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8)
    (found,) = perceptual_hashes(small[None]).tolist()
    place = (2 * np.arange(32) + 1) * np.pi / 64
    for number, (u, v) in enumerate(FREQUENCIES):
        wave = float(np.outer(np.cos(u * place), np.cos(v * place)).ravel() @ small.ravel().astype(float))
        if abs(wave) > 50:  # rounded cosines may decide smaller ones otherwise
            assert (found >> (SPREAD * number % 64)) & 1 == (wave > 0)


def test_the_frequencies_are_the_lowest_ones():
    assert len(set(FREQUENCIES)) == 64
    assert (0, 0) not in FREQUENCIES
    highest = max(u * u + v * v for u, v in FREQUENCIES)
    lower = [(u, v) for u in range(32) for v in range(32) if 0 < u * u + v * v < highest]
    assert set(lower) <= set(FREQUENCIES)


def test_a_hash_does_not_depend_on_what_is_hashed_with_it():
    small = np.stack([thumbnail(picture(seed)) for seed in range(5)])
    together = perceptual_hashes(small)
    assert [perceptual_hashes(one[None]).item() for one in small] == together.tolist()


@pytest.mark.parametrize("grey", [0, 1, 128, 255])
def test_a_picture_of_one_colour_has_the_hash_0(grey):
    assert perceptual_hashes(np.full((1, 32, 32), grey, np.uint8)).tolist() == [0]


def test_no_pictures_have_no_hashes():
    assert perceptual_hashes(np.zeros((0, 32, 32), np.uint8)).shape == (0,)
    assert digests(np.zeros((0, 32, 32), np.uint8)).shape == (0, 2)


@pytest.mark.parametrize("edit", EDITS)
def test_edits_change_few_bits_and_other_pictures_half_of_them(edit):
    own, edited = (
        perceptual_hashes(np.stack([thumbnail(change(picture(seed))) for seed in range(40)]))
        for change in (lambda image: image, EDITS[edit])
    )
    assert np.bitwise_count(own ^ edited).max() <= 11
    assert 20 < np.bitwise_count(own ^ np.roll(edited, 1)).mean() < 44


def test_the_smallest_picture_has_a_thumbnail():
    assert thumbnail(picture(0).resize((1, 1))).shape == (32, 32)
