"""Attention along one axis at a time (appendix D.6): the Axial-ViT's blocks and the AxialResNet."""

from collections.abc import Iterable
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.classifier import Classifier, make_head
from vitlab.models.resnet import StandardConv, group_norm, initialise_all, root_pool
from vitlab.models.transformer import Attention
from vitlab.require import require
from vitlab.spec import AxialResNetSpec, Convolutions, Image, image_size

Axis = Literal["column", "row"]
AXES: tuple[Axis, Axis] = ("column", "row")
NORM_EPS = 1e-4  # of every norm in the authors' AxialResNet


class AxialAttention(Attention):
    """Self-attention within each column, or each row, of the grid of tokens."""

    def __init__(self, width: int, heads: int, grid: tuple[int, int], axis: Axis) -> None:
        super().__init__(width, heads)
        self.grid = grid
        self.axis = axis

    def forward(self, u: Tensor, read: int | None = None) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        assert read is None, "there is no class token to read"
        return self._together(super().forward(self._lines(u)))

    def explain(self, u: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, N, D) -> the same result, and the probabilities (B, h, N, N), which are 0 between different lines."""
        require(mask is None, "attention along rows and columns takes no mask; use a model with full attention")
        a, lines = super().explain(self._lines(u))
        rows, columns = self.grid
        lines = lines.unflatten(0, (-1, self._number)).permute(0, 2, 3, 4, 1)  # (B, h, l, l, lines)
        full = lines.new_zeros(u.shape[0], self.heads, rows, columns, rows, columns)
        same = full.diagonal(dim1=3, dim2=5) if self.axis == "column" else full.diagonal(dim1=2, dim2=4)
        same.copy_(lines)
        return self._together(a), full.flatten(4, 5).flatten(2, 3)

    @property
    def _number(self) -> int:
        """The number of lines."""
        return self.grid[1 if self.axis == "column" else 0]

    def _lines(self, u: Tensor) -> Tensor:
        """(B, N, D) -> (B lines, l, D)."""
        z = u.unflatten(1, self.grid)  # (B, rows, columns, D)
        return (z.transpose(1, 2) if self.axis == "column" else z).flatten(0, 1)

    def _together(self, lines: Tensor) -> Tensor:
        """(B lines, l, D) -> (B, N, D)."""
        z = lines.unflatten(0, (-1, self._number))  # (B, lines, l, D)
        return (z.transpose(1, 2) if self.axis == "column" else z).flatten(1, 2)


class PositionSensitiveAttention(nn.Module):
    """Unscaled attention along lines of `length`, with a distance term for query, key and value.

    Keys and queries have half the width of values. All heads share one table of offsets. The key's term uses the key's
    place, as in Axial-DeepLab; the code that the authors released later uses the query's.
    """

    def __init__(self, width: int, heads: int, length: int, axis: Axis) -> None:
        super().__init__()
        self.heads = heads
        self.axis = axis
        self.qkv = nn.Parameter(torch.empty(2 * width, width))
        self.qkv_norm = group_norm(2 * width, NORM_EPS)
        self.offsets = nn.Parameter(torch.empty(2 * width // heads, 2 * length - 1))
        self.norm = group_norm(width, NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        z = self.qkv_norm(F.conv2d(x, self.qkv[:, :, None, None]))  # (B, 2C, H, W)
        z = z if self.axis == "row" else z.transpose(2, 3)  # (B, 2C, lines, l)
        q, k, v = self._split(z.unflatten(1, (self.heads, -1)), dim=2)  # (B, h, c, lines, l)
        rq, rk, rv = self._split(by_offset(self.offsets), dim=0)  # (c, l, l) by query i and key j
        logits = (
            torch.einsum("bhcni,bhcnj->bhnij", q, k)
            + torch.einsum("bhcni,cij->bhnij", q, rq)
            + torch.einsum("bhcnj,cij->bhnij", k, rk)
        )
        a = logits.softmax(dim=-1)  # (B, h, lines, l, l)
        y = torch.einsum("bhnij,bhcnj->bhcni", a, v) + torch.einsum("bhnij,cij->bhcni", a, rv)
        y = y.flatten(1, 2)  # (B, C, lines, l)
        return self.norm(y if self.axis == "row" else y.transpose(2, 3))

    @staticmethod
    def _split(x: Tensor, dim: int) -> tuple[Tensor, ...]:
        """Split the channels into query, key and value: a quarter, a quarter and a half."""
        quarter = x.shape[dim] // 4
        return x.split([quarter, quarter, 2 * quarter], dim=dim)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw normal weights with deviation 1 / C, and 1 / (C / h) for the offsets."""
        width = self.qkv.shape[1]
        nn.init.normal_(self.qkv, std=1 / width, generator=generator)
        nn.init.normal_(self.offsets, std=self.heads / width, generator=generator)
        self.qkv_norm.reset_parameters()
        self.norm.reset_parameters()


