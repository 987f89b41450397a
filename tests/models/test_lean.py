"""Models that compute and keep less in a training step give the results and gradients of the plain ones."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck

from agreement import disagreement, randomised
from vitlab.models.build import build_from_spec
from vitlab.models.transformer import FEWEST_ROWS, MLP
from vitlab.models.vit import make_lean
from vitlab.spec import ViTSpec

WIDTH, HIDDEN = 24, 40
ROWS = 2 * FEWEST_ROWS + 5  # three parts, the last one short


def pair(gelu="tanh", dropout=0.0, dtype=torch.float32):
    plain = randomised(MLP(WIDTH, HIDDEN, gelu=gelu, dropout=dropout)).to(dtype).train()
    lean = copy.deepcopy(plain)
    make_lean(lean)
    return plain, lean


def results(mlp, v):
    """The output, and the gradients of the input and of the parameters."""
    v = v.clone().requires_grad_()
    out = mlp(v)
    weights = torch.linspace(0.5, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out, *torch.autograd.grad((out * weights).sum(), [v, *mlp.parameters()])]


def kept_bytes(mlp, v):
    """What autograd saves, without parameters; a storage counts once."""
    saved = {}
    own = {parameter.data_ptr() for parameter in mlp.parameters()}

    def pack(tensor):
        if tensor.data_ptr() not in own:
            saved[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = mlp(v.clone().requires_grad_())
        assert out.requires_grad
        return sum(saved.values())


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_results_and_gradients_are_those_of_the_plain_mlp(gelu, dtype, tolerance):
    v = torch.randn(ROWS, 3, WIDTH, dtype=torch.float64).to(dtype).transpose(0, 1)  # and not contiguous
    plain, lean = (results(mlp, v) for mlp in pair(gelu, dtype=dtype))
    assert max(disagreement(one, other) for one, other in zip(lean, plain, strict=True)) <= tolerance


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
def test_gradients_equal_finite_differences(gelu):
    module = randomised(MLP(4, 6, gelu=gelu, dropout=0.0)).double()
    make_lean(module)
    names = [name for name, _ in module.named_parameters()]
    v = torch.randn(2, 70, 4, dtype=torch.float64, requires_grad=True)

    def run(v, *parameters):
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (v,))

    assert gradcheck(run, (v, *module.parameters()), atol=1e-6, fast_mode=True)


def test_the_result_of_the_gelu_is_not_kept():
    v = torch.randn(2, 50, WIDTH)
    plain, lean = (kept_bytes(mlp, v) for mlp in pair())
    assert plain == 4 * 100 * (WIDTH + 2 * HIDDEN)
    assert lean == 4 * 100 * (WIDTH + HIDDEN)


@pytest.mark.parametrize("case", ["no gradients", "frozen", "half precision", "autocast", "dropout"])
def test_elsewhere_the_plain_mlp_stays(case):
    dtype = torch.bfloat16 if case == "half precision" else torch.float32
    plain, lean = pair(dropout=0.5 if case == "dropout" else 0.0, dtype=dtype)
    v = torch.randn(2, 50, WIDTH, dtype=dtype, requires_grad=True)
    if case == "frozen":
        for mlp in (plain, lean):
            mlp.dense1.requires_grad_(False)
    found = []
    for mlp in (plain, lean):
        torch.manual_seed(0)
        with torch.set_grad_enabled(case != "no gradients"), torch.autocast("cpu", enabled=case == "autocast"):
            found.append(mlp(v))
    assert torch.equal(*found)
    assert type(found[1].grad_fn) is type(found[0].grad_fn)


def test_a_lean_mlp_is_exported_as_the_plain_one():
    v = torch.randn(1, 5, WIDTH)
    plain, lean = (torch.export.export(mlp, (v,)).graph_module.code for mlp in pair())
    assert lean == plain


VITS = {
    "class token": ViTSpec(patch=4, layers=2, width=24, mlp=40, heads=2, image=(12, 8), classes=5),
    "mlp head, positions in every layer": ViTSpec(
        patch=4, layers=2, width=24, mlp=40, heads=2, image=(8, 8), classes=5, head="mlp", positions_at="every-layer"
    ),
    "distilled": ViTSpec(
        patch=4, layers=2, width=24, mlp=40, heads=2, image=(8, 8), classes=5, head="linear", distilled=True
    ),
}
ELSEWHERE = {
    "mean pooling": {"pool": "mean", "head": "linear"},
    "relative positions": {"positions": "relative"},
    "merging": {"merge": 1},
    "dropout": {"dropout": 0.1},
    "stochastic depth": {"stochastic_depth": 0.2},
}


def last_tokens(model, images):
    """How many tokens of an image leave the last layer in a forward pass."""
    found = []
    handle = model.blocks[-1].register_forward_hook(lambda block, inputs, output: found.append(output))
    try:
        model(images)
    finally:
        handle.remove()
    return getattr(found[0], "z", found[0]).shape[1]


@pytest.mark.parametrize("name", VITS)
def test_the_last_layer_computes_only_what_the_head_reads_with_the_same_gradients(name):
    plain = randomised(build_from_spec(VITS[name], seed=0)).double().train()
    lean = copy.deepcopy(plain)
    make_lean(lean)
    images = torch.randn(3, 3, *VITS[name].image, dtype=torch.float64)
    assert last_tokens(lean, images) == VITS[name].prefix
    assert last_tokens(plain, images) == VITS[name].tokens
    weights = torch.linspace(0.5, 1, 15, dtype=torch.float64).view(3, 5)
    found = []
    for model in (plain, lean):
        logits = model(images)
        found.append([logits, *torch.autograd.grad((logits * weights).sum(), list(model.parameters()))])
    assert max(disagreement(one, other) for one, other in zip(found[1], found[0], strict=True)) <= 1e-13


@pytest.mark.parametrize("name", [*ELSEWHERE, "no gradients"])
def test_elsewhere_the_last_layer_stays_whole(name):
    spec = replace(VITS["class token"], **ELSEWHERE.get(name, {}))
    model = randomised(build_from_spec(spec, seed=0)).train()
    make_lean(model)
    with torch.set_grad_enabled(name != "no gradients"):
        assert last_tokens(model, torch.randn(2, 3, *spec.image)) == spec.layer_tokens[-1]
