"""Learned positions, and how each library stretches them to another grid."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.spec import PositionResize

# What each library passes to `interpolate`, and the precision it computes in. Corner-aligned order 1 is what
# scipy's zoom does in the authors' code; bicubic and half-pixel centres came later.
RESIZERS: dict[PositionResize, tuple[torch.dtype, dict[str, Any]]] = {
    "paper": (torch.float64, {"mode": "bilinear", "align_corners": True}),
    "timm": (torch.float32, {"mode": "bicubic", "align_corners": False, "antialias": True}),
    "hf": (torch.float32, {"mode": "bicubic", "align_corners": False}),
    "torchvision": (torch.float32, {"mode": "bicubic", "align_corners": True}),
    "deit": (torch.float32, {"mode": "bicubic", "align_corners": False}),
}


def resize_grid(table: Tensor, old: tuple[int, int], new: tuple[int, int], how: PositionResize) -> Tensor:
    """(1, N, D) of an `old` (rows, columns) grid -> (1, N', D) of the `new` one."""
    if old == new:
        return table
    precision, arguments = RESIZERS[how]
    grid = table.detach().to(precision).unflatten(1, old).permute(0, 3, 1, 2)  # (1, D, rows, columns)
    return F.interpolate(grid, size=new, **arguments).flatten(2).mT.to(table.dtype)  # (1, N', D)


class Positions(nn.Module):
    """One learned vector per token. The first `prefix` rows are those of the class and distillation tokens."""

    def __init__(self, grid: tuple[int, int], width: int, *, prefix: int) -> None:
        super().__init__()
        self.grid = grid
        self.prefix = prefix
        self.table = nn.Parameter(torch.empty(1, prefix + grid[0] * grid[1], width))

    def forward(self, z: Tensor) -> Tensor:
        """(B, n, D) -> (B, n, D)."""
        return z + self.table

    def resize(self, grid: tuple[int, int], how: PositionResize) -> None:
        """Stretch to another grid in place; the rows of tokens that are no patches stay as they are."""
        patches = resize_grid(self.table[:, self.prefix :], self.grid, grid, how)
        self.table = nn.Parameter(torch.cat([self.table[:, : self.prefix].detach(), patches], dim=1))
        self.grid = grid

    def initialise(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.table, std=0.02, generator=generator)


class Positions2D(nn.Module):
    """A patch at row r and column c gets the halves X[c] and Y[r]; tokens that are no patches have rows of their own.

    The paper does not say what the class token gets in two dimensions; here it is a learned vector, as in one.
    """

    def __init__(self, grid: tuple[int, int], width: int, *, prefix: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.empty(1, grid[1], width // 2))
        self.y = nn.Parameter(torch.empty(1, grid[0], width // 2))
        self.first = nn.Parameter(torch.empty(1, prefix, width)) if prefix else None

    def table(self) -> Tensor:
        """(1, n, D): the vectors of all tokens."""
        rows, columns = self.y.shape[1], self.x.shape[1]
        x = self.x.unsqueeze(1).expand(-1, rows, -1, -1)  # (1, rows, columns, D/2)
        y = self.y.unsqueeze(2).expand(-1, -1, columns, -1)  # (1, rows, columns, D/2)
        patches = torch.cat([x, y], dim=-1).flatten(1, 2)  # (1, N, D)
        return patches if self.first is None else torch.cat([self.first, patches], dim=1)

    def forward(self, z: Tensor) -> Tensor:
        """(B, n, D) -> (B, n, D)."""
        return z + self.table()

    def resize(self, grid: tuple[int, int], how: PositionResize) -> None:
        """Stretch both axes to another grid in place."""
        self.y = nn.Parameter(resize_grid(self.y, (self.y.shape[1], 1), (grid[0], 1), how).detach())
        self.x = nn.Parameter(resize_grid(self.x, (self.x.shape[1], 1), (grid[1], 1), how).detach())

    def initialise(self, generator: torch.Generator) -> None:
        for table in self.parameters():
            nn.init.normal_(table, std=0.02, generator=generator)


TABLES: dict[str, type[Positions] | type[Positions2D]] = {"1d": Positions, "2d": Positions2D}
