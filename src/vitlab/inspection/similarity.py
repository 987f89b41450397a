"""Similarity of position embeddings (figure 7, centre, and figure 10)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitlab.require import require
from vitlab.spec import ViTSpec


class Likeness(NamedTuple):
    """Mean similarity of adjacent patches, of others in the same row or column, of all others; None without pairs."""

    beside: float | None
    in_line: float | None
    elsewhere: float | None


def likeness(similarity: Tensor) -> Likeness:
    """(rows, columns, rows, columns) -> three numbers that summarise figure 7, centre."""
    rows, columns = similarity.shape[:2]
    down = (torch.arange(rows)[:, None] - torch.arange(rows)).abs()[:, None, :, None]
    across = (torch.arange(columns)[:, None] - torch.arange(columns)).abs()[None, :, None, :]
    down, across = torch.broadcast_tensors(down, across)  # (rows, columns, rows, columns)
    beside = down + across == 1
    in_line = ((down == 0) | (across == 0)) & (down + across > 1)
    elsewhere = (down > 0) & (across > 0)
    means = (similarity[pairs].mean().item() if pairs.any() else None for pairs in (beside, in_line, elsewhere))
    return Likeness(*means)


def position_similarity(model: nn.Module) -> Tensor:
    """(rows, columns, rows, columns): tile [r, c] is the cosine similarity of that patch's position with all others.

    The class token is left out. Raises ValueError for a model without a position table.
    """
    table = getattr(getattr(model, "positions", None), "table", None)
    table = table() if callable(table) else table  # 2-D tables are assembled from rows and columns
    spec = getattr(model, "spec", None)
    if not isinstance(table, Tensor) or not isinstance(spec, ViTSpec):
        raise ValueError(f"{type(model).__name__} has no position table to compare")
    grid = spec.grid
    rows = table.detach().double().cpu()[0, -grid[0] * grid[1] :]  # (N, D)
    require(bool(rows.isfinite().all()), "the position embeddings contain NaN or infinity")
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)  # a zero vector has similarity 0 with all others
    return (rows @ rows.mT).unflatten(1, grid).unflatten(0, grid)
