"""Gradients against finite differences in float64, and the explain path against the fused one."""

import pytest
import torch
from torch.autograd import gradcheck

from agreement import disagreement, randomised
from vitlab.models.build import build_from_spec
from vitlab.models.classifier import LinearHead, MLPHead
from vitlab.models.embedding import PatchEmbedding
from vitlab.models.transformer import MLP, Attention, Block
from vitlab.spec import ViTSpec

MODULES = {
    "attention": (lambda: Attention(6, 2), (2, 3, 6)),
    "mlp with tanh GELU": (lambda: MLP(4, 6, gelu="tanh", dropout=0.0), (2, 3, 4)),
    "mlp with exact GELU": (lambda: MLP(4, 6, gelu="exact", dropout=0.0), (2, 3, 4)),
    "block": (lambda: Block(Attention(4, 2), 6, gelu="tanh", norm_eps=1e-6, dropout=0.0, drop=0.0), (2, 3, 4)),
    "linear head": (lambda: LinearHead(4, 3), (2, 4)),
    "mlp head": (lambda: MLPHead(4, 3), (2, 4)),
    "embedding": (lambda: PatchEmbedding(2, 4), (1, 3, 4, 2)),
}


@pytest.mark.parametrize("name", MODULES)
def test_gradients_of_inputs_and_parameters_equal_finite_differences(name):
    make, shape = MODULES[name]
    module = randomised(make()).double()
    names = [key for key, _ in module.named_parameters()]
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def run(x, *parameters):
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x,))

    assert gradcheck(run, (x, *module.parameters()), atol=1e-6)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_gradients_of_a_whole_model_equal_finite_differences(pool):
    spec = ViTSpec(patch=2, layers=2, width=4, mlp=6, heads=2, image=(4, 2), classes=3, pool=pool)
    model = randomised(build_from_spec(spec)).double()
    images = torch.randn(1, 3, 4, 2, dtype=torch.float64, requires_grad=True)
    names = [key for key, _ in model.named_parameters()]

    def run(x, *parameters):
        return torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (x,))

    assert gradcheck(run, (images, *model.parameters()), atol=1e-6)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_explain_path_equals_the_fused_path_layer_by_layer(pool):
    spec = ViTSpec(patch=4, layers=4, width=24, mlp=40, heads=3, image=(16, 24), classes=5, pool=pool)
    model = randomised(build_from_spec(spec)).double()
    images = torch.randn(2, 3, 16, 24, dtype=torch.float64)
    z = model.tokens(images)
    for block, fused in zip(model.layers, model.layer_features(images), strict=False):
        z, probabilities = block.explain(z)
        assert disagreement(z, fused) <= 1e-12
        assert probabilities.shape == (2, 3, spec.tokens, spec.tokens)
        torch.testing.assert_close(probabilities.sum(-1), torch.ones(2, 3, spec.tokens, dtype=torch.float64))


def test_layer_attention_yields_the_probabilities_of_every_layer_in_order(tiny):
    images = torch.randn(2, 3, 16, 16)
    z = tiny.tokens(images)
    expected = []
    for block in tiny.layers:
        q, k, _ = block.attention.qkv(block.norm1(z)).chunk(3, dim=-1)
        q, k = (t.unflatten(-1, (3, 8)).transpose(1, 2) for t in (q, k))
        expected.append(torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, dim=-1))
        z = block(z)
    for own, other in zip(tiny.layer_attention(images), expected, strict=True):
        torch.testing.assert_close(own, other)
