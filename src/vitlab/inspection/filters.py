"""Principal components of the patch embedding (figure 7, left)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitlab.require import require

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
    require(
        weight.shape[1] == 3,
        "its patches are cut from a feature map, not from the picture, so the filters have no colours to show",
    )
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
    pairs = (
        (directions[..., :, 1:], directions[..., :, :-1]),
        (directions[..., 1:, :], directions[..., :-1, :]),
    )
    cosines = [torch.cosine_similarity(a.flatten(1), b.flatten(1), dim=1) for a, b in pairs]  # (k,) each
    return torch.stack(cosines).mean().item()


def as_pictures(directions: Tensor) -> Tensor:
    """(k, 3, P, P) -> (k, P, P, 3) of 0..1: grey is zero, the largest entry of each is 0 or 1."""
    largest = directions.abs().amax(dim=(1, 2, 3), keepdim=True)
    return (0.5 + 0.5 * directions / largest).permute(0, 2, 3, 1)
