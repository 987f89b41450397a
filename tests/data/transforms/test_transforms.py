"""Pixels as each source's evaluation makes them."""

import numpy as np
import pytest
import torch
from PIL import Image

from vitlab.data.transforms.evaluation import evaluation_pixels, normalised
from vitlab.spec import CONVENTIONS
from vitlab.spec.pixels import Preprocessing


def picture(height, width, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_square_resizing_equals_pillow():
    how = Preprocessing("square", 1.0, "bilinear", antialias=True)
    image = picture(50, 70)
    expected = np.asarray(image.resize((32, 24), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(evaluation_pixels(image, (24, 32), how).numpy(), expected)


@pytest.mark.parametrize(("height", "width"), [(50, 70), (17, 9), (300, 301)])
def test_without_antialiasing_equals_half_pixel_interpolation(height, width):
    how = CONVENTIONS["paper"].preprocessing
    image = picture(height, width)
    pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].float()
    expected = torch.nn.functional.interpolate(pixels, (24, 32), mode="bilinear", align_corners=False, antialias=False)
    assert (evaluation_pixels(image, (24, 32), how).float() - expected[0]).abs().max() <= 0.501


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 333), (224, 224), (100, 120)])
@pytest.mark.parametrize("name", ["timm", "deit", "torchvision"])
def test_shorter_side_and_centre_crop_equal_the_usual_pipeline(height, width, name):
    how = CONVENTIONS[name].preprocessing
    image = picture(height, width)
    side = {0.9: 248, 0.875: 256}[how.fraction]
    short = min(height, width)
    size = (side, int(side * height / short)) if width <= height else (int(side * width / short), side)
    kind = Image.Resampling.BICUBIC if how.interpolation == "bicubic" else Image.Resampling.BILINEAR
    resized = np.asarray(image.resize(size, kind))
    top, left = round((resized.shape[0] - 224) / 2), round((resized.shape[1] - 224) / 2)
    expected = resized[top : top + 224, left : left + 224].transpose(2, 0, 1)
    assert np.array_equal(evaluation_pixels(image, (224, 224), how).numpy(), expected)


def test_normalising_maps_black_and_white_to_minus_one_and_one():
    pixels = torch.tensor([0, 255], dtype=torch.uint8).expand(3, 1, 2)
    assert normalised(pixels, CONVENTIONS["paper"].preprocessing).tolist() == [[[-1.0, 1.0]]] * 3


def test_one_pixel_becomes_a_plain_picture_and_an_absurd_result_is_refused():
    how = CONVENTIONS["timm"].preprocessing
    flat = evaluation_pixels(Image.new("RGB", (1, 1), (9, 8, 7)), (32, 32), how)
    assert flat.unique(dim=2).shape == (3, 32, 1) or flat.flatten(1).unique(dim=1).flatten().tolist() == [9, 8, 7]
    with pytest.raises(ValueError, match="pixels are allowed"):
        evaluation_pixels(Image.new("RGB", (1, 32_000)), (224, 224), how)
