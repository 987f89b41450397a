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
    """One learned vector per token, added once at the stem. Row 0 is the class token's where there is one."""

    def __init__(self, grid: tuple[int, int], width: int, *, class_row: bool) -> None:
        super().__init__()
        self.grid = grid
        self.class_row = class_row
        self.table = nn.Parameter(torch.empty(1, grid[0] * grid[1] + class_row, width))

    def forward(self, z: Tensor) -> Tensor:
        """(B, n, D) -> (B, n, D)."""
        return z + self.table

    def resize(self, grid: tuple[int, int], how: PositionResize) -> None:
        """Stretch to another grid in place; the class token's row stays as it is."""
        first = int(self.class_row)
        patches = resize_grid(self.table[:, first:], self.grid, grid, how)
        self.table = nn.Parameter(torch.cat([self.table[:, :first].detach(), patches], dim=1))
        self.grid = grid

    def initialise(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.table, std=0.02, generator=generator)
