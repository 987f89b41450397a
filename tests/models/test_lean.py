"""The MLP that keeps less for the backward pass computes the same as the plain one."""

import copy

import pytest
import torch
from torch.autograd import gradcheck

from agreement import disagreement, randomised
from vitlab.models.transformer import FEWEST_ROWS, MLP, make_lean

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
