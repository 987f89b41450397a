"""GELU in both forms; the tanh form, which the authors' code uses, is optimised for training on a CPU."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

SLOPE = 2 * math.sqrt(2 / math.pi)
CUBIC = 0.044715 * SLOPE
CHUNK = 2**17  # numbers processed at once, so that they stay in the cache


def gelu(x: Tensor, approximate: str) -> Tensor:
    """x Phi(x) for `none`, x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2 for `tanh`; any shape."""
    if approximate == "tanh" and not torch.jit.is_tracing() and not torch.compiler.is_compiling():
        is_trained_by_cpu = x.requires_grad and x.device.type == "cpu" and x.dtype.itemsize >= 4
        if is_trained_by_cpu:
            return _TanhGelu.apply(x)
    return F.gelu(x, approximate=approximate)


class _TanhGelu(torch.autograd.Function):
    """The tanh form with one sigmoid: torch's CPU kernel computes a slow tanh in the forward and the backward pass.

    Since (1 + tanh(p/2)) / 2 = sigmoid(p), one sigmoid s gives both the result x s and the derivative
    s + x s (1 - s) p'. The derivative is saved instead of x, so that memory stays the same.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        flat = x.flatten()
        result, derivative = torch.empty_like(flat), torch.empty_like(flat)
        slope, one = x.new_tensor([SLOPE, 1])
        for xs, y, d in zip(flat.split(CHUNK), result.split(CHUNK), derivative.split(CHUNK), strict=True):
            s = torch.addcmul(slope, xs, xs, value=CUBIC).mul_(xs).sigmoid_()  # p = x (SLOPE + CUBIC x^2)
            torch.mul(xs, s, out=y)
            torch.addcmul(slope, xs, xs, value=3 * CUBIC, out=d)  # p'
            d.mul_(y).lerp_(one, s)  # y p' + s (1 - y p')
        ctx.save_for_backward(derivative.view_as(x))
        return result.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyrefly: ignore[bad-override] - torch declares *args
        (derivative,) = ctx.saved_tensors
        return gradient * derivative
