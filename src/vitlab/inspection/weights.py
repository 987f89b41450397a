"""What the weights show: principal components of the patch embedding and similarity of positions (figures 7, 10)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitlab.require import require
from vitlab.spec import ViTSpec

COMPONENTS = 28  # as in the paper


class Components(NamedTuple):
    """`directions` (k, 3, P, P) of unit length, largest variance first, their `share` (k,) of the variance, and the
    `number` of all components.
    """

    directions: Tensor
    share: Tensor
    number: int


def principal_filters(model: nn.Module, components: int = COMPONENTS) -> Components:
    """The first principal components of the D embedding filters, or all if there are fewer.

    The sign of a component is arbitrary; here its largest entry is positive.
    """
    require(components >= 1, f"components {components} must be at least 1")
    weight = getattr(getattr(model, "patches", None), "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 4:
        raise ValueError(f"{type(model).__name__} has no patch embedding, so there are no filters to show")
    require(weight.shape[1] == 3, "its patches are cut from a feature map, so the filters have no colours to show")
    filters = weight.detach().double().cpu().flatten(1)  # (D, 3 P P)
    require(bool(filters.isfinite().all()), "the embedding filters contain NaN or infinity")
    _, sizes, basis = torch.linalg.svd(filters - filters.mean(dim=0), full_matrices=False)
    variance = sizes.square()
    number = min(len(filters) - 1, basis.shape[1])  # centring removes one
    require(number >= 1, "a single filter has no principal components")
    basis, share = basis[:number][:components], (variance / variance.sum())[:number][:components]
    signs = basis.gather(1, basis.abs().argmax(dim=1, keepdim=True)).sign()
    shape = weight.shape[1:]
    return Components((basis * signs).unflatten(1, shape), share, number)


def neighbour_agreement(directions: Tensor) -> float | None:
    """(k, 3, P, P) -> mean cosine of each component with its shift by a pixel: 1 is flat, 0 noise; None if P is 1."""
    if directions.shape[-1] == 1:
        return None
    pairs = [(directions[..., 1:], directions[..., :-1]), (directions[..., 1:, :], directions[..., :-1, :])]
    cosines = [torch.cosine_similarity(a.flatten(1), b.flatten(1), dim=1) for a, b in pairs]  # (k,) each
    return torch.stack(cosines).mean().item()


def as_pictures(directions: Tensor) -> Tensor:
    """(k, 3, P, P) -> (k, P, P, 3) of 0..1: grey is zero, the largest entry of each is 0 or 1."""
    largest = directions.abs().amax(dim=(1, 2, 3), keepdim=True)
    return (0.5 + 0.5 * directions / largest).permute(0, 2, 3, 1)


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
