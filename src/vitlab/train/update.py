"""One training step: micro-batches, one gradient, one optimizer step, one update of the weight average."""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitlab.require import require
from vitlab.spec.recipe import Execution, Recipe
from vitlab.train.mixing import Mixing, mixing_of
from vitlab.train.objectives import Objective, Piece, supervised
from vitlab.train.optimizers import clip_gradients, set_learning_rate, update_average
from vitlab.train.state import TrainState
from vitlab.train.streams import add_gradients, divided, one_thread
from vitlab.world.device import seed_device
from vitlab.world.group import ALONE, World
from vitlab.world.parallel import Alone

BACKBONE = "backbone"  # everything but the head of a model


@dataclass(frozen=True)
class Examples:
    """This rank's share of a batch: inputs as loaded, targets (n, ...), and the number of examples in each shard.

    Shards are numbered parts of the batch that do not depend on the ranks; images are mixed within their shard.
    """

    inputs: Tensor
    targets: Tensor
    shards: Mapping[int, int] = field(default_factory=dict)  # shard -> examples, in order; empty for a single shard


@dataclass(frozen=True)
class Step:
    """The result of one update. A skipped one (not finite, or without an image) changed nothing."""

    loss: float
    gradient_norm: float
    rate: float
    images: int
    skipped: bool


