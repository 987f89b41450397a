"""The pre-norm Transformer encoder block: Eq. 2 and 3 of the paper, attention as in its appendix A."""

import math
import warnings
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vitlab.spec import Gelu

SLOPE = 2 * math.sqrt(2 / math.pi)
CUBIC = 0.044715 * SLOPE
Module = TypeVar("Module", bound=nn.Module)
CHUNK = 2**17  # numbers of a GELU computed at once, so that they stay in the cache
FEWEST_ROWS = 128  # of an MLP computed at once: fewer make slow matrix products


def dense(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """An nn.Linear without values, to be filled by `initialise`: torch's own draw takes seconds for large models."""
    # Not a subclass: quantisation and other torch tools look for exactly nn.Linear.
    with torch.device("meta"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")  # a head without classes
        layer = nn.Linear(inputs, outputs, bias=bias)
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

    def forward(self, u: Tensor, read: int | None = None) -> Tensor:
        """(B, n, D) -> (B, n, D), or (B, read, D), without ever holding the attention matrix."""
        q, k, v = self._project(u) if read is None else self._project_first(u, read)
        return self._join_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=self._bias(q)))  # Eq. 6-8

    def explain(self, u: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, n, D) -> the same result (B, n, D), and the attention probabilities (B, h, n, n) that give it.

        `mask`, which broadcasts to (B, h, n, n), is added to the logits: minus infinity leaves a key out.
        """
        q, k, v = self._project(u)
        logits = q @ k.mT / self.scale  # (B, h, n, n)
        for term in (self._bias(q), mask):
            logits = logits if term is None else logits + term
        probabilities = logits.softmax(dim=-1)  # (B, h, n, n)  Eq. 6
        return self._join_heads(probabilities @ v), probabilities  # Eq. 7, 8

    def _project(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, n, D) -> q, k, v of (B, h, n, Dh)."""
        q, k, v = self.qkv(u).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)  # Eq. 5
        return q, k, v

    def _project_first(self, u: Tensor, read: int) -> tuple[Tensor, Tensor, Tensor]:
        """(B, n, D) -> q of (B, h, read, Dh), and k, v of (B, h, n, Dh): only the first tokens ask."""
        rows = [u.shape[-1], 2 * u.shape[-1]]  # of the queries, and of the keys and values
        (w_q, w_kv), (b_q, b_kv) = self.qkv.weight.split(rows), self.qkv.bias.split(rows)
        q = F.linear(u[:, :read], w_q, b_q).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, h, read, Dh)
        k, v = F.linear(u, w_kv, b_kv).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def _bias(self, q: Tensor) -> Tensor | None:
        """(B, h, n, Dh) -> (B, h, n, n) to add to the logits; None for the paper's attention."""
        return None

    def _join_heads(self, heads: Tensor) -> Tensor:
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

    def _join_heads(self, heads: Tensor) -> Tensor:
        """(B, h, n, Dh) -> (B, n, D)."""
        # Copied, because ONNX decomposes attention with a mask and returns its result in another memory order.
        return super()._join_heads(heads.clone(memory_format=torch.contiguous_format))

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
        self.is_lean = False  # set by `vit.make_lean`
        self.dense1 = dense(width, hidden)
        self.dense2 = dense(hidden, width)

    def forward(self, v: Tensor) -> Tensor:
        """(B, n, D) -> (B, n, D)."""
        if self.is_lean and self._can_be_lean(v):
            layers = self.dense1.weight, self.dense1.bias, self.dense2.weight, self.dense2.bias
            return _LeanMLP.apply(v.flatten(0, -2), *layers, self.approximate).view_as(v)
        m = gelu(self.dense1(v), self.approximate)  # (B, n, M)
        m = self.dense2(F.dropout(m, self.dropout, self.training))  # (B, n, D)
        return F.dropout(m, self.dropout, self.training)

    def _can_be_lean(self, v: Tensor) -> bool:
        """Whether this is a training step on a CPU, in full precision, without dropout and with nothing frozen."""
        is_random = self.training and self.dropout > 0
        if is_traced() or is_random or torch.is_autocast_enabled("cpu") or not torch.is_grad_enabled():
            return False
        is_trained = v.requires_grad and all(parameter.requires_grad for parameter in self.parameters())
        return is_trained and v.device.type == "cpu" and v.dtype.itemsize >= 4

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

    def forward(self, z: Tensor, read: int | None = None) -> Tensor:
        """(B, n, D) -> (B, n, D); with `read` only the first tokens, (B, read, D), if nothing reads the others."""
        if read is None:
            return self._residuals(z, self.attention(self.norm1(z)))
        return self._residuals(z[:, :read], self.attention(self.norm1(z), read))

    def explain(self, z: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, n, D) -> the same result (B, n, D), and its attention probabilities (B, h, n, n).

        `mask` is added to the logits of the attention.
        """
        a, probabilities = self.attention.explain(self.norm1(z), mask)
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


def is_traced() -> bool:
    """Whether torch records what is computed instead of running it, with sizes that may be symbols."""
    return torch.jit.is_tracing() or torch.compiler.is_compiling()


def gelu(x: Tensor, approximate: str) -> Tensor:
    """x Phi(x) for `none`, x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2 for `tanh`; any shape."""
    if approximate == "tanh" and not is_traced():
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
        for xs, y, d in zip(flat.split(CHUNK), result.split(CHUNK), derivative.split(CHUNK), strict=True):
            _tanh_gelu(xs, y, d)
        ctx.save_for_backward(derivative.view_as(x))
        return result.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyrefly: ignore[bad-override] - torch declares *args
        (derivative,) = ctx.saved_tensors
        return gradient * derivative


def _tanh_gelu(x: Tensor, result: Tensor, derivative: Tensor) -> None:
    """Write the tanh form of GELU and its derivative into two tensors of the shape of x."""
    slope, one = x.new_tensor([SLOPE, 1])
    s = torch.addcmul(slope, x, x, value=CUBIC).mul_(x).sigmoid_()  # p = x (SLOPE + CUBIC x^2)
    torch.mul(x, s, out=result)
    torch.addcmul(slope, x, x, value=3 * CUBIC, out=derivative)  # p'
    derivative.mul_(result).lerp_(one, s)  # y p' + s (1 - y p')


class _LeanMLP(torch.autograd.Function):
    """dense2(GELU(dense1(x))) of (rows, D), a few rows at a time. Saves x and GELU's input; recomputes its result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, approximate: str) -> Tensor:
        hidden, result = F.linear(x, w1, b1), x.new_empty(x.shape[0], w2.shape[0])  # (rows, M), (rows, D)
        rows = max(x.shape[1], FEWEST_ROWS)  # at least D, so that adding up the weights' gradients costs little
        for h, out in zip(hidden.split(rows), result.split(rows), strict=True):
            torch.addmm(b2, activated(h, approximate), w2.mT, out=out)
        ctx.save_for_backward(x, hidden, w1, w2)
        ctx.rows, ctx.approximate = rows, approximate
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override] - as above
        x, hidden, w1, w2 = ctx.saved_tensors
        of_x, of_w1, of_w2 = torch.empty_like(x), torch.zeros_like(w1), torch.zeros_like(w2)
        of_b1 = w1.new_zeros(w1.shape[0])
        parts = (tensor.split(ctx.rows) for tensor in (x, hidden, gradient, of_x))
        for x_part, h, g, of_x_part in zip(*parts, strict=True):
            m, of_h = _activated_with_gradient(h, g @ w2, ctx.approximate)  # (rows, M) each
            of_w2.addmm_(g.mT, m)
            of_w1.addmm_(of_h.mT, x_part)
            of_b1.add_(of_h.sum(dim=0))
            torch.mm(of_h, w1, out=of_x_part)
        return of_x, of_w1, of_b1, of_w2, gradient.sum(dim=0), None


def activated(h: Tensor, approximate: str) -> Tensor:
    """GELU without a gradient, of 32 bits or more."""
    if approximate == "none":
        return F.gelu(h)
    slope = h.new_tensor(SLOPE)
    return torch.addcmul(slope, h, h, value=CUBIC).mul_(h).sigmoid_().mul_(h)


def _activated_with_gradient(h: Tensor, gradient: Tensor, approximate: str) -> tuple[Tensor, Tensor]:
    """GELU of h, and the gradient of h given that of the GELU."""
    if approximate == "none":
        return F.gelu(h), torch.ops.aten.gelu_backward(gradient, h)
    result, derivative = torch.empty_like(h), torch.empty_like(h)
    _tanh_gelu(h, result, derivative)
    return result, derivative.mul_(gradient)


# Symbolic tracing has neither sizes for `by_distance` to count to nor a device for `gelu` to look at.
torch.fx.wrap("by_distance")
torch.fx.wrap("gelu")
