"""Tensors of which every rank has some rows: what of them is here, and the whole of one."""

import sys
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """What this rank has of a tensor: `rows` of its first dimension, or all of it where there are none."""

    values: Tensor
    rows: range | None
    shape: tuple[int, ...]


def is_sharded(tensor: Tensor) -> bool:
    """Whether other ranks have other rows of it."""
    made = sys.modules.get("torch.distributed.tensor")  # who has no such tensors does not wait seconds for its import
    return made is not None and isinstance(tensor, made.DTensor)


def own_part(tensor: Tensor) -> Tensor:
    """What is here of a tensor, sharing its memory; all of one that is not sharded."""
    return cast(Any, tensor).to_local() if is_sharded(tensor) else tensor


def part_of(tensor: Tensor) -> Part:
    """What is here of a tensor, and which rows of it that is."""
    rows = _rows(tensor) if is_sharded(tensor) else None
    return Part(own_part(tensor), rows, tuple(tensor.shape))


def _rows(tensor: Any) -> range:
    (placement,) = tensor.placements
    assert placement.is_shard(0), "parameters are cut along their rows"
    return rows_of_rank(tensor.shape[0], tensor.device_mesh.get_local_rank(), tensor.device_mesh.size())


def rows_of_rank(length: int, rank: int, ranks: int) -> range:
    """Which of `length` rows a rank has; torch gives each the same number, the last ones fewer or none."""
    size = -(-length // ranks)
    return range(min(rank * size, length), min((rank + 1) * size, length))


def like(tensor: Tensor, values: Tensor) -> Tensor:
    """`values`, which are this rank's rows, as a tensor that is cut like `tensor`."""
    if not is_sharded(tensor):
        return values
    from torch.distributed.tensor import DTensor

    cut = cast(DTensor, tensor)
    return DTensor.from_local(
        values, cut.device_mesh, cut.placements, run_check=False, shape=cut.shape, stride=cut.stride()
    )


@torch.no_grad()
def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, on every rank; all ranks ask for it."""
    return cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor
