"""How one of our tensors lies in somebody else's file, as pairs of inverse functions.

`read` takes the file's tensors and gives ours; `write` undoes it. The shapes a file must have are those that
`write` gives on the meta device, so every layout is written down once.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """`read`: their tensors -> ours; `write`: ours -> theirs, given the number of heads."""

    read: Callable[[list[Tensor]], Tensor]
    write: Callable[[Tensor, int], Iterable[Tensor]]


@dataclass(frozen=True)
class Entry:
    """Our tensor, their names for it, and the layout between the two."""

    ours: str
    theirs: tuple[str, ...]
    layout: Layout

    def shapes(self, own: torch.Size, heads: int) -> dict[str, tuple[int, ...]]:
        """The shapes their tensors must have."""
        tensors = self.layout.write(torch.empty(own, device="meta"), heads)
        return {name: tuple(tensor.shape) for name, tensor in zip(self.theirs, tensors, strict=True)}


SAME = Layout(lambda t: t[0], lambda w, h: [w])
STACKED = Layout(torch.cat, lambda w, h: w.chunk(3))  # q, k and v apart

# The Flax layouts: kernels are (inputs, outputs), convolutions (P, P, C, D), heads have an axis of their own.
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

# A dense layer written as a 1x1 convolution: torch's way, and Flax's; a norm's vector with three empty sides.
POINT = Layout(lambda t: t[0][:, :, 0, 0], lambda w, h: [w[:, :, None, None]])
POINT_KERNEL = Layout(lambda t: t[0][0, 0].mT, lambda w, h: [w.mT[None, None]])
SPREAD = Layout(lambda t: t[0].flatten(), lambda w, h: [w[None, None, None]])

# A position table without the class token's row; adding zero to that token is the same function.
WITHOUT_CLASS_ROW = Layout(
    lambda t: torch.cat([t[0].new_zeros(1, 1, t[0].shape[-1]), t[0]], dim=1), lambda w, h: [w[:, 1:]]
)

# A row for a class token that the model does not have.
DROPPED_CLASS_ROW = Layout(lambda t: t[0][:, 1:], lambda w, h: [torch.cat([w[:, :1], w], dim=1)])


def norm_and_dense(ours: str, theirs: str) -> list[Entry]:
    """Weight and bias under the same two names on both sides."""
    return [Entry(f"{ours}.{part}", (f"{theirs}.{part}",), SAME) for part in ("weight", "bias")]
