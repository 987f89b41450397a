"""Streams: parts of a batch computed at the same time, each on one thread.

With all threads in every operator, each operator ends when the slowest thread does. Streams wait for each other once
per step. A stream's result does not depend on how many others run beside it, and gradients are added in the order of
the parts, so the bits are the same on any number of threads.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor

Found = tuple[Tensor, tuple[Tensor | None, ...]]  # loss and gradients of a part


@contextmanager
def one_thread() -> Iterator[int]:
    """Let torch compute on one thread inside the block; yields the number of threads outside it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield before
    finally:
        torch.set_num_threads(before)


def divided(examples: range, parts: int) -> list[range]:
    """Split a range into parts whose sizes differ by at most one; fewer parts if there are fewer examples."""
    parts = max(min(parts, len(examples)), 1)
    ends = [len(examples) * number // parts for number in range(parts + 1)]
    return [examples[start:end] for start, end in pairwise(ends)]


def add_gradients(
    loss_of: Callable[[range], Tensor], parts: Sequence[range], parameters: Sequence[Tensor], *, threads: int
) -> list[Tensor]:
    """Add the gradients of every part's loss to the parameters; returns the losses.

    At most `threads` parts are computed at the same time. Call it inside `one_thread`. The losses must not draw random
    numbers: all threads share torch's generator.
    """

    def gradients(part: range) -> Found:
        torch.set_num_threads(1)  # every thread has its own number
        loss = loss_of(part)
        return loss.detach(), torch.autograd.grad(loss, parameters, allow_unused=True)

    losses = []
    with ThreadPoolExecutor(threads) as pool:
        for loss, found in pool.map(gradients, parts):  # in the order of the parts
            losses.append(loss)
            _add(parameters, found)
    return losses


@torch.no_grad()
def _add(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    sums, added, taken = [], [], set()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None and parameter.grad is not None:
            sums.append(parameter.grad)
            added.append(gradient)
        elif gradient is not None:
            parameter.grad = _own(gradient, parameter, taken)
    if sums:
        torch._foreach_add_(sums, added)


def _own(gradient: Tensor, parameter: Tensor, taken: set[int]) -> Tensor:
    """The gradient in the parameter's memory order, copied if it shares its memory; `taken` is the memory of others.

    Of a single image, the gradients of the class token and of the positions are views of one tensor.
    """
    memory = gradient.untyped_storage()
    is_alone = memory.nbytes() == gradient.nbytes and memory.data_ptr() not in taken
    taken.add(memory.data_ptr())
    if is_alone and gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
