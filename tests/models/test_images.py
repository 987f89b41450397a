"""What a model is given in place of images: refused in words before anything is computed, and nothing legal is."""

import numpy as np
import pytest
import torch

import vitlab

WRONG = [
    (np.zeros((1, 3, 16, 16), np.float32), "not ndarray"),
    ([[0.0]], "not list"),
    (None, "not NoneType"),
    (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), "not torch.uint8"),
    (torch.zeros(1, 3, 16, 16, dtype=torch.int64), "not torch.int64"),
    (torch.zeros(1, 3, 16, 16, dtype=torch.float64), "not torch.float64"),
]


@pytest.mark.parametrize(("images", "message"), WRONG)
def test_what_are_no_images_is_said_and_what_makes_some(tiny, images, message):
    for act in (tiny, tiny.features, tiny.tokens):
        with pytest.raises(ValueError, match=rf"images must be .*, {message}.*; vitlab.preprocess\(model, files\)"):
            act(images)


@pytest.mark.parametrize(("images", "message"), WRONG[:5])
def test_explain_says_the_same(tiny, images, message):
    with pytest.raises(ValueError, match=rf"images must be .*, {message}.*; vitlab.preprocess\(model, files\)"):
        vitlab.explain(tiny, images)


def test_images_of_the_models_own_kind_pass(tiny):
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    expected = tiny(images)
    assert tiny.double()(images.double()).dtype == torch.float64
    assert tiny.bfloat16()(images.bfloat16()).dtype == torch.bfloat16
    tiny.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for given in (images, images.bfloat16()):
            assert torch.allclose(tiny(given).float(), expected, atol=0.1)


@pytest.mark.slow
def test_the_check_leaves_tracing_exporting_and_compiling_alone(tiny):
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = tiny(images)
        assert torch.equal(torch.export.export(tiny, (images,)).module()(images), expected)
        compiled = torch.compile(tiny, fullgraph=True, backend="eager")
        assert torch.allclose(compiled(images), expected)
