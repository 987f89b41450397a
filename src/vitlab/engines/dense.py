"""Dense layers for inference: as torch computes them, or with weights that oneDNN has laid out for this processor."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.build import Model
from vitlab.models.transformer import Block, activated, is_traced


class Dense:
    """A dense layer with what follows it: a GELU, or the sum with a residual.

    `rows` of an MLP are computed at once, so that what is between its layers stays in the cache.
    """

    rows: int | None = 512

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = self.laid_out(weight.detach()), None if bias is None else bias.detach()

    @staticmethod
    def laid_out(weight: Tensor) -> Tensor:
        """The weight (D', D) in the layout of the product: here as it is."""
        return weight

    def __call__(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D')."""
        return F.linear(x, self.weight, self.bias)

    def gelu(self, x: Tensor, approximate: str) -> Tensor:
        """(..., D) -> (..., D'), through a GELU; the exact one is in place: it would spend its time on new memory."""
        h = self(x)
        if is_traced():  # an exported program has no operators that change their inputs
            return F.gelu(h, approximate=approximate)
        if approximate == "tanh" and h.device.type == "cpu" and h.dtype.itemsize >= 4:
            return activated(h, approximate)
        return torch.ops.aten.gelu_(h, approximate=approximate)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """(..., D), (..., D') -> (..., D')."""
        return residual + self(x)


class PackedDense(Dense):
    """A dense layer whose weights are laid out once for oneDNN, which applies the GELU or the sum in the same pass."""

    rows = None

    @staticmethod
    def laid_out(weight: Tensor) -> Tensor:
        """The weight (D', D) in oneDNN's layout: a copy."""
        return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")

    def gelu(self, x: Tensor, approximate: str) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "gelu", [], approximate)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")


MakeDense = Callable[[Tensor, Tensor | None], Dense]


def both(model: Model, y: Tensor) -> tuple[Tensor, Tensor]:
    """The pooled vector (B, D) -> features (B, D) and logits (B, K)."""
    head = model.head
    return head.features(y), head(y)


def drop_dense(patches: nn.Module, blocks: Iterable[Block]) -> None:
    """Remove from a copy of a model what lean parts hold by themselves, so that no weight is in memory twice."""
    patches.register_parameter("weight", None)
    for block in blocks:
        del block.attention, block.mlp