def by_offset(offsets: Tensor) -> Tensor:
    """(2C/h, 2l-1) -> (2C/h, l, l): the vector of the offset j - i from query i to key j."""
    length = (offsets.shape[1] + 1) // 2
    places = torch.arange(length, device=offsets.device)
    return offsets[:, places[None, :] - places[:, None] + length - 1]


torch.fx.wrap("by_offset")  # symbolic tracing has no sizes to count to


class AxialUnit(nn.Module):
    """A ResNet-v1 bottleneck with two axial attentions instead of the 3x3 convolution; a stride averages after them."""

    def __init__(
        self, inputs: int, middle: int, *, heads: int, grid: tuple[int, int], stride: int, how: Convolutions
    ) -> None:
        super().__init__()
        outputs = 4 * middle
        self.stride = stride
        self.conv1 = StandardConv(inputs, middle, 1, how=how)
        self.norm1 = group_norm(middle, NORM_EPS)
        self.column = PositionSensitiveAttention(middle, heads, grid[0], "column")
        self.row = PositionSensitiveAttention(middle, heads, grid[1], "row")
        self.conv3 = StandardConv(middle, outputs, 1, how=how)
        self.norm3 = group_norm(outputs, NORM_EPS)
        changes = stride != 1 or inputs != outputs
        self.shortcut = StandardConv(inputs, outputs, 1, how=how, stride=stride) if changes else None
        self.shortcut_norm = group_norm(outputs, NORM_EPS) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 4 C', H/stride, W/stride)."""
        m = F.relu(self.norm1(self.conv1(x)))
        m = self.row(self.column(m))
        if self.stride != 1:
            m = F.avg_pool2d(m, self.stride)
        m = self.norm3(self.conv3(F.relu(m)))
        if self.shortcut is not None and self.shortcut_norm is not None:
            x = self.shortcut_norm(self.shortcut(x))
        return F.relu(x + m)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the convolutions; the last norm starts at zero, so that a new unit equals its shortcut."""
        initialise_all(self, generator)
        self.column.initialise(generator)
        self.row.initialise(generator)
        nn.init.zeros_(self.norm3.weight)


class AxialResNet(Classifier[AxialResNetSpec]):
    """The ResNet of appendix D.6 with axial attention instead of 3x3 convolutions."""

    def __init__(self, spec: AxialResNetSpec) -> None:
        super().__init__(spec)
        how = spec.conventions.hybrid
        self.root = StandardConv(3, spec.root, 7, how=how, stride=2, same=True)
        self.root_norm = group_norm(spec.root, NORM_EPS)
        units, inputs, cells = [], spec.root, 4
        for stage, number in enumerate(spec.stages):
            middle = spec.root * 2**stage
            for index in range(number):
                stride = 2 if stage and not index else 1
                grid = (spec.image[0] // cells, spec.image[1] // cells)  # attention comes before the stride
                units.append(AxialUnit(inputs, middle, heads=spec.heads, grid=grid, stride=stride, how=how))
                inputs, cells = 4 * middle, cells * stride
        self.units = nn.ModuleList(units)
        self.head = make_head(spec)

    def pooled(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D): the mean of the last feature map."""
        self.check(images)
        x = F.relu(self.root_norm(self.root(images)))  # (B, C, H/2, W/2)
        x = root_pool(x)  # (B, C, H/4, W/4)
        for unit in self.units:
            x = unit(x)
        return x.mean(dim=(2, 3))

    def resize(self, image: Image) -> None:
        """Raise a ValueError for any other size: the offset tables belong to one size."""
        if image_size(image) == self.spec.image:
            return
        size = "{}x{}".format(*self.spec.image)
        raise ValueError(f"an AxialResNet cannot be resized; keep the image at {size}, or build another model")

    def initialise(self, generator: torch.Generator, head_bias: float = 0.0) -> None:
        """Draw the weights as in the authors' code; the head is zero."""
        self.root.initialise(generator)
        self.root_norm.reset_parameters()
        for unit in cast(Iterable[AxialUnit], self.units):
            unit.initialise(generator)
        self.head.initialise(generator, head_bias)
