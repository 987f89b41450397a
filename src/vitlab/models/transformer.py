"""The pre-norm Transformer encoder block: Eq. 2 and 3 of the paper, attention as in its appendix A."""

import math
import warnings
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.spec import Gelu

SLOPE = 2 * math.sqrt(2 / math.pi)
CUBIC = 0.044715 * SLOPE
Module = TypeVar("Module", bound=nn.Module)
CHUNK = 2**17  # numbers of a GELU computed at once, so that they stay in the cache


def dense(inputs: int, outputs: int) -> nn.Linear:
    """An nn.Linear without values, to be filled by `initialise`: torch's own draw takes seconds for large models."""
    # Not a subclass: quantisation and other torch tools look for exactly nn.Linear.
    with torch.device("meta"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")  # a head without classes
        layer = nn.Linear(inputs, outputs)
    return allocate(layer, torch.get_default_device())


def allocate(module: Module, device: torch.device | str) -> Module:
    """Give the parameters and buffers of a module memory on a device, without values."""
    # Not Module.to_empty: its empty_like makes torch import sympy for tensors without storage, which takes 0.3 s.
    return module._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device=device))


class Attention(nn.Module):
    """Multi-head self-attention with one fused projection to queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = math.sqrt(width // heads)  # sqrt(Dh)
        self.qkv = dense(width, 3 * width)
        self.out = dense(width, width)

    def forward(self, u: Tensor) -> Tensor:
        """(B, n, D) -> (B, n, D), without ever holding the attention matrix."""
        q, k, v = self._project(u)
        return self._merge(F.scaled_dot_product_attention(q, k, v, attn_mask=self._bias(q)))  # Eq. 6-8

    def explain(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """(B, n, D) -> the same result (B, n, D), and the attention probabilities (B, h, n, n) that give it."""
        q, k, v = self._project(u)
        logits, bias = q @ k.mT / self.scale, self._bias(q)  # (B, h, n, n)
        probabilities = (logits if bias is None else logits + bias).softmax(dim=-1)  # (B, h, n, n)  Eq. 6
        return self._merge(probabilities @ v), probabilities  # Eq. 7, 8

    def _project(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, n, D) -> q, k, v of (B, h, n, Dh)."""
        q, k, v = self.qkv(u).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)  # Eq. 5
        return q, k, v

    def _bias(self, q: Tensor) -> Tensor | None:
        """(B, h, n, Dh) -> (B, h, n, n) to add to the logits; None for the paper's attention."""
        return None

    def _merge(self, heads: Tensor) -> Tensor:
        """(B, h, n, Dh) -> (B, n, D)."""
        return self.out(heads.transpose(1, 2).flatten(2))  # Eq. 8

    def initialise(self, generator: torch.Generator) -> None:
        """Draw Xavier uniform weights for each D x D matrix: q, k and v are three matrices, not one of 3D x D."""
        for matrix in (*self.qkv.weight.chunk(3), self.out.weight):
            nn.init.xavier_uniform_(matrix, generator=generator)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)


class RelativeAttention(Attention):
    """Attention whose logits also depend on the distance of two tokens: one learned vector per head and offset.

    The place of a token is its index in the sequence; the class token has place 0. The paper leaves open whether heads
    share the vectors and how the term is scaled. Here each head has its own, and both terms are divided by sqrt(Dh).
    """

    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__(width, heads)
        self.offsets = nn.Parameter(torch.empty(heads, 2 * tokens - 1, width // heads))

    def _bias(self, q: Tensor) -> Tensor:
        """(B, h, n, Dh) -> (B, h, n, n): entry i, j is q_i times the vector of offset i - j."""
        return by_distance(q @ self.offsets.transpose(1, 2) / self.scale)

    def _merge(self, heads: Tensor) -> Tensor:
        """(B, h, n, Dh) -> (B, n, D)."""
        # Copied, because ONNX decomposes attention with a mask and returns its result in another memory order.
        return super()._merge(heads.clone(memory_format=torch.contiguous_format))

    def initialise(self, generator: torch.Generator) -> None:
        super().initialise(generator)
        nn.init.normal_(self.offsets, std=0.02, generator=generator)


def by_distance(scores: Tensor) -> Tensor:
    """(B, h, n, 2n-1) with offset o at o + n - 1 -> (B, h, n, n): entry i, j is the score of offset i - j."""
    n = scores.shape[2]
    places = torch.arange(n, device=scores.device)
    index = places[:, None] - places[None, :] + n - 1  # (n, n)
    return scores.gather(-1, index.expand_as(scores[..., :n]))


class MLP(nn.Module):
    """Two dense layers with a GELU between them; dropout after each."""

    def __init__(self, width: int, hidden: int, *, gelu: Gelu, dropout: float) -> None:
        super().__init__()
        self.approximate = "tanh" if gelu == "tanh" else "none"
        self.dropout = dropout
        self.dense1 = dense(width, hidden)
        self.dense2 = dense(hidden, width)

    def forward(self, v: Tensor) -> Tensor:
        """(B, n, D) -> (B, n, D)."""
        m = gelu(self.dense1(v), self.approximate)  # (B, n, M)
        m = self.dense2(F.dropout(m, self.dropout, self.training))  # (B, n, D)
        return F.dropout(m, self.dropout, self.training)

    def initialise(self, generator: torch.Generator) -> None:
        for layer in (self.dense1, self.dense2):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            nn.init.normal_(layer.bias, std=1e-6, generator=generator)


class Block(nn.Module):
    """One encoder layer. In training a sample skips each residual branch with probability `drop`."""

    def __init__(
        self, attention: Attention, hidden: int, *, gelu: Gelu, norm_eps: float, dropout: float, drop: float
    ) -> None:
        super().__init__()
        width = attention.out.out_features
        self.dropout = dropout
        self.drop = drop
        self.norm1 = nn.LayerNorm(width, eps=norm_eps)
        self.attention = attention
        self.norm2 = nn.LayerNorm(width, eps=norm_eps)
        self.mlp = MLP(width, hidden, gelu=gelu, dropout=dropout)

    def forward(self, z: Tensor) -> Tensor:
        """(B, n, D) -> (B, n, D)."""
        return self._residuals(z, self.attention(self.norm1(z)))

    def explain(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """(B, n, D) -> the same result (B, n, D), and its attention probabilities (B, h, n, n)."""
        a, probabilities = self.attention.explain(self.norm1(z))
        return self._residuals(z, a), probabilities

    def _residuals(self, z: Tensor, a: Tensor) -> Tensor:
        z = z + self._branch(F.dropout(a, self.dropout, self.training))  # Eq. 2
        return z + self._branch(self.mlp(self.norm2(z)))  # Eq. 3

    def _branch(self, x: Tensor) -> Tensor:
        """Stochastic depth: zero for the samples that skip; the others are scaled to keep the mean."""
        if not self.training or self.drop == 0:
            return x
        keep = x.new_empty(x.shape[0], 1, 1, dtype=torch.float32).uniform_() >= self.drop
        return x * keep / (1 - self.drop)

    def initialise(self, generator: torch.Generator) -> None:
        for norm in (self.norm1, self.norm2):
            norm.reset_parameters()
        self.attention.initialise(generator)
        self.mlp.initialise(generator)


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


# Symbolic tracing has neither sizes for `by_distance` to count to nor a device for `gelu` to look at.
torch.fx.wrap("by_distance")
torch.fx.wrap("gelu")
