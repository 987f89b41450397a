"""Letters drawn from matplotlib's fonts: the same pixels for a number, every letter legible, no digit among them."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from string import ascii_letters, digits

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

matplotlib = pytest.importorskip("matplotlib", reason="letters are drawn from matplotlib's fonts")

from vitlab.data.fingerprint import fingerprint  # noqa: E402
from vitlab.data.sources.catalogue import open_source  # noqa: E402
from vitlab.data.sources.drawn import letters  # noqa: E402 - after the check
from vitlab.data.sources.drawn.letters import FONTS, LETTERS, LOOK_ALIKES, LetterSource  # noqa: E402

GOLDEN = {  # (size, seed, index): the start of the SHA-256 of its pixels
    (16, 0, 0): "1c011ded6055d192",
    (32, 5, 123_456_789_012): "1e3c5720968ddd3f",
    (224, 0, 471): "8a290546e410bb77",
}


def digest(sample):
    return hashlib.sha256(sample.data.tobytes()).hexdigest()


@pytest.mark.parametrize(("size", "seed", "index"), GOLDEN)
def test_pixels_are_those_of_the_first_release(size, seed, index):
    source = LetterSource(size=size, seed=seed, images=10**12)
    assert digest(source.item(index))[:16] == GOLDEN[size, seed, index]


def test_another_process_without_vector_instructions_draws_the_same_bytes():
    """Also where the user has other settings of matplotlib's text."""
    code = (
        "import hashlib, matplotlib\n"
        "matplotlib.rcParams.update({'text.hinting_factor': 1, 'text.hinting': 'none', 'font.family': 'serif'})\n"
        "from vitlab.data.sources.drawn.letters import LetterSource\n"
        "every = hashlib.sha256()\n"
        "for i in (60, 3, 900): every.update(LetterSource(size=48).item(i).data)\n"
        "print(every.hexdigest())"
    )
    here = hashlib.sha256()
    for i in (60, 3, 900):
        here.update(LetterSource(size=48).item(i).data)
    vectors = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    plain = os.environ | {"NPY_DISABLE_CPU_FEATURES": " ".join(vectors), "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == here.hexdigest()


def test_no_class_is_a_digit_or_looks_like_one():
    assert not set(LETTERS) & set(digits)
    assert not set(LETTERS) & set("OoIlZzSsBbgqDQiG")
    assert set(LOOK_ALIKES) <= set(digits)
    assert set(LETTERS) < set(ascii_letters)
    assert LetterSource().class_names == tuple(LETTERS)
    assert len(LETTERS) == 29


def test_every_glyph_is_that_of_its_font():
    """Inside and outside are where Pillow, which has a rasteriser of its own, puts ink."""
    for font in FONTS:
        for letter in "AReyj":
            inside = letters._distances(font, letter) < 0
            assert overlap(inside, by_pillow(font, letter)) > 0.8, (font, letter)


def test_distances_are_those_to_the_nearest_place_of_the_other_side():
    table = letters._distances("DejaVuSans", "H")
    step = 2 * letters.REACH / (letters.CELLS - 1)
    places = np.stack(np.mgrid[: letters.CELLS, : letters.CELLS], -1).reshape(-1, 2) * step
    inside = (table < 0).ravel()
    for own, other in ((inside, ~inside), (~inside, inside)):
        gaps = np.sqrt(((places[own][:, None] - places[other][None]) ** 2).sum(-1)).min(1)
        found = np.abs(table.ravel()[own])
        assert (found <= gaps + 1e-4).all()  # the outline lies between the two sides
        assert (found >= gaps - 1.5 * step).all()


def test_images_of_a_letter_are_alike_and_differ_from_other_letters():
    """The nearest class mean of plain pixels finds the letter, blind as it is to slant and weight."""
    source = LetterSource(images=29 * 60, size=16)
    pixels = np.array([source.item(i).data[..., 0].ravel() for i in range(len(source))], float)
    pixels = (pixels - pixels.mean(1, keepdims=True)) / pixels.std(1, keepdims=True)
    means = pixels[: 29 * 40].reshape(40, 29, -1).mean(0)
    nearest = (pixels[29 * 40 :] @ means.T).argmax(1)
    assert (nearest == np.tile(np.arange(29), 20)).mean() > 0.5  # chance is 0.03


def test_letters_are_light_on_dark_and_grey():
    source = LetterSource(images=58, size=32)
    for number in range(58):
        pixels = source.item(number).data
        assert (pixels[..., 0] == pixels[..., 1]).all()
        assert (pixels[..., 0] == pixels[..., 2]).all()
        assert pixels.min() < 32
        assert pixels.max() > 110


def test_font_and_weight_and_place_differ_from_image_to_image():
    source = LetterSource(classes=1, images=200, size=32)
    ink = np.array([source.item(i).data[..., 0] > 96 for i in range(200)])
    assert ink.mean((1, 2)).std() > 0.03
    assert len({tuple(np.argwhere(one)[0]) for one in ink}) > 20


def test_more_classes_than_letters_is_an_error_that_lists_them():
    with pytest.raises(ValueError, match=r"classes is 30; it must be a whole number from 1 to 29, the letters ACEFHJ"):
        LetterSource(classes=30)


def test_the_fingerprint_knows_seed_and_size_and_fonts(monkeypatch):
    specs = ("letters?images=50", "letters?images=50&seed=1", "letters?images=50&size=32")
    found = [fingerprint(open_source(spec)) for spec in specs]
    assert len(set(found)) == len(specs)
    assert found[0] == fingerprint(open_source("letters?images=50"))
    fonts = dict.fromkeys(LETTERS, np.zeros((1, 2, 2), np.int64))
    monkeypatch.setattr(letters, "_outlines", lambda font: fonts)
    letters._outlines_hash.cache_clear()
    assert fingerprint(open_source("letters?images=50")) != found[0]
    letters._outlines_hash.cache_clear()


def test_letters_without_matplotlib_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"letters need matplotlib: pip install 'vitlab\[plot\]'"):
        open_source("letters?images=50")


def by_pillow(font, letter):
    """Which cells of the table Pillow fills."""
    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
    image = Image.new("L", (900, 900))
    ImageDraw.Draw(image).text((250, 250), letter, fill=255, font=ImageFont.truetype(file, 400))
    left, top, right, bottom = image.getbbox()
    half, (x, y) = max(right - left, bottom - top) / 2, ((left + right) / 2, (top + bottom) / 2)
    way = np.linspace(-letters.REACH, letters.REACH, letters.CELLS) * half
    filled = np.asarray(image) > 127
    return filled[np.clip(way + y, 0, 899).astype(int)][:, np.clip(way + x, 0, 899).astype(int)]


def overlap(one, other):
    return (one & other).sum() / (one | other).sum()
