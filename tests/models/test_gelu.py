"""The two forms of GELU, in training and out of it, against NumPy in float64."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck
from torch.utils.checkpoint import checkpoint

from vitlab.models.transformer import CHUNK, gelu

ROOT = math.sqrt(2 / math.pi)
POINTS = np.concatenate([np.linspace(-12, 12, CHUNK + 5), [-1e4, -0.0, 0.0, 1e4]])


def derived(x):
    """The tanh form and its derivative, as the formula is printed."""
    t = np.tanh(ROOT * (x + 0.044715 * x**3))
    return x * (1 + t) / 2, (1 + t) / 2 + x / 2 * (1 - t**2) * ROOT * (1 + 3 * 0.044715 * x**2)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-12)])
def test_tanh_form_and_its_derivative_equal_the_formula(dtype, tolerance):
    x = torch.tensor(POINTS, dtype=dtype, requires_grad=True)
    y = gelu(x, "tanh")
    y.sum().backward()
    scale = np.maximum(1, np.abs(POINTS))
    expected, slope = derived(x.detach().double().numpy())
    assert (np.abs(y.detach().numpy() - expected) / scale).max() <= tolerance
    assert np.abs(x.grad.numpy() - slope).max() <= tolerance


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_training_computes_the_function_that_is_used_later(approximate):
    x = torch.linspace(-6, 6, 3 * CHUNK).view(3, -1).mT.requires_grad_()  # in three pieces, and not contiguous
    with torch.no_grad():
        later = gelu(x, approximate)
    assert (gelu(x, approximate) - later).abs().max() <= 2e-6


def test_gradient_equals_finite_differences_in_any_memory_order():
    x = torch.randn(3, 4, 2, dtype=torch.float64).transpose(0, 2).requires_grad_()
    assert gradcheck(lambda x: gelu(x, "tanh"), (x,))


def test_recomputing_gives_the_same_bits():
    gradients = []
    for run in (gelu, lambda x, how: checkpoint(gelu, x, how, use_reentrant=False)):
        x = torch.linspace(-3, 3, 1000).requires_grad_()
        run(x, "tanh").square().sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_half_precision_stays_with_torchs_own_kernel():
    x = torch.linspace(-3, 3, 100).bfloat16().requires_grad_()
    assert torch.equal(gelu(x, "tanh"), torch.nn.functional.gelu(x, approximate="tanh"))
