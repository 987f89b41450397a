"""Tables of another library's names for vitlab's tensors, and how it lays a tensor out.

A layout is a pair of inverse functions: `read` turns the file's tensors into vitlab's, `write` does the reverse. The
expected shapes of a file are those that `write` gives on the meta device, so every layout is defined once.
"""

import re
from collections.abc import Callable, Iterable, Mapping
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


# A layer's weight or bias, by our name and its rank: the end of their name, and the layout.
Parts = Mapping[tuple[str, int], tuple[str, Layout]]
TORCH: Parts = {**{("weight", rank): (".weight", SAME) for rank in (1, 2, 4)}, ("bias", 1): (".bias", SAME)}
FLAX: Parts = {
    ("weight", 1): ("/scale", SAME),
    ("weight", 2): ("/kernel", KERNEL),
    ("weight", 4): ("/kernel", CONVOLUTION),
    ("bias", 1): ("/bias", SAME),
}
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a block, stage or unit
QKV = ("query", "key", "value")


def under(ours: str, theirs: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return a table with prefixes on both sides."""
    return {ours + own: theirs + name for own, name in names.items()}


def entries(
    own: Mapping[str, torch.Size],
    names: Mapping[str, str],
    parts: Parts = TORCH,
    layouts: Mapping[str, Layout] | None = None,
    first: int = 0,
) -> list[Entry]:
    """Map the tensors of a model that `names` lists and that are not empty; `own` are their shapes by name.

    `names` maps our layers and tensors to theirs, with {} for a number, which they count from `first`, and {qkv} for
    separate queries, keys and values. `layouts` are exceptions to `parts`.
    """
    found = []
    for ours, shape in own.items():
        key = NUMBER.sub("{}", ours)
        layer, _, part = key.rpartition(".")
        if 0 in shape or not (key in names or layer in names):
            continue
        end, layout = ("", SAME) if key in names else parts[part, len(shape)]
        theirs = (names[key] if key in names else names[layer]) + end
        numbers = [int(number) + first for number in NUMBER.findall(ours)]
        each = QKV if "{qkv}" in theirs else ("",)
        spelt = tuple(theirs.format(*numbers, qkv=kind) for kind in each)
        found.append(Entry(ours, spelt, (layouts or {}).get(key, layout)))
    return found
