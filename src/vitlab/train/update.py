"""One update: the batch in pieces that fit, one gradient, one step of the optimizer, one of the average."""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitlab.recipe import Execution, Recipe
from vitlab.require import require
from vitlab.train.losses import sigmoid_cross_entropy, softmax_cross_entropy
from vitlab.train.mixing import Mixing, mixing_of
from vitlab.train.optimizers import clip_gradients, set_learning_rate, update_average
from vitlab.train.state import TrainState
from vitlab.world.device import seed_device
from vitlab.world.group import ALONE, World
from vitlab.world.parallel import Alone

BACKBONE = "backbone"  # of a model: all but its head


@dataclass(frozen=True)
class Examples:
    """This rank's share of a batch: inputs as they were loaded, targets (n, ...), and how many belong to each shard.

    Shards are fixed parts of the batch, numbered, whoever computes them: pictures are mixed with others of their shard.
    """

    inputs: Tensor
    targets: Tensor
    shards: Mapping[int, int] = field(default_factory=dict)  # number -> examples, in their order; empty: all are one


@dataclass(frozen=True)
class Piece:
    """Examples that are in memory at once: pictures as loaded, mixed where the recipe mixes, and as the module takes
    them; and what is asked of it."""

    pixels: Tensor
    inputs: Tensor
    targets: Tensor


Call = Callable[..., Tensor]  # the module in training, in the run's precision
Objective = Callable[[Call, Piece], Tensor]  # -> (n,): the loss of each example


@dataclass(frozen=True)
class Step:
    """What one update showed; a skipped one changed nothing, because the loss or the gradient was not finite, or
    because none of its images could be read."""

    loss: float
    gradient_norm: float
    rate: float
    images: int
    skipped: bool


class Update:
    """How a run's batches become updates.

    `prepare` turns a piece of the inputs into what the module takes; it runs piece by piece, on the device.
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
        """Change the state by one batch; `forward` is the state's module, or wraps it.

        All ranks call it with their shares, of which some may be empty, and see the same loss and norm.
        """
        recipe, step = self.recipe, state.progress.step
        shares = self.world.counts(len(examples.inputs))
        images = sum(shares)
        rate = recipe.schedule.learning_rate(step)
        if not images:  # all of the batch are bad: nothing to learn from
            return Step(math.nan, math.nan, rate, 0, skipped=True)
        forward.train()
        if self.parallel is not None and self.parallel.needs_rehearsal:
            self.parallel.needs_rehearsal = False
            self._loss(forward, self._blank(examples)).backward()
        state.optimizer.zero_grad(set_to_none=True)
        if self.execution.exact_elastic:
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
        """Add every piece's gradient; returns this rank's part of the mean loss over the whole batch."""
        parallel, rank = self.parallel or Alone(forward), self.world.rank
        pieces = [len(self._pieces(range(share))) for share in shares]
        own = self._pieces(range(len(examples.inputs)))
        before = sum(pieces[:rank])  # pieces of other ranks: no two draw the same dropout
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

    def _shard_by_shard(self, forward: nn.Module, examples: Examples, step: int, images: int) -> float:
        """The gradient of every shard by itself, then their sum in the shards' order, whoever computed them: the same
        bits on any number of ranks. Returns the mean loss over the whole batch."""
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
                gradients.append(torch.cat([_flat_gradient(parameter) for parameter in trained]))
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
        """What is in memory at once."""
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
        """One black picture without a label, for a rank that has fewer pieces than the others wait for."""
        pixels, targets = (values.new_zeros(1, *values.shape[1:]) for values in (examples.inputs, examples.targets))
        return Piece(pixels, self.prepare(pixels), targets)

    def _piece(self, examples: Examples, chosen: range, mixing: Mixing | None) -> Piece:
        pixels, targets = examples.inputs[chosen.start : chosen.stop], examples.targets[chosen.start : chosen.stop]
        if mixing is not None:
            pixels, targets = mixing.pictures(examples.inputs, chosen), mixing.targets(examples.targets, chosen)
        return Piece(pixels, self.prepare(pixels), targets)

    def _call(self, forward: nn.Module, *inputs: Tensor) -> Tensor:
        """What the module answers, in full precision."""
        with self._autocast(inputs[0].device):
            answer = forward(*inputs)
        return answer.float() if answer.dtype == torch.bfloat16 else answer

    def _autocast(self, device: torch.device) -> torch.autocast | nullcontext[None]:
        if self.execution.precision == "fp32" or (self.parallel is not None and self.parallel.is_sharded):
            return nullcontext()  # sharded parameters are cast where they are put together
        return torch.autocast(device.type, dtype=torch.bfloat16)


def supervised(recipe: Recipe, class_weights: Tensor | None = None) -> Objective:
    """The recipe's loss of what the module answers against the labels."""
    if recipe.loss == "sigmoid":
        loss = partial(sigmoid_cross_entropy, label_smoothing=recipe.label_smoothing)
    else:
        loss = partial(softmax_cross_entropy, label_smoothing=recipe.label_smoothing, class_weights=class_weights)
    return lambda call, piece: loss(call(piece.inputs), piece.targets)


def recompute_activations(module: nn.Module) -> None:
    """Let every block of the module forget its activations and compute them again on the way back."""
    blocks = cast(list[nn.Module], list(getattr(module, "blocks", ())))
    require(bool(blocks), f"{type(module).__name__} has no blocks to recompute; leave --recompute out")
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def _flat_gradient(parameter: Tensor) -> Tensor:
    return (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).flatten()


def freeze(module: nn.Module, parts: tuple[str, ...]) -> None:
    """Stop training parameters whose names start with one of `parts`; `backbone` is everything but the head."""
    tops = sorted({name.partition(".")[0] for name, _ in module.named_parameters()})
    for part in parts:
        found = [p for name, p in module.named_parameters() if _belongs(name, part)]
        known = f"known are backbone, {', '.join(tops)}, and their parts, such as blocks.0"
        require(bool(found), f"no part of the model is named {part!r}; {known}")
        for parameter in found:
            parameter.requires_grad_(False)


def _belongs(name: str, part: str) -> bool:
    return not name.startswith("head.") if part == BACKBONE else f"{name}.".startswith(f"{part}.")
