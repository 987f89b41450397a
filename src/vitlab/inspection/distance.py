"""Attention distance (figure 7, right, and figure 11): how far away the patches are that a head attends to."""

import torch
from torch import Tensor, nn

from vitlab.inspection.attention import attentive, each_layer, small_batches
from vitlab.spec import ViTSpec


def attention_distance(model: nn.Module, images: Tensor) -> Tensor:
    """(B, 3, H, W) -> (L, h): mean distance in pixels over queries and images.

    The class token is left out as query and as key, without renormalising: a head that attends only to it has distance
    0.
    """
    spec = attentive(model).spec
    pixels = patch_distances(spec)
    total = torch.zeros(spec.layers, spec.heads, dtype=torch.float64)
    for batch in small_batches(model, images):
        layers = each_layer(model, batch, lambda a: mean_distance(a, pixels).sum(dim=0))
        total += torch.stack(layers).double().cpu()
    return total / len(images)


def mean_distance(attention: Tensor, pixels: Tensor) -> Tensor:
    """(B, h, n, n) and (N, N) distances -> (B, h): the mean over queries of the expected distance."""
    first = attention.shape[-1] - len(pixels)  # 1 with a class token, else 0
    between = attention[..., first:, first:].to(torch.promote_types(attention.dtype, torch.float32))  # (B, h, N, N)
    return torch.einsum("bhij,ij->bh", between, pixels.to(between)) / len(pixels)


def even_distance(spec: ViTSpec) -> float:
    """The attention distance in pixels of a head with uniform attention, for comparison."""
    pixels = patch_distances(spec)
    return (pixels.sum() / (len(pixels) * spec.tokens)).item()


def patch_distances(spec: ViTSpec) -> Tensor:
    """(N, N): distances between the centres of patches, in pixels of the model's input."""
    (rows, columns), (height, width) = spec.grid, spec.image
    y = torch.arange(rows, dtype=torch.float64) * height / rows
    x = torch.arange(columns, dtype=torch.float64) * width / columns
    places = torch.cartesian_prod(y, x).view(-1, 2)  # (N, 2) in raster order
    return (places[:, None] - places).square().sum(dim=-1).sqrt()
