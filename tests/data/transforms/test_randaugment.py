"""RandAugment, colour jitter and erasing equal plain loops, Pillow, timm and torchvision; draws repeat anywhere."""

import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from vitlab.data.transforms import pillow_operations, tensorflow_operations
from vitlab.data.transforms import tensorflow_operations as tf
from vitlab.data.transforms.augmentation import draws, training_pixels
from vitlab.data.transforms.randaugment import erased, erased_box, randaugmented
from vitlab.spec.pixels import Augmentation, Erasing, RandAugment

FILL = (10, 128, 200)
MODERN = Augmentation(
    randaugment=RandAugment(2, 9, "timm", 0.5, 0.5), colour_jitter=0.3, erasing=Erasing(0.5), repeats=3
)


def pixels(height=11, width=9, seed=0, low=0, high=256):
    return np.random.default_rng(seed).integers(low, high, (height, width, 3), dtype=np.uint8)


def by_loop(old, change):
    """A picture made pixel by pixel: `change` gets row, column and channel."""
    new = np.zeros_like(old)
    for place in np.ndindex(old.shape):
        new[place] = change(*place)
    return new


# -- TensorFlow's --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_what_pillow_does_alike_is_pillows(seed):
    x = pixels(40, 50, seed, low=seed * 20, high=256 - seed * 30)
    picture = Image.fromarray(x)
    assert np.array_equal(tf.equalize(x), np.asarray(ImageOps.equalize(picture)))
    assert np.array_equal(tf.OPERATIONS["Invert"].apply(x, 0, FILL), np.asarray(ImageOps.invert(picture)))
    for bits in range(1, 9):
        assert np.array_equal(tf.posterize(x, bits), np.asarray(ImageOps.posterize(picture, bits)))
    for threshold in (0, 1, 100, 255, 256):
        assert np.array_equal(tf.solarize(x, threshold), np.asarray(ImageOps.solarize(picture, threshold)))


def test_zero_bits_keep_one_because_tensorflow_shifts_by_seven_at_most():
    assert set(np.unique(tf.posterize(pixels(), 0))) == {0, 128}
    assert np.array_equal(tf.posterize(pixels(), 12), pixels())  # magnitude 30


def test_autocontrast_stretches_each_channel_and_cuts_off():
    x = pixels(low=40, high=200)
    x[..., 2] = 77

    def stretched(row, column, channel):
        low, high = int(x[..., channel].min()), int(x[..., channel].max())
        if high == low:
            return x[row, column, channel]
        scale = np.float32(255) / np.float32(high - low)
        return int(np.clip(np.float32(x[row, column, channel]) * scale - np.float32(low) * scale, 0, 255))

    assert np.array_equal(tf.autocontrast(x), by_loop(x, stretched))
    assert tf.autocontrast(x)[..., 0].min() == 0
    assert abs(tf.autocontrast(x).astype(int) - np.asarray(ImageOps.autocontrast(Image.fromarray(x)))).max() <= 1


def test_solarize_add_brightens_the_darker_half():
    x = pixels()
    for addition in (70, 200):  # the second brings values beyond white

        def brighter(*place, addition=addition):
            return min(int(x[place]) + addition, 255) if x[place] < 128 else x[place]

        expected = by_loop(x, brighter)
        assert np.array_equal(tf.solarize_add(x, addition), expected)


def grey(x, row, column):
    red, green, blue = (np.float32(v) * np.float32(1 / 255) for v in x[row, column])
    whole = red * np.float32(0.2989) + green * np.float32(0.587) + blue * np.float32(0.114)
    return int(whole * np.float32(255.5))


def smooth(x, row, column, channel):
    if row in (0, len(x) - 1) or column in (0, x.shape[1] - 1):
        return int(x[row, column, channel])
    window = x[row - 1 : row + 2, column - 1 : column + 2, channel].astype(int)
    return int((window.sum() + 4 * window[1, 1]) / 13)


@pytest.mark.parametrize("factor", [0.1, 0.5, 1.0, 1.72, 2.8, 3.7])
def test_enhancements_blend_with_what_they_enhance(factor):
    x = pixels()
    counts = [0] * 256
    for row, column in np.ndindex(x.shape[:2]):
        counts[grey(x, row, column)] += 1
    mean = min(int(sum(counts) / 256), 255)  # as big_vision has it
    degenerate = {
        tf.colour: lambda row, column, channel: grey(x, row, column),
        tf.contrast: lambda row, column, channel: mean,
        tf.brightness: lambda row, column, channel: 0,
        tf.sharpness: lambda row, column, channel: smooth(x, row, column, channel),
    }
    for operation, start in degenerate.items():

        def blended(*place, start=start):
            first = np.float32(start(*place))
            return int(np.clip(first + np.float32(factor) * (np.float32(x[place]) - first), 0, 255))

        found = operation(x, factor)
        assert np.array_equal(found, by_loop(x, blended)), operation.__name__
        if factor == 1:
            assert np.array_equal(found, x)


