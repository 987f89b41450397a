"""Chromium decodes pictures as the image gate does, without losing a bit of a PNG."""

import base64
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import vitlab.page
from vitlab.data.images.gate import read_image

STATIC = Path(vitlab.page.__file__).parent / "static"
DECODE = """async (name) => {
  const { decode } = await import("./pixels.js");
  const answer = await fetch(name);
  const { width, height, data } = await decode(await answer.blob());
  let text = "";
  for (let i = 0; i < data.length; i += 8192) text += String.fromCharCode(...data.subarray(i, i + 8192));
  return [width, height, btoa(text)];
}"""


def noise(size=(37, 53), channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (*size, channels), dtype=np.uint8)


def smooth(size=(150, 200)):
    rows, columns = np.mgrid[: size[0], : size[1]]
    waves = [np.sin(rows / 17 + phase) * np.cos(columns / 23 - phase) for phase in range(3)]
    return (127.5 + 120 * np.stack(waves, axis=-1)).astype(np.uint8)


def every_alpha():
    """Every value with every alpha, in three different channels."""
    value, alpha = np.meshgrid(np.arange(256), np.arange(256))
    return np.stack([value, 255 - value, value ^ 0x55, alpha], axis=-1).astype(np.uint8)


def palette():
    image = Image.fromarray(noise()).quantize(17)
    file = io.BytesIO()
    image.save(file, "PNG", transparency=3)
    return Image.open(file)


def linear_light():
    """A chunk that asks for a gamma of 1, which neither side applies."""
    found = PngInfo()
    found.add(b"gAMA", (100_000).to_bytes(4, "big"))
    return found


EXACT = {
    "rgb.png": (Image.fromarray(noise()), {}),
    "large.png": (Image.fromarray(noise((700, 900))), {}),
    "grey.png": (Image.fromarray(noise()[..., 0]), {}),
    "one-bit.png": (Image.fromarray(noise()[..., 0] > 127), {}),
    "palette.png": (Image.fromarray(noise()).quantize(17), {}),
    "palette-transparent.png": (palette(), {"transparency": 3}),
    "alpha.png": (Image.fromarray(every_alpha()), {}),
    "grey-alpha.png": (Image.fromarray(every_alpha()[..., [0, 3]]), {}),
    "gamma.png": (Image.fromarray(noise()), {"pnginfo": linear_light()}),
    "turned.png": (Image.fromarray(noise()), {"exif": True}),
    "rgb.bmp": (Image.fromarray(noise()), {}),
    "lossless.webp": (Image.fromarray(noise()), {"lossless": True}),
}


def saved(folder, name, image, options):
    if options.pop("exif", False):
        exif = Image.Exif()
        exif[0x0112] = 6
        options["exif"] = exif
    image.save(folder / name, **options)
    return folder / name


@pytest.fixture
def decoded(page_at, served, tmp_path):
    """A function from a file to its pixels (H, W, 3) as the page decodes them."""
    shutil.copy(STATIC / "pixels.js", tmp_path)
    (tmp_path / "index.html").write_text("<!doctype html><link rel=icon href=data:,>")
    page = page_at(served(tmp_path))

    def decode(path):
        width, height, data = page.evaluate(DECODE, path.name)
        pixels = np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)
        assert (pixels[..., 3] == 255).all()
        return pixels[..., :3]

    decode.page = page
    return decode


def difference(decoded, path):
    expected = np.asarray(read_image(path).image)
    return np.abs(decoded(path).astype(int) - expected)


@pytest.mark.parametrize("name", EXACT)
def test_a_picture_without_losses_is_decoded_to_the_bit(decoded, tmp_path, name):
    image, options = EXACT[name]
    assert difference(decoded, saved(tmp_path, name, image, dict(options))).max() == 0


JPEGS = [{"quality": 90}, {"quality": 75, "progressive": True}, {"subsampling": 0}]


@pytest.mark.parametrize("options", JPEGS, ids=str)
def test_a_jpeg_is_decoded_to_the_bit_as_both_use_the_same_library(decoded, tmp_path, options):
    assert difference(decoded, saved(tmp_path, "smooth.jpg", Image.fromarray(smooth()), dict(options))).max() == 0


def test_what_is_no_picture_is_refused_with_advice(decoded, tmp_path):
    (tmp_path / "text.png").write_text("hello")
    from playwright.sync_api import Error

    with pytest.raises(Error, match="cannot read the file as a picture; give a JPEG, PNG"):
        decoded(tmp_path / "text.png")
