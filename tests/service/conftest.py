"""A small ViT and a small ResNet, and one service that most tests share."""

import numpy as np
import pytest
from PIL import Image

import vitlab
from agreement import randomised
from pictures import jpeg
from servers import Service
from vitlab.models.build import build_from_spec
from vitlab.spec import CONVENTIONS, ResNetSpec, ViTSpec

LIMITS = ("--header-seconds", 2, "--body-seconds", 2, "--max-body", 1_000_000, "--deadline", 60)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """The folder with the models "small" and "plain"; the latter has no attention."""
    folder = tmp_path_factory.mktemp("models")
    spec = ViTSpec(4, 3, 24, 40, 3, (16, 16), 5, head="linear", conventions=CONVENTIONS["timm"])
    vit = randomised(build_from_spec(spec))
    vit.class_names = ("ant", "bee", "cat", "dog", "evil\x1b[2J<script>")
    vitlab.save_model(vit, folder / "small")
    vitlab.save_model(randomised(build_from_spec(ResNetSpec((1, 1), 16, (32, 32), 3))), folder / "plain")
    return folder


@pytest.fixture(scope="session")
def service(models):
    """Both models, with limits that tests reach soon."""
    pytest.importorskip("fastapi", reason="pip install 'vitlab[serve]'")
    pytest.importorskip("uvicorn", reason="pip install 'vitlab[serve]'")
    with Service(models / "small", models / "plain", *LIMITS) as started:
        yield started
        assert started.process.poll() is None


@pytest.fixture(scope="session")
def files():
    """JPEG files of noise, of different sizes."""
    generator = np.random.default_rng(0)
    sizes = generator.integers(16, 64, (40, 2))
    return [jpeg(Image.fromarray(generator.integers(0, 256, (*size, 3), np.uint8))) for size in sizes]
