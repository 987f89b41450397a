"""The page prepares pictures as Python does: the same bytes for every convention and size."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import PIL
import pytest
from PIL import Image

import vitlab.page
from vitlab.data.transforms.evaluation import evaluation_pixels
from vitlab.spec import CONVENTIONS
from vitlab.spec.pixels import Preprocessing

STATIC = Path(vitlab.page.__file__).parent / "static"
PREPARE = """
import { prepare } from "%s";
import { readSync, writeSync } from "node:fs";
const parts = [];
for (;;) {
  const part = Buffer.alloc(1 << 20);
  let read = 0;
  try { read = readSync(0, part); } catch (error) { if (error.code === "EAGAIN") continue; if (error.code !== "EOF") throw error; }
  if (!read) break;
  parts.push(part.subarray(0, read));
}
const data = Buffer.concat(parts);
const end = data.indexOf(10);
const cases = JSON.parse(data.subarray(0, end));
let at = end + 1;
for (const { width, height, size, preprocessing } of cases) {
  const rgba = new Uint8ClampedArray(width * height * 4);
  for (let i = 0; i < width * height; i++) {
    rgba.set(data.subarray(at + 3 * i, at + 3 * i + 3), 4 * i);
    rgba[4 * i + 3] = 255;
  }
  at += width * height * 3;
  const result = prepare({ width, height, data: rgba }, { preprocessing, image: size }, size);
  for (let done = 0; done < result.length; ) {
    try { done += writeSync(1, result, done); } catch (error) { if (error.code !== "EAGAIN") throw error; }
  }
}
"""  # noqa: E501
SIZES = [(24, 24), (32, 40), (56, 16)]  # of the model's input
OLD = [(1, 1), (3, 2), (24, 24), (24, 90), (31, 47), (40, 36), (200, 131), (97, 301), (301, 97)]  # of pictures


def picture(size, seed):
    """Noise in one half, which makes weights overshoot, and smooth colours in the other."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
    pixels[:, : size[1] // 2] = np.linspace(0, 255, size[0], dtype=np.uint8)[:, None, None]
    pixels[: size[0] // 3] = pixels[: size[0] // 3] // 128 * 255
    return pixels


def both(node, cases):
    """(what the page computes, what Python computes) for each (pixels, size, preprocessing)."""
    header = []
    for pixels, size, how in cases:
        preprocessing = {**asdict(how), "pillow": PIL.__version__}
        header.append(
            {"width": pixels.shape[1], "height": pixels.shape[0], "size": size, "preprocessing": preprocessing}
        )
    data = json.dumps(header).encode() + b"\n" + b"".join(pixels.tobytes() for pixels, _, _ in cases)
    made = np.frombuffer(node(PREPARE % (STATIC / "pixels.js").as_uri(), data), np.uint8)
    for pixels, size, how in cases:
        expected = evaluation_pixels(Image.fromarray(pixels), size, how).permute(1, 2, 0).numpy()
        yield made[: expected.size].reshape(expected.shape), expected
        made = made[expected.size :]
    assert made.size == 0


def all_cases(how):
    return [(picture(old, seed), size, how) for seed, old in enumerate(OLD) for size in SIZES]


ODD = {
    "a fraction of Python's rounding": Preprocessing("square", 224 / 248, "bicubic", True),
    "half a pixel at the edge": Preprocessing("shorter", 0.83, "bilinear", True),
    "shorter side without antialias": Preprocessing("shorter", 0.7, "bilinear", False),
    "area means of a square": Preprocessing("square", 0.875, "area", False),
    "area means of the shorter side": Preprocessing("shorter", 0.875, "area", False),
}
EXACT = {name: how.preprocessing for name, how in CONVENTIONS.items()} | ODD


@pytest.mark.parametrize("name", EXACT)
def test_every_byte_is_that_of_python(node, name):
    for found, expected in both(node, all_cases(EXACT[name])):
        assert np.array_equal(found, expected)


def test_a_large_photograph_is_the_same(node):
    cases = [
        (picture((1200, 1600), 0), (224, 224), CONVENTIONS[name].preprocessing)
        for name in ("paper", "timm", "hf", "deit")
    ]
    for found, expected in both(node, cases):
        assert np.array_equal(found, expected)


def test_a_picture_of_the_right_size_is_unchanged(node):
    pixels = picture((32, 40), 5)
    for interpolation in ("bilinear", "area"):
        how = replace(CONVENTIONS["paper"].preprocessing, interpolation=interpolation)
        ((found, expected),) = both(node, [(pixels, (32, 40), how)])
        assert np.array_equal(found, pixels)
        assert np.array_equal(expected, pixels)


def test_a_picture_that_becomes_too_large_is_refused(node):
    with pytest.raises(AssertionError, match="too long and narrow"):
        list(both(node, [(picture((1, 40_000), 0), (224, 224), CONVENTIONS["timm"].preprocessing)]))
