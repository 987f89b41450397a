"""The preprocessing inside artefacts gives the gate's pixels, for every convention and any size."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from vitlab.artefacts import preprocessing, writing
from vitlab.artefacts.preprocessing import Axis, Preprocess, halves, pillow_weights
from vitlab.data.transforms.evaluation import evaluation_pixels, normalised
from vitlab.data.transforms.resizing import to_tensor
from vitlab.engines.graphs import traced_graph
from vitlab.spec import CONVENTIONS
from vitlab.spec.pixels import Preprocessing

EXACT = [("bilinear", True), ("bicubic", True), ("bilinear", False)]
METHODS = [
    Preprocessing(resize, fraction, *how)
    for resize in ("square", "shorter")
    for fraction in (1.0, 0.9, 0.875)
    for how in EXACT
]
SIZES = [
    (1, 1),
    (1, 9),
    (9, 1),
    (32, 40),
    (31, 41),
    (36, 46),
    (90, 61),
    (61, 90),
    (300, 7),
    (7, 300),
    (130, 40),
    (120, 50),
]


def picture(height, width, seed=0):
    return np.random.default_rng([seed, height, width]).integers(0, 256, (height, width, 3), np.uint8)


def both(pixels, size, how, precision=torch.float64):
    """What the gate makes of a picture, and what the artefact does."""
    expected = evaluation_pixels(Image.fromarray(pixels), size, how)
    return expected.float(), Preprocess(how, size, precision).pixels(torch.from_numpy(pixels)[None])[0]


@pytest.mark.parametrize("how", METHODS, ids=str)
def test_pixels_are_those_of_the_gate(how):
    for height, width in SIZES:
        expected, found = both(picture(height, width), (32, 40), how)
        assert torch.equal(found, expected), (height, width)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 80), st.integers(1, 80), st.sampled_from(METHODS))
@example(400, 200, 32, 40, METHODS[0])  # rows first
@example(232, 132, 32, 32, METHODS[0])  # just not: loses 200 rows and 100 columns
@example(233, 132, 32, 32, METHODS[0])
def test_pixels_are_those_of_the_gate_for_any_size(height, width, rows, columns, how):
    expected, found = both(picture(height, width), (rows, columns), how)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
@pytest.mark.parametrize("times", [40, 64, 100, 150])
def test_pixels_are_those_of_the_gate_for_pictures_that_shrink_much(times, method):
    how, side = Preprocessing("square", 1.0, method, True), 16 * times
    axis = Axis(torch.arange(side), torch.arange(16), torch.tensor(side), torch.tensor(16))
    _, low = halves(pillow_weights(axis, method, torch.float64)).chunk(2)
    largest_sums = np.repeat((low > 0).numpy()[:, :, None], 3, axis=2)  # white where the rest of a weight is positive
    noise = picture(16, side)
    for pixels in (noise, (noise > 127) * np.uint8(255), np.full_like(noise, 255), largest_sums * np.uint8(255)):
        expected, found = both(pixels, (16, 16), how)
        assert torch.equal(found, expected)
        expected, found = both(np.ascontiguousarray(pixels.swapaxes(0, 1)), (16, 16), how)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_the_conventions_of_all_libraries_are_exact_on_a_large_picture(name):
    how = CONVENTIONS[name].preprocessing
    pixels = picture(700, 900)
    expected, found = both(pixels, (224, 224), how)
    assert torch.equal(found, expected)
    inputs = Preprocess(how, (224, 224))(torch.from_numpy(pixels)[None])[0]
    assert torch.equal(inputs, normalised(expected.byte(), how))


def test_weights_in_single_precision_change_hardly_a_pixel():
    """What OpenVINO computes: at most one pixel in a hundred thousand differs, and by one step."""
    wrong = total = 0
    for how in METHODS:
        for height, width in SIZES:
            expected, found = both(picture(height, width), (32, 40), how, torch.float32)
            difference = (found - expected).abs()
            assert difference.max() <= 1
            wrong, total = wrong + int((difference > 0).sum()), total + expected.numel()
    assert wrong <= total / 100_000


def test_weights_computed_plainly_in_single_precision_would_change_more(monkeypatch):
    """The control of the test above."""

    def plain(axis, how, precision):
        scale = max(int(axis.from_length) / int(axis.to_length), 1)
        centre = (axis.new.float() + 0.5) * (axis.from_length / axis.to_length)
        v = ((axis.old - centre[:, None] + 0.5) / scale).abs()
        weights = torch.where(v < 1, 1 - 2.5 * v**2 + 1.5 * v**3, (-0.5 * (v - 2) ** 2 * (v - 1)) * (v < 2))
        return (weights / weights.sum(dim=1, keepdim=True) * preprocessing.UNIT).round()

    monkeypatch.setattr(preprocessing, "pillow_weights", plain)
    expected, found = both(picture(700, 900), (224, 224), CONVENTIONS["timm"].preprocessing, torch.float32)
    assert 3 < int((found != expected).sum()) < 10_000


def test_area_differs_only_where_the_mean_is_a_half():
    """The gate adds up in another order, so that exact halves may be rounded either way."""
    how = Preprocessing("square", 1.0, "area")
    for height, width in ((80, 100), (64, 77), (33, 45), (16, 20), (32, 40)):
        pixels = picture(height, width)
        expected, found = both(pixels, (32, 40), how)
        means = exact_area(pixels, 32, 40)  # twice the mean, times the area in units
        is_half = means % (height * width) == 0
        assert torch.equal(found[~is_half], expected[~is_half])
        assert (found - expected).abs().max() <= 1


def exact_area(pixels, height, width):
    """Twice the area's sum minus a half of it: a multiple of the area where the mean is a whole number and a half."""

    def overlaps(old, new):
        ends = [[min((x + 1) * new, (i + 1) * old) - max(x * new, i * old) for x in range(old)] for i in range(new)]
        return np.maximum(np.array(ends), 0)

    old_height, old_width, _ = pixels.shape
    rows, columns = overlaps(old_height, height), overlaps(old_width, width)
    sums = np.einsum("yr,rcz,xc->zyx", rows, pixels.astype(np.int64), columns)
    return torch.from_numpy(2 * sums - old_height * old_width)


