"""How the gradients of many ranks become one: whole copies of the model (DDP), or a part of it each (FSDP2)."""

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
BYTES = 16  # of a trained parameter: itself, its gradient and two moments, each of float32
ROOM = 0.5  # of a device's memory that these may take; the rest is for activations


class Alone:
    """One rank: gradients add up by themselves."""

    is_sharded = False
    needs_rehearsal = False  # a way through the model and back whose gradients nobody uses, before the first step

    def __init__(self, forward: nn.Module) -> None:
        self.forward = forward

    def passes(self, pieces: Sequence[int], rank: int) -> int:
        """How many pieces this rank takes through the model, given how many it and the others have."""
        return pieces[rank]

    def adding(self, *, is_last: bool) -> AbstractContextManager[object]:
        """Around the way of a piece through the model and back."""
        return nullcontext()


class Replicated(Alone):
    """The whole model on every rank; gradients are summed, not averaged, on the way back of the last piece.

    A rank without images takes one empty piece through the model, or the others would wait for it.
    """

    def __init__(self, forward: nn.Module) -> None:
        # Said of the class token, whose only row may have any stride.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides", UserWarning)
        wrapped = DistributedDataParallel(forward, forward_sync_buffers=False, gradient_as_bucket_view=True)
        wrapped.register_comm_hook(None, _summed)
        super().__init__(wrapped)
        # After the first way back torch orders the gradients anew, and the order of the sums of three ranks and more
        # with them: without a rehearsal the first step after a resume would round otherwise than in an unbroken run.
        self.needs_rehearsal = True

    def passes(self, pieces: Sequence[int], rank: int) -> int:
        return max(pieces[rank], 1)

    def adding(self, *, is_last: bool) -> AbstractContextManager[object]:
        return nullcontext() if is_last else cast(DistributedDataParallel, self.forward).no_sync()


class Sharded(Alone):
    """Every rank has a part of each parameter, its gradient and its moments; blocks are whole only while they compute.

    Each piece has exchanges on its way, so all ranks take as many as the one with the most.
    """

    is_sharded = True

    def passes(self, pieces: Sequence[int], rank: int) -> int:
        return max(pieces)


def _summed(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """The loss is already divided by the images of all ranks: an average would have to be undone, with rounding."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def choose(wish: str, world: World, device: torch.device, parameters: int) -> tuple[Kind, str]:
    """The kind of parallelism, and why."""
    if world.ranks == 1:
        return "alone", "one rank"
    if wish in ("ddp", "fsdp"):
        return cast(Kind, wish), "as asked for"
    needed, there = BYTES * parameters, memory_of(device, world)
    said = f"{parameters / 1e6:,.1f} M parameters take {needed / 2**30:,.1f} of {there / 2**30:,.1f} GiB a rank"
    return ("fsdp" if needed > ROOM * there else "ddp"), said


def memory_of(device: torch.device, world: World) -> int:
    """Bytes of memory that a rank has for itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // world.places


def wrapped(forward: nn.Module, world: World, *, is_exact: bool = False) -> Alone:
    """The module so that its gradients are those of all ranks; one that is summed shard by shard stays as it is."""
    if is_cut(forward):
        return Sharded(forward)
    return Alone(forward) if world.ranks == 1 or is_exact else Replicated(forward)


def shard(module: nn.Module, device: torch.device, *, is_half: bool) -> None:
    """Cut every parameter of the module into parts, block by block; one on the meta device stays without storage.

    With `is_half` parameters travel and compute as bfloat16; gradients are summed, and kept, as float32.
    """
    from torch.distributed.device_mesh import init_device_mesh  # seconds that others need not wait
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": True}  # parameters are parts whenever one looks
    if is_half:
        policy["mp_policy"] = half
    for block in getattr(module, "blocks", ()):
        fully_shard(block, **policy)
    module.register_forward_hook(_own)  # before FSDP's, which then sees what this makes
    fully_shard(module, **policy)
    for method in ("features", "both_logits"):
        if hasattr(module, method):
            register_fsdp_forward_method(module, method)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)  # a sum, as in `_summed`
            part.set_force_sum_reduction_for_comms(True)


def _own(module: nn.Module, inputs: object, answer: object) -> object:
    """The answer in memory of its own: FSDP gathers the weights for the way back by a hook on it, and who writes into
    a view loses the hook, and with it the gradients. A dense layer on many tokens, as of masked patches, is a view."""
    is_view = isinstance(answer, Tensor) and answer.requires_grad and answer._is_view()
    return cast(Tensor, answer).clone() if is_view else answer


@torch.no_grad()
def spread_weights(target: nn.Module, source: nn.Module | None, world: World = ALONE) -> None:
    """Fill a sharded module from the whole one that the first rank has, a tensor at a time."""
    given = None if source is None else source.state_dict()
    for name, tensor in target.state_dict().items():
        full = torch.empty(tensor.shape, dtype=tensor.dtype) if given is None else given[name].detach().contiguous()
        full = full.to(tensor.device)
        world.spread(full)
        part = part_of(tensor)
        part.values.copy_(full if part.rows is None else full[part.rows.start : part.rows.stop])


def is_cut(module: nn.Module) -> bool:
    """Whether the module's parameters are parts."""
    return any(is_sharded(parameter) for parameter in module.parameters())


# -- Tensors of which every rank has some rows ------------------------------------------------------


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
