"""A model on several ranks: a whole copy on each (DDP), or some rows of every tensor on each (FSDP2)."""

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitlab.world.group import ALONE, World

Kind = Literal["alone", "ddp", "fsdp"]
BYTES = 16  # per trained parameter: value, gradient and two moments in float32
ROOM = 0.5  # share of a device's memory for these; the rest is for activations


class Alone:
    """One rank: nothing is exchanged."""

    is_sharded = False
    needs_rehearsal = False  # a forward and backward pass before the first step, whose gradients are discarded

    def __init__(self, forward: nn.Module) -> None:
        self.forward = forward

    def passes(self, pieces: Sequence[int], rank: int) -> int:
        """How many forward and backward passes this rank makes, given the pieces of every rank."""
        return pieces[rank]

    def adding(self, *, is_last: bool) -> AbstractContextManager[object]:
        """Context of the forward and backward pass of one piece."""
        return nullcontext()


class Replicated(Alone):
    """The whole model on every rank; gradients are summed, not averaged, in the backward pass of the last piece.

    A rank without images makes one pass with a blank picture, because the others wait for it.
    """

    def __init__(self, forward: nn.Module) -> None:
        # Concerns the class token, whose single row may have any stride.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides", UserWarning)
        wrapped = DistributedDataParallel(forward, forward_sync_buffers=False, gradient_as_bucket_view=True)
        wrapped.register_comm_hook(None, _summed)
        super().__init__(wrapped)
        # After the first backward pass torch reorders the gradients, and with them the order of sums over three or
        # more ranks. Without a rehearsal the first step after a resume would round differently than uninterrupted.
        self.needs_rehearsal = True

    def passes(self, pieces: Sequence[int], rank: int) -> int:
        return max(pieces[rank], 1)

    def adding(self, *, is_last: bool) -> AbstractContextManager[object]:
        return nullcontext() if is_last else cast(DistributedDataParallel, self.forward).no_sync()


class Sharded(Alone):
    """Every rank holds a part of each parameter, gradient and moment; a block is gathered only while it computes.

    Ranks exchange parameters in every pass, so all make as many passes as the rank with the most pieces.
    """

    is_sharded = True

    def passes(self, pieces: Sequence[int], rank: int) -> int:
        return max(pieces)


def _summed(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Sum, not average: the loss is already divided by the images of all ranks."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def choose(wish: str, world: World, device: torch.device, parameters: int) -> tuple[Kind, str]:
    """Choose the kind of parallelism; returns it with the reason."""
    if world.ranks == 1:
        return "alone", "one rank"
    if wish in ("ddp", "fsdp"):
        return cast(Kind, wish), "as requested"
    needed, there = BYTES * parameters, memory_of(device, world)
    said = f"{parameters / 1e6:,.1f} M parameters take {needed / 2**30:,.1f} of {there / 2**30:,.1f} GiB per rank"
    return ("fsdp" if needed > ROOM * there else "ddp"), said


def memory_of(device: torch.device, world: World) -> int:
    """Bytes of memory available to one rank."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // world.places


def wrapped(forward: nn.Module, world: World, *, is_exact: bool = False) -> Alone:
    """Wrap the module so that its gradients are summed over all ranks.

    With `is_exact` the update sums them itself, and the module is not wrapped.
    """
    if is_cut(forward):
        return Sharded(forward)
    return Alone(forward) if world.ranks == 1 or is_exact else Replicated(forward)


def shard(module: nn.Module, device: torch.device, *, is_half: bool) -> None:
    """Split every parameter of the module over the ranks, block by block; works on the meta device too.

    With `is_half` parameters are gathered and used as bfloat16; gradients are summed and kept in float32.
    """
    from torch.distributed.device_mesh import init_device_mesh  # takes seconds to import
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy: dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": True,
    }  # outside of forward, parameters are always split
    if is_half:
        policy["mp_policy"] = half
    for block in getattr(module, "blocks", ()):
        fully_shard(block, **policy)
    module.register_forward_hook(_own)  # before FSDP's own hook, which then sees its result
    fully_shard(module, **policy)
    for method in ("features", "both_logits"):
        if hasattr(module, method):
            register_fsdp_forward_method(module, method)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)  # a sum, as in `_summed`
            part.set_force_sum_reduction_for_comms(True)


def _own(module: nn.Module, inputs: object, answer: object) -> object:
    """Clone an output that is a view. FSDP gathers weights for the backward pass by a hook on the output; writing into
    a view loses the hook, and with it the gradients. The output of a dense layer on many tokens is a view.
    """
    is_view = isinstance(answer, Tensor) and answer.requires_grad and answer._is_view()
    return cast(Tensor, answer).clone() if is_view else answer


@torch.no_grad()
def spread_weights(target: nn.Module, source: nn.Module | None, world: World = ALONE) -> None:
    """Fill a sharded module from the whole one on rank 0, one tensor at a time."""
    given = None if source is None else source.state_dict()
    for name, tensor in target.state_dict().items():
        full = torch.empty(tensor.shape, dtype=tensor.dtype) if given is None else given[name].detach().contiguous()
        full = full.to(tensor.device)
        world.spread(full)
        part = part_of(tensor)
        part.values.copy_(full if part.rows is None else full[part.rows.start : part.rows.stop])


def is_cut(module: nn.Module) -> bool:
    """Whether the module's parameters are split over ranks."""
    return any(is_sharded(parameter) for parameter in module.parameters())


# -- Tensors of which every rank has some rows ------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """This rank's part of a tensor: `rows` of its first dimension; None if it has the whole tensor."""

    values: Tensor
    rows: range | None
    shape: tuple[int, ...]


def is_sharded(tensor: Tensor) -> bool:
    """Whether the tensor is split by rows over the ranks."""
    made = sys.modules.get("torch.distributed.tensor")  # importing it takes seconds, needed only for such tensors
    return made is not None and isinstance(tensor, made.DTensor)


def own_part(tensor: Tensor) -> Tensor:
    """This rank's rows of a tensor, sharing its memory; all of one that is not sharded."""
    return cast(Any, tensor).to_local() if is_sharded(tensor) else tensor


def part_of(tensor: Tensor) -> Part:
    """This rank's part of a tensor, with the rows it covers."""
    rows = _rows(tensor) if is_sharded(tensor) else None
    return Part(own_part(tensor), rows, tuple(tensor.shape))


def _rows(tensor: Any) -> range:
    (placement,) = tensor.placements
    assert placement.is_shard(0), "parameters are split by rows"
    return rows_of_rank(tensor.shape[0], tensor.device_mesh.get_local_rank(), tensor.device_mesh.size())


def rows_of_rank(length: int, rank: int, ranks: int) -> range:
    """The rows of a rank, of `length` in all; all ranks have the same number, the last ones fewer or none."""
    size = -(-length // ranks)
    return range(min(rank * size, length), min((rank + 1) * size, length))


def like(tensor: Tensor, values: Tensor) -> Tensor:
    """Wrap this rank's rows as a tensor split like `tensor`."""
    if not is_sharded(tensor):
        return values
    from torch.distributed.tensor import DTensor

    cut = cast(DTensor, tensor)
    return DTensor.from_local(
        values, cut.device_mesh, cut.placements, run_check=False, shape=cut.shape, stride=cut.stride()
    )


@torch.no_grad()
def whole(tensor: Tensor) -> Tensor:
    """The whole tensor on every rank; all ranks must call it."""
    return cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor
