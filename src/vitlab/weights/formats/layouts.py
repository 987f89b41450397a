"""How another library lays out a tensor, as pairs of inverse functions.

`read` turns the file's tensors into vitlab's; `write` is the inverse. The expected shapes of a file are those that
`write` gives on the meta device, so that every layout is defined once.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """`read` maps their tensors to ours; `write` maps ours to theirs, given the number of heads."""

    read: Callable[[list[Tensor]], Tensor]
    write: Callable[[Tensor, int], Iterable[Tensor]]


@dataclass(frozen=True)
class Entry:
    """The name of our tensor, their names for it, and the layout between the two."""

    ours: str
    theirs: tuple[str, ...]
    layout: Layout

    def shapes(self, own: torch.Size, heads: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes that their tensors must have."""
        tensors = self.layout.write(torch.empty(own, device="meta"), heads)
        return {name: tuple(tensor.shape) for name, tensor in zip(self.theirs, tensors, strict=True)}


SAME = Layout(lambda t: t[0], lambda w, h: [w])
STACKED = Layout(torch.cat, lambda w, h: w.chunk(3))  # separate q, k and v

# Flax: kernels are (inputs, outputs), convolutions (P, P, C, D), and heads have their own axis.
KERNEL = Layout(lambda t: t[0].mT, lambda w, h: [w.mT])
CONVOLUTION = Layout(lambda t: t[0].permute(3, 2, 0, 1), lambda w, h: [w.permute(2, 3, 1, 0)])
QKV_KERNELS = Layout(
    lambda t: torch.cat([k.flatten(1).mT for k in t]),
    lambda w, h: [m.mT.unflatten(1, (h, -1)) for m in w.chunk(3)],
)
QKV_BIASES = Layout(
    lambda t: torch.cat([b.flatten() for b in t]),
    lambda w, h: [b.unflatten(0, (h, -1)) for b in w.chunk(3)],
)
OUT_KERNEL = Layout(lambda t: t[0].flatten(0, 1).mT, lambda w, h: [w.mT.unflatten(0, (h, -1))])

# A dense layer as a 1x1 convolution, in torch and in Flax; the vector of a norm with three sides of 1.
POINT = Layout(lambda t: t[0][:, :, 0, 0], lambda w, h: [w[:, :, None, None]])
POINT_KERNEL = Layout(lambda t: t[0][0, 0].mT, lambda w, h: [w.mT[None, None]])
SPREAD = Layout(lambda t: t[0].flatten(), lambda w, h: [w[None, None, None]])

# A position table without a row for the class token; a row of zeros gives the same function.
WITHOUT_CLASS_ROW = Layout(
    lambda t: torch.cat([t[0].new_zeros(1, 1, t[0].shape[-1]), t[0]], dim=1), lambda w, h: [w[:, 1:]]
)

# A position table with a row for a class token that the model does not have.
DROPPED_CLASS_ROW = Layout(lambda t: t[0][:, 1:], lambda w, h: [torch.cat([w[:, :1], w], dim=1)])


def norm_and_dense(ours: str, theirs: str) -> list[Entry]:
    """Return the entries of a layer's weight and bias, which have these names on both sides."""
    return [Entry(f"{ours}.{part}", (f"{theirs}.{part}",), SAME) for part in ("weight", "bias")]
