"""The normalisation of fundus photographs, against scipy's blur and circles drawn by hand."""

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter

from vitlab.data.vtab.readers.retinopathy import cut, eye_radius, normalised, without_local_mean


def photograph(height, width, radius, seed=0):
    """A textured disc on black."""
    y, x = np.mgrid[:height, :width]
    disc = ((y - height // 2) ** 2 + (x - width // 2) ** 2 <= radius**2)[..., None]
    return (disc * np.random.default_rng(seed).integers(90, 250, (height, width, 3))).astype(np.uint8)


def test_the_radius_is_half_the_bright_pixels_of_the_middle_row():
    pixels = np.zeros((9, 40, 3), np.uint8)
    pixels[4, 5:25] = 100
    assert eye_radius(pixels) == 10
    pixels[4, 25:27] = 1  # darker than a tenth of the mean
    assert eye_radius(pixels) == 10
    assert eye_radius(np.zeros((30, 40, 3), np.uint8)) == 15


@pytest.mark.parametrize("shape", [(120, 90), (31, 300)])
def test_the_local_mean_is_that_of_a_gaussian_of_ten_pixels(shape):
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    exact = pixels.astype(np.float64)
    blurred = np.rint(gaussian_filter(exact, (10, 10, 0), mode="mirror", truncate=3.0))
    expected = np.clip(4 * exact - 4 * blurred + 128, 0, 255)
    different = without_local_mean(pixels) != expected
    assert different.mean() < 1e-3  # where the blurred value is within rounding of a half


def test_outside_of_270_pixels_everything_is_grey_and_cropped():
    pixels = np.full((700, 620, 3), 7, np.uint8)
    found = cut(pixels)
    assert found.shape == (540, 540, 3)
    y, x = np.mgrid[:540, :540]
    inside = (y - 270) ** 2 + (x - 270) ** 2 <= 270**2
    assert (found[inside] == 7).all()
    assert (found[~inside] == 128).all()
    assert cut(np.full((400, 620, 3), 7, np.uint8)).shape == (400, 540, 3)


def test_the_eye_is_scaled_to_300_pixels():
    found = normalised(Image.fromarray(photograph(100, 140, 40)))
    assert found.shape == (540, 540, 3)
    assert normalised(Image.fromarray(photograph(300, 400, 120))).shape == (540, 540, 3)
    wide = normalised(Image.fromarray(photograph(60, 200, 60)))  # the top and bottom of the eye are cut off
    assert wide.shape[1] == 540
    assert wide.shape[0] < 540


def test_a_black_photograph_is_scaled_by_its_height():
    assert (normalised(Image.new("RGB", (50, 40))) == 128).all()