@pytest.mark.parametrize(("side", "level"), [(16, 1), (224, 196), (256, 255), (384, 255)])
def test_contrast_blends_with_the_number_of_pixels_as_big_vision_does(side, level):
    dark = np.full((side, side, 3), 7, dtype=np.uint8)
    assert np.unique(tf.contrast(dark, 0.0)).tolist() == [level]
    assert np.array_equal(tf.contrast(dark, 1.0), dark)


def nearest(value):
    return math.floor(value + 0.5) if value >= 0 else math.ceil(value - 0.5)


def test_geometry_takes_the_nearest_pixel_and_fills_the_rest():
    x = pixels(12, 9)
    angle = math.radians(-25.0)
    middle_x, middle_y = 8 / 2, 11 / 2

    def turned(column, row):  # about the centre: the same as TensorFlow's offsets
        right, down = column - middle_x, row - middle_y
        back = right * math.cos(angle) - down * math.sin(angle), right * math.sin(angle) + down * math.cos(angle)
        return back[0] + middle_x, back[1] + middle_y

    cases = {
        "shear_x": (tf.OPERATIONS["ShearX"].apply(x, 0.27, FILL), lambda column, row: (column + 0.27 * row, row)),
        "shear_y": (tf.OPERATIONS["ShearY"].apply(x, -0.31, FILL), lambda column, row: (column, row - 0.31 * column)),
        "translate_x": (tf.OPERATIONS["TranslateX"].apply(x, 3.6, FILL), lambda column, row: (column + 3.6, row)),
        "translate_y": (tf.OPERATIONS["TranslateY"].apply(x, -4.2, FILL), lambda column, row: (column, row - 4.2)),
        "rotate": (tf.rotate(x, -25.0, FILL), turned),
    }
    for name, (found, source) in cases.items():

        def moved(row, column, channel, source=source):
            from_column, from_row = map(nearest, source(column, row))
            inside = 0 <= from_row < 12 and 0 <= from_column < 9
            return x[from_row, from_column, channel] if inside else FILL[channel]

        assert np.array_equal(found, by_loop(x, moved)), name
    assert np.array_equal(tf.rotate(x, 0.0, FILL), x)


@pytest.mark.parametrize("centre", [(0, 0), (5, 4), (10, 8), (3, 8)])
def test_cutout_is_a_square_around_its_centre(centre):
    x = pixels()

    def painted(row, column, channel):
        is_in = centre[0] - 3 <= row < centre[0] + 3 and centre[1] - 3 <= column < centre[1] + 3
        return FILL[channel] if is_in else x[row, column, channel]

    assert np.array_equal(tf.cutout(x, 3, FILL, centre), by_loop(x, painted))


# magnitude: what section 16 of the facts says each operation is given
AMOUNTS = {
    "Rotate": {0: 0, 10: 30, 15: 45},
    "Posterize": {0: 0, 10: 4, 15: 6, 20: 8},
    "Solarize": {0: 0, 10: 256, 15: 384},
    "SolarizeAdd": {0: 0, 10: 110, 15: 165},
    "Color": {0: 0.1, 10: 1.9, 20: 3.7},
    "Contrast": {0: 0.1, 10: 1.9, 20: 3.7},
    "Brightness": {0: 0.1, 10: 1.9, 20: 3.7},
    "Sharpness": {0: 0.1, 10: 1.9, 20: 3.7},
    "ShearX": {0: 0, 10: 0.3, 20: 0.6},
    "ShearY": {0: 0, 10: 0.3, 20: 0.6},
    "TranslateX": {0: 0, 10: 100, 15: 150},
    "TranslateY": {0: 0, 10: 100, 15: 150},
    "Cutout": {0: 0, 10: 40, 15: 60},
}


