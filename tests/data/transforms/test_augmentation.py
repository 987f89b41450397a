"""Chances and places of what training does at random: each draw against its own threshold, range or closed form.

An interval around a share of a few hundred draws lets 0.4 pass for 0.5. The draws here are made again from their key,
so the threshold is read off exactly, and shares are those of five thousand within five standard errors.
"""

import math
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from vitlab.data.transforms import pillow_operations
from vitlab.data.transforms.augmentation import draws, inception_box, training_pixels, uniform_area_box
from vitlab.data.transforms.operation import Operation
from vitlab.data.transforms.randaugment import erased_box, randaugmented
from vitlab.data.transforms.resizing import resized
from vitlab.spec.pixels import Augmentation, Erasing, RandAugment

MANY = 5_000


def assert_even_chance(outcomes):
    """Pairs of (first draw of the key, whether it happened): below a half it does, from a half on it does not."""
    happened = [draw for draw, is_so in outcomes if is_so]
    others = [draw for draw, is_so in outcomes if not is_so]
    assert max(happened) < 0.5 <= min(others)
    assert max(happened) > 0.499
    assert min(others) < 0.501
    assert abs(len(happened) / len(outcomes) - 0.5) < 5 * 0.5 / math.sqrt(len(outcomes))


def test_a_picture_is_mirrored_with_a_chance_of_exactly_one_half():
    image = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(1, 2, 3))
    how = Augmentation(crop="none")
    outcomes = []
    for number in range(MANY):
        pixels = training_pixels(image, (1, 2), how, draws(0, 0, str(number)))
        outcomes.append((draws(0, 0, str(number)).random(), pixels[0].tolist() == [[3, 0]]))
    assert_even_chance(outcomes)


def test_the_sign_of_an_operation_is_drawn_with_a_chance_of_exactly_one_half():
    operation = Operation(None, lambda level: 10 * level, has_sign=True)
    amounts = [(draws(0, 0, str(n)).random(), operation.drawn(0.3, draws(0, 0, str(n)))) for n in range(MANY)]
    assert {amount for _, amount in amounts} == {-3.0, 3.0}
    assert_even_chance([(draw, amount < 0) for draw, amount in amounts])
    assert Operation(None, lambda level: 10 * level).drawn(0.3, draws(0, 0, "a")) == 3.0


# -- Boxes -----------------------------------------------------------------------------------------


class Given:
    """A generator whose draws are given, and which notes what was asked for."""

    def __init__(self, *values):
        self.values, self.asked = list(values), []

    def _next(self, *ends):
        self.asked.append(ends)
        return self.values.pop(0)

    uniform = integers = random = _next


def test_an_inception_box_is_that_of_tensorflow_for_given_draws():
    """Aspect, height, top and left as sample_distorted_bounding_box computes them, drawn from its ranges."""
    rng = Given(1.2, 40, 7, 3)
    assert inception_box(80, 60, 0.05, rng) == (3, 7, 3 + 48, 7 + 40)
    # the shortest height has 5 % of the area, the tallest is the picture's: sqrt(0.05 4800 / 1.2) = 14.1
    assert rng.asked == [(0.75, 1.33), (14, 60 + 1), (60 - 40,), (80 - 48,)]
    rng = Given(1.0, 12, 0, 0)  # too wide at full height: the tallest whose width fits
    inception_box(30, 60, 0.05, rng)
    assert rng.asked[1] == (round(math.sqrt(0.05 * 1800)), 30 + 1)
    rng = Given(1.3, 10, 0, 0)
    inception_box(30, 60, 0.05, rng)
    assert rng.asked[1][1] - 1 == 23  # round(23 x 1.3) is 30, of 24 it is 31


def test_an_inception_box_that_misses_the_area_by_rounding_gets_one_more_row():
    rng = Given(0.75, 8, 0, 0)  # 8 rows of 6 columns are 48 of the 50 pixels needed; 9 rows of 7 are enough
    assert inception_box(100, 10, 0.05, rng) == (0, 0, 7, 9)


def test_an_inception_box_of_the_whole_picture_draws_no_place_and_a_hundred_failures_take_it_all():
    rng = Given(1.0, 20)
    assert inception_box(20, 20, 1.0, rng) == (0, 0, 20, 20)
    rng = Given(*[1.33, 1] * 100)
    assert inception_box(1, 1000, 0.9, rng) == (0, 0, 1, 1000)
    assert len(rng.asked) == 200


def test_a_box_of_uniform_area_is_torchvisions_for_given_draws():
    rng = Given(0.5, math.log(4 / 3), 5, 6)
    columns, rows = round(math.sqrt(0.5 * 4800 * 4 / 3)), round(math.sqrt(0.5 * 4800 * 3 / 4))
    assert uniform_area_box(80, 60, 0.08, rng) == (5, 6, 5 + columns, 6 + rows)
    assert rng.asked[:2] == [(0.08, 1.0), (pytest.approx(math.log(3 / 4)), pytest.approx(math.log(4 / 3)))]
    assert rng.asked[2:] == [(80 - columns + 1,), (60 - rows + 1,)]


