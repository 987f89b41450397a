"""Small photographs of three classes, and weights of a small ViT for them."""

import numpy as np
import pytest
from PIL import Image

import vitlab
from agreement import randomised
from vitlab.models.build import build_from_spec
from vitlab.spec import ViTSpec

CLASSES = ("ape", "bee", "cat")


@pytest.fixture
def photos(tmp_path):
    for number in range(9):
        path = tmp_path / "photos" / CLASSES[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)
    return tmp_path / "photos"


@pytest.fixture
def weights(tmp_path):
    spec = ViTSpec(patch=4, layers=2, width=24, mlp=40, heads=3, image=(16, 16), classes=3, head="linear")
    model = randomised(build_from_spec(spec))
    model.class_names = CLASSES
    vitlab.save_model(model, tmp_path / "model")
    return tmp_path / "model"
