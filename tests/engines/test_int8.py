"""The engine with 8-bit dense layers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from agreement import randomised
from families import FAMILIES
from vitlab import load_model, preprocess
from vitlab.engines.agreement import agreement, probe
from vitlab.engines.graphs import cached_graph
from vitlab.engines.opening import open_engine
from vitlab.engines.quantisation import rounded
from vitlab.models.build import build_from_spec
from vitlab.spec import ViTSpec

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

SAME = {  # of 200 photographs, the least with the same top-1 as in fp32
    ("ViT-Ti_16-augreg-in1k-224.npz", "timm"): 198,
    ("DeiT-Ti_16-224.timm.safetensors", "deit"): 194,
}


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITLAB_ENGINE_CACHE", str(tmp_path_factory.mktemp("engines")))
        yield


@pytest.fixture(scope="module")
def model():
    """A small ViT with a neuron as the real ViT-Ti has one: its activations are a hundred times as large as others."""
    model = randomised(
        build_from_spec(ViTSpec(patch=8, layers=2, width=64, mlp=128, heads=4, image=(32, 32), classes=9))
    )
    with torch.no_grad():
        dense1 = model.layers[0].mlp.dense1
        dense1.weight[7] *= 100
        dense1.bias[7] = -100  # so that it fires for few tokens
    return model


@pytest.fixture(scope="module")
def engine(model):
    return open_engine(model, "onnxruntime-int8")


@pytest.mark.parametrize(
    "spec",
    [FAMILIES["BiT"], ViTSpec(patch=8, layers=2, width=24, mlp=48, heads=3, image=(16, 16), classes=4)],
    ids=["no dense layers", "few tokens"],
)
def test_a_model_in_which_nothing_would_be_rounded_is_refused(spec):
    with pytest.raises(ValueError, match="8 tokens or more, and this model has none; use engine 'onnxruntime'"):
        open_engine(randomised(build_from_spec(spec)), "onnxruntime-int8")


def test_weights_are_rounded_with_one_scale_per_output():
    weight = torch.randn(13, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([1e-3, 1, 10, 100, 0])
    integers, scales = rounded(weight.numpy())
    assert (abs(integers).max(axis=0)[:4] > 63).all()
    assert (abs(integers * scales - weight.numpy()) <= scales * 0.501).all()


@given(arrays("f4", st.tuples(st.integers(1, 9), st.just(2)), elements=st.floats(-1, 1, width=32)))
def test_sums_of_two_products_fit_into_16_bits(weight):
    integers, _ = rounded(weight)
    for first in range(0, len(weight), 2):
        pair = integers[first : first + 2].astype(int)
        assert 255 * pair.clip(min=0).sum(axis=0).max() < 2**15  # activations are 0 to 255
        assert 255 * pair.clip(max=0).sum(axis=0).min() >= -(2**15)


@pytest.mark.slow
def test_int8_logits_are_within_one_percent_despite_a_neuron_with_huge_activations(model, engine):
    assert 1e-5 < agreement(engine, model, probe(model, 16)).difference <= 0.01


@pytest.mark.slow
def test_int8_logits_of_an_image_do_not_depend_on_its_batch(model, engine):
    images = probe(model, 3)
    images[1] *= 50
    assert torch.equal(engine(images)[:1], engine(images[:1]))


@pytest.mark.slow
def test_only_products_of_many_tokens_are_quantised(model, engine):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    graph = onnx.load(cached_graph(model, is_int8=True)).graph
    sizes = {one.name: list(one.dims) for one in graph.initializer}
    products = [sizes[node.input[1]] for node in graph.node if node.op_type == "MatMulIntegerToFloat"]
    assert products == [[64, 192], [64, 64], [64, 128], [128, 64], [64, 128]]  # of the last layer only keys and values


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "conventions"), SAME)
def test_int8_agrees_on_real_photographs(reference, weights, conventions):
    model = load_model(reference / "weights" / weights, conventions=conventions)
    images = preprocess(model, sorted(map(str, (reference / "imagenet_val_200").glob("*.JPEG"))))
    found = agreement(open_engine(model, "onnxruntime-int8"), model, images)
    assert found.same >= SAME[weights, conventions], found