@pytest.mark.parametrize(
    ("size", "box"), [((90, 30), (25, 0, 65, 30)), ((30, 90), (0, 25, 30, 65)), ((8, 8), (0, 0, 8, 8))]
)
def test_ten_failures_take_the_middle_as_torchvision_does(size, box):
    rng = Given(*[4.0, 0.0] * 10)  # four times the area fits nowhere
    assert uniform_area_box(*size, 0.08, rng) == box
    assert len(rng.asked) == 20


def test_an_erased_box_is_timms_for_given_draws():
    rng = Given(0.1, math.log(2.0), 5, 6)
    rows, columns = round(math.sqrt(0.1 * 4800 * 2)), round(math.sqrt(0.1 * 4800 / 2))
    assert erased_box(60, 80, rng) == (5, 6, rows, columns)
    assert rng.asked[:2] == [(0.02, 1 / 3), (pytest.approx(math.log(0.3)), pytest.approx(-math.log(0.3)))]
    assert rng.asked[2:] == [(60 - rows + 1,), (80 - columns + 1,)]
    for height, width in ((16, 16), (16, 32), (32, 16)):  # 16 x 16 is as high or as wide as the picture, ten times
        rng = Given(*[256 / (height * width), 0.0] * 10)
        assert erased_box(height, width, rng) is None
        assert len(rng.asked) == 20


def test_an_erased_box_has_at_least_one_row_and_one_column():
    thin = math.log(0.3)
    assert erased_box(4, 40, Given(0.02, thin, 2, 5)) == (2, 5, 1, 3)  # 3.2 pixels, sqrt(0.96) x sqrt(10.7)
    assert erased_box(40, 4, Given(0.02, -thin, 5, 2)) == (5, 2, 3, 1)
    rng = Given(0.02, thin, 0.3, 0.0, 0, 0)  # 0.7 pixels are less than half a row; the next draw is taken
    assert erased_box(4, 9, rng) == (0, 0, 3, 3)


@pytest.mark.parametrize(("drawn", "level"), [(-3.0, 0.0), (0.0, 0.0), (9.0, 0.9), (12.0, 1.0)])
def test_a_magnitude_drawn_below_nothing_is_nothing_and_above_all_is_all(drawn, level, monkeypatch):
    class Normal(Given):
        def normal(self, mean, deviation):
            assert (mean, deviation) == (9.0, 0.5)
            return drawn

        def integers(self, most, size):
            return [0] * size

    seen = []
    monkeypatch.setattr(pillow_operations, "applied", lambda name, image, level, *rest: seen.append(level) or image)
    how = RandAugment(2, 9.0, "timm", 1.0, 0.5)
    randaugmented(Image.new("RGB", (4, 4)), how, "bicubic", Normal(0.5, 0.5))
    assert seen == [level, level]


# -- Pieces of an enlarged picture -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("crop", "shape", "larger"),
    [
        ("square-crop", (50, 30), (14, 18)),  # 12 x 16 by 8 / 7, rounded; the shape is not kept
        ("shorter-crop", (50, 30), (30, 18)),  # 16 x 8 / 7 / 30 of both sides
        ("shorter-crop", (30, 60), (14, 27)),  # 12 x 8 / 7 / 30 of both sides
    ],
)
def test_a_piece_is_cut_from_the_enlarged_picture_at_any_place_equally(crop, shape, larger):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8))
    how = Augmentation(crop=crop, flip=False, enlarged=8 / 7)
    whole = np.asarray(resized(image, larger, how.interpolation, antialias=how.antialias)).transpose(2, 0, 1)
    rows, columns = larger[0] - 12 + 1, larger[1] - 16 + 1
    seen = Counter()
    for number in range(300):
        again = draws(0, 0, str(number))
        upper, left = int(again.integers(rows)), int(again.integers(columns))
        pixels = training_pixels(image, (12, 16), how, draws(0, 0, str(number)))
        assert np.array_equal(pixels, whole[:, upper : upper + 12, left : left + 16])
        seen[upper, left] += 1
    assert {upper for upper, _ in seen} == set(range(rows))
    assert {left for _, left in seen} == set(range(columns))


def test_nothing_is_drawn_for_what_is_switched_off():
    """So that adding a setting later does not change earlier runs."""
    rng = draws(0, 0, "a")
    off = Augmentation(crop="none", flip=False, erasing=Erasing(0.0))
    training_pixels(Image.new("RGB", (4, 4)), (4, 4), off, rng)
    assert rng.random() == draws(0, 0, "a").random()