class Update:
    """Update a state by one batch. `prepare` converts inputs, on the device, to what the module takes.

    Streams need a single rank and a module that draws no random numbers (`train.streams` decides).
    """

    def __init__(
        self,
        recipe: Recipe,
        execution: Execution,
        *,
        seed: int,
        prepare: Callable[[Tensor], Tensor],
        objective: Objective | None = None,
        world: World = ALONE,
        parallel: Alone | None = None,
    ) -> None:
        self.recipe, self.execution, self.seed, self.prepare = recipe, execution, seed, prepare
        self.world, self.parallel = world, parallel
        self.objective = objective or supervised(recipe)

    def __call__(self, state: TrainState, forward: nn.Module, examples: Examples) -> Step:
        """Update the state by one batch; `forward` is its module or a wrapper. Ranks with empty shares call it too."""
        recipe, step = self.recipe, state.progress.step
        shares = self.world.counts(len(examples.inputs))
        images = sum(shares)
        rate = recipe.schedule.learning_rate(step)
        if not images:  # every image of the batch is bad
            return Step(math.nan, math.nan, rate, 0, skipped=True)
        forward.train()
        if self.parallel is not None and self.parallel.needs_rehearsal:
            self.parallel.needs_rehearsal = False
            self._loss(forward, self._blank(examples)).backward()
        state.optimizer.zero_grad(set_to_none=True)
        with one_thread() if self.execution.streams else nullcontext(0) as threads:
            if self.execution.streams:
                loss = self._by_streams(forward, examples, step, threads)
            elif self.execution.exact_elastic:
                loss = self._shard_by_shard(forward, examples, step, images)
            else:
                loss = float(self.world.sum(self._accumulate(forward, examples, step, shares)))
            norm = float(clip_gradients(state.module.parameters(), recipe.optimizer.clip, self.world))
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        if is_finite:
            set_learning_rate(state.optimizer, rate)
            state.optimizer.step()
            if state.average is not None and recipe.average is not None:
                update_average(state.average, state.module, recipe.average)
        return Step(loss, norm, rate, images, skipped=not is_finite)

    def _accumulate(self, forward: nn.Module, examples: Examples, step: int, shares: list[int]) -> Tensor:
        """Accumulate the gradients of all pieces; returns this rank's part of the batch's mean loss."""
        parallel, rank = self.parallel or Alone(forward), self.world.rank
        pieces = [len(self._pieces(range(share))) for share in shares]
        own = self._pieces(range(len(examples.inputs)))
        before = sum(pieces[:rank])  # pieces of lower ranks: every piece has its own dropout seed
        passes = parallel.passes(pieces, rank)
        total, mixing = self._nothing(examples), self._mixing(examples, step)
        for number in range(passes):
            with parallel.adding(is_last=number == passes - 1):
                if number < len(own):
                    seed_device(self.seed, step, before + number)
                    piece = self._piece(examples, own[number], mixing)
                    loss = self._loss(forward, piece) / sum(shares)
                else:
                    loss = self._loss(forward, self._blank(examples)) * 0
                loss.backward()
            total += loss.detach()
        return total

    def _by_streams(self, forward: nn.Module, examples: Examples, step: int, threads: int) -> float:
        """Accumulate the gradients of all pieces, each of them in parts that are computed at the same time; returns the
        batch's mean loss.
        """
        images, mixing, streams = len(examples.inputs), self._mixing(examples, step), self.execution.streams
        trained = [parameter for parameter in forward.parameters() if parameter.requires_grad]
        parts = [part for piece in self._pieces(range(images)) for part in divided(piece, streams)]

        def loss_of(part: range) -> Tensor:
            return self._loss(forward, self._piece(examples, part, mixing)) / images

        losses = add_gradients(loss_of, parts, trained, threads=min(streams, threads))
        return float(sum(losses, self._nothing(examples)))

    def _shard_by_shard(self, forward: nn.Module, examples: Examples, step: int, images: int) -> float:
        """Compute the gradient of every shard, then sum them in the order of shards: the same bits on any number of
        ranks. Returns the batch's mean loss.
        """
        trained = [parameter for parameter in forward.parameters() if parameter.requires_grad]
        mixing = self._mixing(examples, step)
        gradients, losses, start = [], [], 0
        for shard, size in (examples.shards or {0: len(examples.inputs)}).items():
            loss = self._nothing(examples)
            for number, chosen in enumerate(self._pieces(range(start, start + size))):
                seed_device(self.seed, step, shard, number)
                part = self._loss(forward, self._piece(examples, chosen, mixing)) / images
                part.backward()
                loss += part.detach()
            if size:
                found = (torch.zeros_like(p) if p.grad is None else p.grad for p in trained)
                gradients.append(torch.cat([gradient.flatten() for gradient in found]))
                losses.append(loss)
            for parameter in trained:
                parameter.grad = None
            start += size
        empty = torch.zeros(sum(p.numel() for p in trained), device=trained[0].device, dtype=trained[0].dtype)
        total = self.world.fold(gradients, empty)
        for parameter, gradient in zip(trained, total.split([p.numel() for p in trained]), strict=True):
            parameter.grad = gradient.view_as(parameter)
        return float(self.world.fold(losses, self._nothing(examples)))

    def _pieces(self, examples: range) -> list[range]:
        """Split a range of examples into micro-batches."""
        size = self.execution.micro_batch or max(len(examples), 1)
        return [examples[start : start + size] for start in range(0, len(examples), size)]

    def _nothing(self, examples: Examples) -> Tensor:
        device = examples.inputs.device
        return torch.zeros((), device=device, dtype=torch.float64 if device.type == "cpu" else None)

    def _mixing(self, examples: Examples, step: int) -> Mixing | None:
        if not self.recipe.mixes or not len(examples.inputs):
            return None
        height, width = examples.inputs.shape[2:]
        shards = examples.shards or {0: len(examples.inputs)}
        return mixing_of(self.recipe, self.seed, step, shards, (height, width))

    def _loss(self, forward: nn.Module, piece: Piece) -> Tensor:
        return self.objective(partial(self._call, forward), piece).sum()

    def _blank(self, examples: Examples) -> Piece:
        """A black image without a label, for a rank with fewer pieces than the others."""
        pixels, targets = (values.new_zeros(1, *values.shape[1:]) for values in (examples.inputs, examples.targets))
        return Piece(pixels, self.prepare(pixels), targets)

    def _piece(self, examples: Examples, chosen: range, mixing: Mixing | None) -> Piece:
        pixels, targets = examples.inputs[chosen.start : chosen.stop], examples.targets[chosen.start : chosen.stop]
        if mixing is not None:
            pixels, targets = mixing.pictures(examples.inputs, chosen), mixing.blended(examples.targets, chosen)
        return Piece(pixels, self.prepare(pixels), targets)

    def _call(self, forward: nn.Module, *inputs: Tensor) -> Tensor:
        """The module's output in full precision."""
        is_cast = self.parallel is not None and self.parallel.is_sharded  # FSDP casts parameters when it gathers them
        is_plain = is_cast or self.execution.precision != "bf16"
        with nullcontext() if is_plain else torch.autocast(inputs[0].device.type, dtype=torch.bfloat16):
            answer = forward(*inputs)
        return answer.float() if answer.dtype == torch.bfloat16 else answer


def recompute_activations(module: nn.Module) -> None:
    """Recompute the activations of every block in the backward pass: less memory, more time."""
    blocks = cast(list[nn.Module], list(getattr(module, "blocks", ())))
    require(bool(blocks), f"{type(module).__name__} has no blocks to recompute; leave recompute= out")
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def freeze(module: nn.Module, parts: tuple[str, ...]) -> None:
    """Freeze the parameters whose names start with one of `parts`; `backbone` is everything but the head."""
    tops = sorted({name.partition(".")[0] for name, _ in module.named_parameters()})
    for part in parts:
        found = [p for name, p in module.named_parameters() if _belongs(name, part)]
        known = f"known are backbone, {', '.join(tops)}, and their parts, such as blocks.0"
        require(bool(found), f"no part of the model is named {part!r}; {known}")
        for parameter in found:
            parameter.requires_grad_(False)


def _belongs(name: str, part: str) -> bool:
    return not name.startswith("head.") if part == BACKBONE else f"{name}.".startswith(f"{part}.")