def test_magnitudes_become_tensorflows_amounts():
    for name, amounts in AMOUNTS.items():
        for magnitude, amount in amounts.items():
            assert tf.OPERATIONS[name].amount(magnitude / 10) == pytest.approx(amount), name
    assert set(tf.OPERATIONS) == set(AMOUNTS) | {"AutoContrast", "Equalize", "Invert"}
    assert {name for name, operation in tf.OPERATIONS.items() if operation.has_sign} == {
        *("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
    }


def test_operations_signs_and_places_are_drawn_evenly(monkeypatch):
    seen, signs = Counter(), Counter()

    def note(name, x, level, fill, rng):
        seen[name] += 1
        return real(name, x, level, fill, rng)

    real = tensorflow_operations.applied
    monkeypatch.setattr(tensorflow_operations, "applied", note)
    picture = Image.fromarray(pixels(4, 4))
    for sample in range(800):
        randaugmented(picture, RandAugment(2, 10), "bilinear", draws(0, 0, str(sample)))
    assert len(seen) == 16
    assert seen.total() == 1600
    assert max(abs(count - 100) for count in seen.values()) < 40  # 4 deviations
    for sample in range(400):
        x = pixels(1, 9)
        signs[bool((tf.applied("TranslateX", x, 0.01, FILL, draws(0, 1, str(sample)))[0, -1] == FILL).all())] += 1
    assert 150 < signs[True] < 250


# -- timm's ----------------------------------------------------------------------------------------

OURS_TO_TIMM = {
    **{name: name for name in ("AutoContrast", "Equalize", "Invert", "Rotate", "SolarizeAdd", "ShearX", "ShearY")},
    **{name: f"{name}Increasing" for name in ("Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness")},
    **{name: f"{name}Rel" for name in ("TranslateX", "TranslateY")},
}


@pytest.fixture
def timm_augment():
    pytest.importorskip("peers", reason="the peer libraries are not installed", exc_type=ImportError)
    from timm.data import auto_augment

    return auto_augment


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_operations_of_the_timm_flavour_are_timms(timm_augment, monkeypatch, interpolation):
    """At several levels and with both signs, byte for byte."""
    how = Image.Resampling[interpolation.upper()]
    picture = Image.fromarray(pixels(32, 24))
    assert sorted(OURS_TO_TIMM.values()) == sorted(timm_augment._RAND_INCREASING_TRANSFORMS)
    assert list(pillow_operations.OPERATIONS) == [
        next(own for own, theirs in OURS_TO_TIMM.items() if theirs == name)
        for name in timm_augment._RAND_INCREASING_TRANSFORMS
    ]
    hparams = {"img_mean": FILL, "interpolation": how}
    for own, theirs in OURS_TO_TIMM.items():
        for magnitude in (0.0, 2.4, 9.0, 9.7, 10.0):
            if (own, magnitude) == ("Posterize", 10.0):  # 0 bits, at which timm stops with newer Pillows
                assert set(pillow_operations.posterize(picture, 0).tobytes()) == {0}
                continue
            for is_negative in (False, True):
                monkeypatch.setattr(random, "random", lambda is_negative=is_negative: 0.9 if is_negative else 0.1)
                expected = timm_augment.AugmentOp(theirs, prob=1.0, magnitude=magnitude, hparams=hparams)(picture)
                operation = pillow_operations.OPERATIONS[own]
                amount = operation.amount(magnitude / 10) * (-1 if is_negative and operation.has_sign else 1)
                assert operation.apply(picture, amount, FILL, how).tobytes() == expected.tobytes(), (own, magnitude)


def test_timms_words_for_deit_mean_our_fields(timm_augment):
    parsed = timm_augment.rand_augment_transform("rand-m9-mstd0.5-inc1", {"img_mean": (124, 116, 104)})
    assert parsed.num_layers == 2
    assert {(op.magnitude, op.magnitude_std, op.prob, op.magnitude_max) for op in parsed.ops} == {(9, 0.5, 0.5, None)}


def test_the_magnitude_varies_and_is_cut_at_ten(monkeypatch):
    levels = []
    monkeypatch.setattr(pillow_operations, "applied", lambda name, image, level, *rest: levels.append(level) or image)
    for sample in range(1000):
        randaugmented(Image.new("RGB", (4, 4)), MODERN.randaugment, "bicubic", draws(0, 0, str(sample)))
    assert 900 < len(levels) < 1100  # half of 2 x 1000
    assert np.mean(np.array(levels) == 1.0) == pytest.approx(0.023, abs=0.02)  # two deviations above 9
    assert np.median(levels) == pytest.approx(0.9, abs=0.01)
    assert np.quantile(levels, 0.16) == pytest.approx(0.85, abs=0.015)


def test_colour_jitter_is_torchvisions_with_the_same_factors():
    peers = pytest.importorskip("peers", reason="the peer libraries are not installed", exc_type=ImportError)
    adjust = peers.torchvision.transforms.functional
    picture = Image.fromarray(pixels(20, 20))
    kinds = (adjust.adjust_brightness, adjust.adjust_contrast, adjust.adjust_saturation)
    orders = set()
    for sample in range(20):
        again = draws(0, 0, str(sample))
        factors, order = again.uniform(0.7, 1.3, 3), again.permutation(3)
        orders.add(tuple(order))
        expected = picture
        for number in order:
            expected = kinds[number](expected, factors[number])
        found = pillow_operations.jittered(picture, 0.3, draws(0, 0, str(sample)))
        assert found.tobytes() == expected.tobytes()
    assert len(orders) == 6


# -- Erasing -----------------------------------------------------------------------------------------


def test_erasing_paints_normal_noise_into_one_box():
    how = Erasing(1.0, mean=(0.4, 0.5, 0.6), std=(0.1, 0.2, 0.3))
    old = torch.from_numpy(pixels(20, 30)).permute(2, 0, 1)
    for sample in range(30):
        again = draws(0, 0, str(sample))
        assert again.random() < 1
        top, left, rows, columns = erased_box(20, 30, again)
        noise = again.normal(size=(3, rows, columns))
        expected = old.clone()
        for channel, row, column in np.ndindex(3, rows, columns):
            value = 255 * (how.mean[channel] + how.std[channel] * noise[channel, row, column])
            expected[channel, top + row, left + column] = min(max(round(value), 0), 255)
        assert torch.equal(erased(old, how, draws(0, 0, str(sample))), expected)
    assert torch.equal(old, torch.from_numpy(pixels(20, 30)).permute(2, 0, 1))  # the original is not touched


def test_boxes_are_spread_as_timms(timm_augment, monkeypatch):
    """The same areas, aspects and shares of pictures, by quantiles."""
    from timm.data.random_erasing import RandomErasing

    theirs, state = [], random.getstate()
    random.seed(0)
    erase = RandomErasing(probability=1.0, mode="const", device="cpu")
    for _ in range(2000):
        rows, columns = (erase(torch.ones(1, 64, 96)) == 0)[0].nonzero().T
        theirs.append((int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1, int(rows.min())))
    random.setstate(state)
    boxes = [erased_box(64, 96, draws(0, 0, str(sample))) for sample in range(2000)]
    ours = [(rows, columns, top) for top, _, rows, columns in boxes]
    for measure in (lambda r, c, t: r * c, lambda r, c, t: r / c, lambda r, c, t: t):
        found, expected = (np.array([measure(*box) for box in some]) for some in (ours, theirs))
        for quantile in (0.1, 0.3, 0.5, 0.7, 0.9):
            low, high = np.quantile(expected, [quantile - 0.05, quantile + 0.05])
            assert low <= np.quantile(found, quantile) <= high
    white = torch.full((3, 32, 32), 255, dtype=torch.uint8)
    changed = [not torch.equal(white, erased(white, Erasing(0.25), draws(0, 0, str(k)))) for k in range(800)]
    assert 150 < sum(changed) < 250


# -- Draws ---------------------------------------------------------------------------------------------


def test_a_picture_depends_on_seed_epoch_sample_and_repeat_alone():
    picture = Image.fromarray(pixels(24, 24))
    how = Augmentation(randaugment=RandAugment(2, 15), colour_jitter=0.3, erasing=Erasing(0.9))

    def made(*key):
        random.seed(1)
        return training_pixels(picture, (16, 16), how, draws(*key))

    first = made(3, 1, "a")
    np.random.default_rng().normal(size=10)
    assert torch.equal(made(3, 1, "a"), first)
    assert torch.equal(made(3, 1, "a", 0), first)
    others = [made(4, 1, "a"), made(3, 2, "a"), made(3, 1, "b"), made(3, 1, "a", 1), made(3, 1, "a", 2)]
    assert not any(torch.equal(other, first) for other in others)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"randaugment": {"layers": 17}}, r"layers 17 is outside 0\.\.16"),
        ({"randaugment": {"layers": 2}}, r"layers 2 needs randaugment\.magnitude.* 10 to 20 .* 9 with timm"),
        ({"randaugment": {"magnitude": 11, "flavour": "timm"}}, r"magnitude 11 is outside \[0, 10\]"),
        ({"randaugment": {"fill": (0, 0, 256)}}, "has parts outside 0..255"),
        ({"erasing": {"probability": 1.5}}, r"probability 1.5 is outside \[0, 1\]"),
        ({"colour_jitter": 2.0}, r"colour_jitter 2.0 is outside \[0, 1\]"),
        ({"repeats": 0}, r"repeats 0 is outside 1\.\.64"),
    ],
)
def test_impossible_augmentations_say_what_is_allowed(change, message):
    kinds = {"randaugment": RandAugment, "erasing": Erasing}
    with pytest.raises(ValueError, match=message):
        Augmentation(**{name: kinds[name](**v) if name in kinds else v for name, v in change.items()})
