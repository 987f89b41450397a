"""Attention layer by layer, a few images at a time, and its distance (figures 7, right, and 11)."""

from collections.abc import Callable, Iterator
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from vitlab.models.classifier import check_images, evaluating
from vitlab.models.vit import ViT
from vitlab.require import require
from vitlab.spec import SwinSpec, ViTSpec

T = TypeVar("T")
LAYER_BYTES = 2**26  # of the attention of one layer; batches of images stay below it


def attentive(model: nn.Module) -> ViT:
    """Return the model itself; raises ValueError if it has no attention between all patches, as ResNets have none."""
    spec = getattr(model, "spec", None)
    if isinstance(spec, ViTSpec) and spec.attention != "axial":
        return cast(ViT, model)
    why = "it has no attention between patches"
    if isinstance(spec, ViTSpec):
        why = "its attention runs along rows and along columns, never between all patches"
    if isinstance(spec, SwinSpec):
        why = "its attention stays within windows; vitlab.inspect and vitlab.window_attention show that of a pixel"
    raise ValueError(f"{type(model).__name__} cannot be inspected: {why}; give a Vision Transformer or a hybrid")


def each_layer(model: nn.Module, images: Tensor, reduce: Callable[[Tensor], T]) -> list[T]:
    """Apply `reduce` to the attention (B, h, n, n) of each layer; only one layer is in memory at a time."""
    source = attentive(model)
    with evaluating(model), torch.no_grad():
        # Unlike a loop variable, `map` does not keep a layer while the next one is computed.
        return list(map(reduce, source.layer_attention(images)))


def small_batches(model: nn.Module, images: Tensor) -> Iterator[Tensor]:
    """(B, 3, H, W) cut into batches whose attention in one layer stays below LAYER_BYTES, on the model's device."""
    check_images(images)
    require(images.dim() == 4 and len(images) > 0, f"images must be (B, 3, H, W) with B > 0, not {tuple(images.shape)}")
    size, weight = batch_size(model), next(model.parameters())
    for batch in images.split(size):
        yield batch.to(weight.device, weight.dtype)


def batch_size(model: nn.Module) -> int:
    """How many images are processed together."""
    spec = attentive(model).spec
    return max(1, LAYER_BYTES // (4 * spec.heads * spec.tokens**2))


def from_query(rows: Tensor, spec: ViTSpec) -> Tensor:
    """(..., n, n) -> (..., rows, columns): where the class token attends, or with mean pooling all patches on average.

    The columns of the class token and of a distillation token are left out.
    """
    patches = spec.grid[0] * spec.grid[1]
    seen = rows[..., 0, -patches:] if spec.pool == "class" else rows.mean(dim=-2)  # (..., N)
    return seen.unflatten(-1, spec.grid)


def attention_distance(model: nn.Module, images: Tensor) -> Tensor:
    """(B, 3, H, W) -> (L, h): mean distance in pixels over queries and images.

    The class token is left out, without renormalising: a head that attends only to it has distance 0.
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
