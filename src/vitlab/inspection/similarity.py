"""Similarity of position embeddings (figures 7 centre and 10): what the model has learnt about the plane."""

from torch import Tensor, nn

from vitlab.spec import ViTSpec
from vitlab.strict_json import require


def position_similarity(model: nn.Module) -> Tensor:
    """(rows, columns, rows, columns): tile [r, c] is the cosine similarity of that patch's position with all others.

    The class token's row is left out. A model without a table of positions is a ValueError.
    """
    table = getattr(getattr(model, "positions", None), "table", None)
    table = table() if callable(table) else table  # two-dimensional ones are put together from rows and columns
    spec = getattr(model, "spec", None)
    if not isinstance(table, Tensor) or not isinstance(spec, ViTSpec):
        raise ValueError(f"{type(model).__name__} has no table of positions to compare")
    grid = spec.grid
    rows = table.detach().double().cpu()[0, -grid[0] * grid[1] :]  # (N, D)
    require(bool(rows.isfinite().all()), "the position embeddings hold NaN or infinity")
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)  # a zero vector is like no other
    return (rows @ rows.mT).unflatten(1, grid).unflatten(0, grid)
