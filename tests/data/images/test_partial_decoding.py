"""A JPEG of which only a part is decoded has the pixels and the refusals of the whole one."""

import pickle
import random

import numpy as np
import pytest
from PIL import Image

from pictures import photo, saved
from vitlab.data.fingerprint import fingerprint
from vitlab.data.images.gate import open_image, read_image
from vitlab.data.images.refusals import BadImage
from vitlab.data.loading.batches import order_of, training_batches
from vitlab.data.source import Wrapped
from vitlab.data.sources.catalogue import open_source, with_decode
from vitlab.data.transforms.augmentation import draws, training_pixels
from vitlab.data.transforms.evaluation import evaluation_pixels
from vitlab.runs.training.data import named_sources
from vitlab.spec.pixels import Augmentation, Preprocessing, RandAugment

SIZE = (24, 32)
WAYS = (
    {"quality": 90},
    {"quality": 50, "subsampling": 0},
    {"quality": 95, "subsampling": 1},
    {"quality": 80, "progressive": True},
    {"quality": 80, "restart_marker_blocks": 3},
)


def textured(width=211, height=173, mode="RGB"):
    noise = np.random.default_rng(0).integers(0, 255, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def outcome(work):
    try:
        return np.asarray(work())
    except BadImage as bad:
        return str(bad.reason)


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_rows_above_any_row_are_those_of_the_whole_picture(how, mode):
    data = saved(textured(mode=mode), "JPEG", **how)
    whole = np.asarray(read_image(data).image)
    for bottom in (1, 7, 8, 9, 16, 17, 100, 172, 173):
        image, box = open_image(data).part((3, 0, 90, bottom), SIZE)
        assert box == (3, 0, 90, bottom)
        assert np.array_equal(np.asarray(image)[:bottom], whole[:bottom])


def test_only_the_rows_that_are_needed_are_decoded():
    image, _ = open_image(saved(textured(), "JPEG")).part((0, 0, 50, 60), SIZE)
    assert image.getbbox() == (0, 0, 211, 60)  # black below


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_pictures_are_cropped_after_they_are_upright(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(textured(), "JPEG", exif=exif)
    whole = read_image(data).image
    opened = open_image(data)
    assert opened.size == whole.size
    image, box = opened.part((5, 6, 70, 80), SIZE)
    assert image.crop(box).tobytes() == whole.crop((5, 6, 70, 80)).tobytes()


def test_a_black_picture_is_decoded():
    data = saved(Image.new("RGB", (64, 64)), "JPEG")
    image, box = open_image(data).part((0, 0, 64, 30), SIZE)
    assert np.asarray(image.crop(box)).max() == 0


def test_damaged_files_are_refused_or_decoded_as_when_the_whole_picture_is_decoded():
    dice = random.Random(0)
    refused = partial = 0
    for number in range(600):
        data = bytearray(saved(textured(97, 61), "JPEG", **WAYS[number % len(WAYS)]))
        for _ in range(dice.choice((1, 1, 2, 20))):
            data[dice.randrange(len(data))] = dice.choice((dice.randrange(256), 0xFF, 0xD8, 0xDA))
        bottom = dice.randrange(1, 61)
        whole = outcome(lambda data=data: read_image(bytes(data)).image)
        if isinstance(whole, np.ndarray):
            bottom = min(bottom, len(whole))
            whole = whole[:bottom]
        part = outcome(lambda data=data, end=bottom: open_image(bytes(data)).part((0, 0, 1, end), SIZE)[0])
        part = part[:bottom] if isinstance(part, np.ndarray) else part
        assert np.array_equal(part, whole), f"file {number}"
        refused += isinstance(whole, str)
        partial += isinstance(whole, np.ndarray)
    assert refused > 50
    assert partial > 50


HOWS = (
    Augmentation(),
    Augmentation(antialias=True),
    Augmentation(crop="uniform-area", interpolation="bicubic", antialias=True),
    Augmentation(crop="none", interpolation="area"),
    Augmentation(crop="square-crop"),
    Augmentation(crop="shorter-crop", antialias=True),
    Augmentation(randaugment=RandAugment(2, 10)),
    Augmentation(colour_jitter=0.3),
)


@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize("shape", [(211, 173), (90, 200)], ids=str)
def test_training_pixels_of_a_file_are_those_of_its_decoded_picture(how, shape):
    data = saved(textured(*shape), "JPEG")
    for number in range(8):
        expected = training_pixels(read_image(data).image, SIZE, how, draws(0, number, "a"))
        assert np.array_equal(training_pixels(open_image(data), SIZE, how, draws(0, number, "a")), expected)


@pytest.mark.parametrize("how", [Preprocessing(), Preprocessing("shorter", 0.9, "bicubic", antialias=True)], ids=str)
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_evaluation_pixels_of_a_file_are_those_of_its_decoded_picture(how, format):
    data = saved(photo(), format)
    expected = evaluation_pixels(read_image(data).image, SIZE, how)
    assert np.array_equal(evaluation_pixels(open_image(data), SIZE, how), expected)


# -- Fast decoding ---------------------------------------------------------------------------------


def test_fast_decoding_reduces_a_picture_only_while_it_stays_larger_than_the_result():
    data = saved(textured(640, 480), "JPEG")
    for box, scale in (
        ((0, 0, 640, 480), 8),  # 80 x 60 for 32 x 24
        ((0, 0, 255, 480), 4),
        ((10, 20, 74, 68), 2),
        ((0, 0, 63, 480), 1),
        ((0, 0, 640, 47), 1),
    ):
        image, inside = open_image(data, decoding="fast").part(box, SIZE)
        assert inside == tuple(side / scale for side in box)
        assert image.width == -(-640 // scale)


def test_fast_decoding_is_near_exact_decoding_and_not_the_same():
    data = saved(photo(640, 480), "JPEG")
    how = Augmentation(antialias=True)
    pairs = [
        [
            training_pixels(open_image(data, decoding=one), SIZE, how, draws(0, n, "a")).int()
            for one in ("exact", "fast")
        ]
        for n in range(8)
    ]
    differences = [(fast - exact).abs().float().mean().item() for exact, fast in pairs]
    assert 0 < max(differences) < 3
    plain = [
        training_pixels(open_image(data, decoding="fast"), SIZE, Augmentation(), draws(0, n, "a")) for n in range(8)
    ]
    assert all(one.shape == (3, *SIZE) for one in plain)


def test_fast_decoding_is_an_option_of_a_spec_with_a_fingerprint_of_its_own(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jpg").write_bytes(saved(photo(640, 480), "JPEG"))
    exact, fast = (open_source(f"folder:{tmp_path}?decode={way}") for way in ("exact", "fast"))
    assert fingerprint(exact) == fingerprint(open_source(f"folder:{tmp_path}")) != fingerprint(fast)
    assert Wrapped(fast).decoding == "fast"
    assert pickle.loads(pickle.dumps(fast)).decoding == "fast"  # noqa: S301 - our own bytes
    pixels = [
        next(training_batches(source, order_of(source), batch=2, size=SIZE, augmentation=Augmentation())).pixels
        for source in (exact, fast)
    ]
    assert not np.array_equal(*pixels)


def test_the_flag_is_for_training_data_and_scores_stay_exact(tmp_path):
    names, _ = named_sources("folder:a", "folder:b", "folder:c", None, "fast")
    assert names == {"data": "folder:a?decode=fast", "validation": "folder:b", "test": "folder:c"}
    assert with_decode("folder:a?split=train", "fast") == "folder:a?split=train&decode=fast"
    assert with_decode("folder:a", "exact") == "folder:a"
    with pytest.raises(ValueError, match="decode has no effect on 'digits', which has no image files"):
        with_decode("digits", "fast")
    with pytest.raises(ValueError, match="decode 'quick' must be exact or fast"):
        open_source(f"folder:{tmp_path}?decode=quick")