def test_a_batch_is_its_pictures():
    how = CONVENTIONS["timm"].preprocessing
    pixels = np.stack([picture(50, 70, seed) for seed in range(3)])
    found = Preprocess(how, (32, 40)).pixels(torch.from_numpy(pixels))
    for one, expected in zip(found, pixels, strict=True):
        assert torch.equal(one.byte(), evaluation_pixels(Image.fromarray(expected), (32, 40), how))


def test_an_older_pillow_always_resizes_columns_first(monkeypatch):
    monkeypatch.setattr(preprocessing, "turns_tall_pictures", lambda: False)
    how, pixels = Preprocessing("square", 1.0, "bicubic", True), picture(300, 100)
    columns_first = Image.fromarray(pixels).resize((40, 300), Image.Resampling.BICUBIC)
    expected = to_tensor(columns_first.resize((40, 32), Image.Resampling.BICUBIC))
    assert torch.equal(Preprocess(how, (32, 40)).pixels(torch.from_numpy(pixels)[None])[0].byte(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper", "timm"])
def test_runtimes_in_single_precision_give_the_pixels_of_the_gate(name, tmp_path):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    openvino = pytest.importorskip("openvino", reason="openvino is not installed")
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    how, path = CONVENTIONS[name].preprocessing, tmp_path / "pixels.onnx"

    class Pixels(Preprocess):
        def forward(self, pictures):
            return self.pixels(pictures)

    example = torch.zeros(writing.EXAMPLE, dtype=torch.uint8)
    onnx.save(traced_graph(Pixels(how, (32, 40), torch.float32), {"x": example}, ("y",), writing.SIDES), path)
    session = onnxruntime.InferenceSession(path)
    compiled = openvino.compile_model(openvino.convert_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    wrong = {"onnxruntime": 0, "openvino": 0}
    for height, width in [*SIZES, (224, 224), (96, 224), (224, 128), (640, 427), (427, 640)]:
        pixels = picture(height, width)
        expected = evaluation_pixels(Image.fromarray(pixels), (32, 40), how).numpy()
        wrong["onnxruntime"] += int((session.run(None, {"x": pixels[None]})[0][0] != expected).sum())
        wrong["openvino"] += int((compiled({"x": pixels[None]})[0][0] != expected).sum())
    assert max(wrong.values()) <= 1, wrong  # of 65,280
