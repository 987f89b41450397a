"""PyTorch's own tools on every family: exporting, ONNX, quantising, tracing, extracting features; at any batch size."""

import warnings

import pytest
import torch
from torch import nn

from agreement import disagreement, randomised
from families import FAMILIES, images
from vitlab.models.build import build_from_spec
from vitlab.models.masked import build_masked_model
from vitlab.models.swin import Swin

SIZES = (1, 3, 5)  # of batches; models are traced at 2
BATCH = ({0: torch.export.Dim("batch")},)


@pytest.fixture(params=FAMILIES)
def model(request):
    return randomised(build_from_spec(FAMILIES[request.param]))


def differs(other, model):
    """How far another form of a model is from it, at the worst of several batch sizes."""
    with torch.no_grad():
        return max(disagreement(other(images(batch)), model(images(batch))) for batch in SIZES)


@pytest.mark.slow
def test_an_exported_model_takes_any_batch(model):
    assert differs(torch.export.export(model, (images(2),), dynamic_shapes=BATCH).module(), model) <= 1e-6


@pytest.mark.slow
def test_a_model_compiles_into_one_graph_with_its_gradients(model):
    """A graph break raises. `aot_eager` traces the forward and backward pass as the GPU's compiler gets them."""
    torch.compiler.reset()
    given = images(2)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    gradients = [
        torch.autograd.grad(form(given).square().sum(), list(model.parameters())) for form in (compiled, model)
    ]
    assert disagreement(compiled(given), model(given)) <= 1e-5
    assert max(disagreement(*pair) for pair in zip(*gradients, strict=True)) <= 1e-4


@pytest.mark.slow
def test_dropout_and_stochastic_depth_compile_into_one_graph():
    torch.compiler.reset()
    model = randomised(build_from_spec(FAMILIES["ViT in training"])).train()
    torch.compile(model, fullgraph=True, backend="aot_eager")(images(2)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_model_traced_by_jit_takes_any_batch(model):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit.*", DeprecationWarning)
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # of sizes, which torch's own GroupNorm compares too
        assert differs(torch.jit.trace(model, images(2)), model) <= 1e-6


def test_a_model_traced_by_symbols_takes_any_batch(model):
    traced = torch.fx.symbolic_trace(model)
    assert differs(traced, model) == 0
    torch.manual_seed(1)
    expected = model.train()(images(3))
    torch.manual_seed(1)
    assert torch.equal(torch.fx.symbolic_trace(model)(images(3)), expected)


def test_dynamic_quantisation_converts_every_linear(model):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*quantiz.*", DeprecationWarning)
        warnings.filterwarnings("ignore", ".*quantiz.*", UserWarning)
        quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    linears = sum(isinstance(module, nn.Linear) for module in model.modules())
    converted = [m for m in quantised.modules() if isinstance(m, torch.ao.nn.quantized.dynamic.Linear)]
    assert len(converted) == linears >= 1
    assert 0 < differs(quantised, model) <= 0.1


def test_torchvision_extracts_the_features_of_every_node(model):
    peers = pytest.importorskip("peers", reason="the peer libraries are not installed", exc_type=ImportError)
    tools = peers.torchvision.models.feature_extraction
    nodes, evaluated = tools.get_graph_node_names(model, suppress_diff_warning=True)
    assert len(nodes) > 10
    extractor = tools.create_feature_extractor(
        model,
        train_return_nodes={nodes[-1]: "out"},
        eval_return_nodes={evaluated[-1]: "out"},
        suppress_diff_warning=True,
    )
    assert differs(lambda x: extractor.eval()(x)["out"], model) == 0
    assert extractor.train()(images(3))["out"].shape == (3, 4)


MASKED = ("neighbourhood", "strided", "fixed", "bigbird")


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [True, False])
def test_onnxruntime_gives_the_same_logits_at_any_batch(model, dynamo, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    has_masks = isinstance(model, Swin) or getattr(model.spec, "attention", "").startswith(MASKED)
    if not dynamo and (getattr(model.spec, "merge", 0) or has_masks):
        pytest.skip("torch's older exporter takes the number of images for a constant in merging and in masks")
    how = {"dynamic_shapes": BATCH} if dynamo else {"dynamic_axes": {"images": {0: "batch"}}}
    file = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporters themselves
        torch.onnx.export(model, (images(2),), file, dynamo=dynamo, input_names=["images"], verbose=False, **how)
    session = runtime.InferenceSession(file)
    assert differs(lambda x: torch.from_numpy(session.run(None, {"images": x.numpy()})[0]), model) <= 1e-5


@pytest.mark.slow
def test_a_masked_model_is_exported_compiled_and_traced_at_any_batch():
    model = randomised(build_masked_model(FAMILIES["ViT"], 6))

    def inputs(batch):
        chosen = torch.stack([torch.randperm(20)[:5] for _ in range(batch)])
        return images(batch), torch.stack([chosen, chosen.flip(1) - 3], dim=1)  # (B, 2, M)

    both = BATCH[0], BATCH[0]
    torch.compiler.reset()
    forms = [
        torch.compile(model, fullgraph=True, backend="aot_eager"),
        torch.export.export(model, inputs(2), dynamic_shapes=both).module(),
        torch.fx.symbolic_trace(model),
    ]
    for batch in SIZES:
        given = inputs(batch)
        for form in forms:
            assert disagreement(form(*given), model(*given)) <= 1e-6


def test_a_traced_model_leaves_checking_to_the_eager_one(tiny):
    for wrong in (torch.zeros(2, 3, 20, 16), torch.zeros(3, 16, 16), torch.zeros(1, 3, 16, 16).double()):
        with pytest.raises(ValueError, match="images"):
            tiny(wrong)
