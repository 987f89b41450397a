"""Attention layer by layer and a few images at a time, reduced before the next layer is computed."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from vitlab.models.classifier import check_images
from vitlab.require import require
from vitlab.spec import ViTSpec

T = TypeVar("T")
LAYER_BYTES = 2**26  # of the attention of one layer; batches of images stay below it


class Attentive(Protocol):
    """A model whose every layer has attention between the patches of a grid.

    Vision Transformers and hybrids have it; ResNets and axial models do not.
    """

    spec: ViTSpec

    def layer_attention(self, images: Tensor) -> Iterator[Tensor]:
        """Yield (B, h, n, n) of each layer; the class token, if there is one, comes first."""
        ...


def attentive(model: nn.Module) -> Attentive:
    """Return the model itself; raises ValueError if it has no attention between patches."""
    spec = getattr(model, "spec", None)
    if isinstance(spec, ViTSpec) and spec.attention == "full":
        return cast(Attentive, model)
    why = "it has no attention between patches"
    if isinstance(spec, ViTSpec):
        why = "its attention runs along rows and along columns, never between all patches"
    raise ValueError(
        f"{type(model).__name__} cannot be inspected: {why}; rollout, head maps and attention distance "
        f"need a Vision Transformer"
    )


def each_layer(model: nn.Module, images: Tensor, reduce: Callable[[Tensor], T]) -> list[T]:
    """Apply `reduce` to the attention (B, h, n, n) of each layer; only one layer is in memory at a time."""
    source = attentive(model)
    with at_rest(model), torch.no_grad():
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


def head_maps(model: nn.Module, images: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, L, h, rows, columns): the attention probabilities of each head of each layer."""
    spec = attentive(model).spec
    maps = [  # clones, because a view would keep its layer in memory
        torch.stack(each_layer(model, batch, lambda a: from_query(a, spec).clone()), dim=1)
        for batch in small_batches(model, images)
    ]
    return torch.cat(maps)


@contextlib.contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode inside the block and restore every module's mode afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
