"""Eq. 1 of the paper: embedded patches and learned positions, and how each library resizes the positions."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.spec import PositionResize


def patchify(images: Tensor, patch: int) -> Tensor:
    """(B, C, H, W) -> (B, N, C P P) in raster order; within a patch channels vary slowest, as in a convolution."""
    z = images.unflatten(2, (-1, patch)).unflatten(4, (-1, patch))  # (B, C, H/P, P, W/P, P)
    return z.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, N, C P P)


class PatchEmbedding(nn.Module):
    """The linear map E on flattened patches, stored in the shape of the equivalent convolution (D, C, P, P)."""

    def __init__(self, patch: int, width: int, channels: int = 3) -> None:
        super().__init__()
        self.patch = patch
        self.weight = nn.Parameter(torch.empty(width, channels, patch, patch))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, N, D)."""
        return F.linear(patchify(images, self.patch), self.weight.flatten(1), self.bias)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw LeCun normal weights for C P P inputs; the bias is zero."""
        lecun_normal_(self.weight, generator)
        nn.init.zeros_(self.bias)


def lecun_normal_(weight: Tensor, generator: torch.Generator) -> None:
    """Fill with a normal truncated at two deviations, rescaled so that its own deviation is 1/sqrt(inputs)."""
    deviation = math.sqrt(1 / weight[0].numel()) / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)


# The arguments that each library passes to `interpolate`, and the precision it computes in. The authors' code uses
# scipy's zoom of order 1, which aligns corners; bicubic and half-pixel centres came later.
RESIZERS: dict[PositionResize, tuple[torch.dtype, dict[str, Any]]] = {
    "paper": (torch.float64, {"mode": "bilinear", "align_corners": True}),
    "timm": (torch.float32, {"mode": "bicubic", "align_corners": False, "antialias": True}),
    "hf": (torch.float32, {"mode": "bicubic", "align_corners": False}),
    "torchvision": (torch.float32, {"mode": "bicubic", "align_corners": True}),
    "deit": (torch.float32, {"mode": "bicubic", "align_corners": False}),
}


def resize_grid(table: Tensor, old: tuple[int, int], new: tuple[int, int], how: PositionResize) -> Tensor:
    """(1, N, D) of the `old` (rows, columns) grid -> (1, N', D) of the `new` one."""
    if old == new:
        return table
    precision, arguments = RESIZERS[how]
    grid = table.detach().to(precision).unflatten(1, old).permute(0, 3, 1, 2)  # (1, D, rows, columns)
    return F.interpolate(grid, size=new, **arguments).flatten(2).mT.to(table.dtype)  # (1, N', D)


class Positions(nn.Module):
    """One learned vector per token. The first `prefix` rows belong to the class and distillation tokens."""

    def __init__(self, grid: tuple[int, int], width: int, *, prefix: int) -> None:
        super().__init__()
        self.grid = grid
        self.prefix = prefix
        self.table = nn.Parameter(torch.empty(1, prefix + grid[0] * grid[1], width))

    def forward(self, z: Tensor) -> Tensor:
        """(B, n, D) -> (B, n, D)."""
        return z + self.table

    def resize(self, grid: tuple[int, int], how: PositionResize) -> None:
        """Interpolate the rows of the patches to another grid, in place; the first `prefix` rows stay as they are."""
        patches = resize_grid(self.table[:, self.prefix :], self.grid, grid, how)
        self.table = nn.Parameter(torch.cat([self.table[:, : self.prefix].detach(), patches], dim=1))
        self.grid = grid

    def initialise(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.table, std=0.02, generator=generator)


class Positions2D(nn.Module):
    """A patch at row r and column c gets the halves X[c] and Y[r]; the first `prefix` tokens have rows of their own.

    The paper does not define the class token's position in two dimensions; here it is a learned vector, as in one.
    """

    def __init__(self, grid: tuple[int, int], width: int, *, prefix: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.empty(1, grid[1], width // 2))
        self.y = nn.Parameter(torch.empty(1, grid[0], width // 2))
        self.first = nn.Parameter(torch.empty(1, prefix, width)) if prefix else None

    def table(self) -> Tensor:
        """Return the vectors of all tokens, (1, n, D)."""
        rows, columns = self.y.shape[1], self.x.shape[1]
        x = self.x.unsqueeze(1).expand(-1, rows, -1, -1)  # (1, rows, columns, D/2)
        y = self.y.unsqueeze(2).expand(-1, -1, columns, -1)  # (1, rows, columns, D/2)
        patches = torch.cat([x, y], dim=-1).flatten(1, 2)  # (1, N, D)
        return patches if self.first is None else torch.cat([self.first, patches], dim=1)

    def forward(self, z: Tensor) -> Tensor:
        """(B, n, D) -> (B, n, D)."""
        return z + self.table()

    def resize(self, grid: tuple[int, int], how: PositionResize) -> None:
        """Interpolate both axes to another grid, in place."""
        self.y = nn.Parameter(resize_grid(self.y, (self.y.shape[1], 1), (grid[0], 1), how).detach())
        self.x = nn.Parameter(resize_grid(self.x, (self.x.shape[1], 1), (grid[1], 1), how).detach())

    def initialise(self, generator: torch.Generator) -> None:
        for table in self.parameters():
            nn.init.normal_(table, std=0.02, generator=generator)


TABLES: dict[str, type[Positions] | type[Positions2D]] = {"1d": Positions, "2d": Positions2D}
