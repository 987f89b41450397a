"""Streams: parts of a batch computed at the same time, each on one thread.

With all threads in every operator, each operator ends when the slowest thread does. Streams wait for each other once
per step. A stream's result does not depend on how many others run beside it, and gradients are added in the order of
the parts, so the bits are the same on any number of threads.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor

from vitlab.counting import count_spec
from vitlab.errors import InvalidValue
from vitlab.spec import ModelSpec
from vitlab.spec.recipe import CHOSEN, Execution, Recipe
from vitlab.world.device import pick_device

MOST = 8  # threads: with more, the streams' own gradients would take too much memory
LARGEST = 2**28  # numbers in the gradients of all streams that are chosen automatically: 1 GiB
WORTHWHILE = 10**9  # multiply-accumulates of a part's forward pass: in smaller ones Python takes too much of the time
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

    At most `threads` parts are computed at the same time, and the gradients of at most one more part than that are in
    memory. Call it inside `one_thread`. The losses must not draw random numbers: all threads share torch's generator.
    """

    def gradients(part: range) -> Found:
        torch.set_num_threads(1)  # every thread has its own number
        loss = loss_of(part)
        return loss.detach(), torch.autograd.grad(loss, parameters, allow_unused=True)

    losses = []
    with ThreadPoolExecutor(threads) as pool:
        for loss, found in _in_order(pool, gradients, parts, threads + 1):
            losses.append(loss)
            _add(parameters, found)
            del found  # not held while the next result is awaited
    return losses


def _in_order(
    pool: ThreadPoolExecutor, function: Callable[[range], Found], parts: Sequence[range], most: int
) -> Iterator[Found]:
    """Yield the results in the order of the parts; at most `most` are being computed or wait for one before them.

    After an error, parts that have not begun are not computed.
    """
    begun: deque[Future[Found]] = deque()
    try:
        for part in parts:
            if len(begun) == most:
                yield begun.popleft().result()
            begun.append(pool.submit(function, part))
        while begun:
            yield begun.popleft().result()
    finally:
        for future in begun:
            future.cancel()


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


# -- How many streams a run has --------------------------------------------------------------------


def unfit(model: ModelSpec, execution: Execution, *, ranks: int = 1) -> str:
    """Why a run cannot have streams; empty if it can."""
    device = pick_device(execution.device).type
    if device != "cpu":
        return f"streams are for the CPU, and the device is {device}"
    if ranks > 1:
        return f"streams are for a single rank, and there are {ranks}"
    if execution.precision != "fp32" or execution.compile or execution.exact_elastic:
        return "streams do not work with precision='bf16', compile= or exact_elastic="
    is_random = any(getattr(model, rate, 0) > 0 for rate in ("dropout", "stochastic_depth"))
    return "dropout and stochastic depth draw random numbers, which streams would share" if is_random else ""


def applied(model: ModelSpec, execution: Execution, *, ranks: int = 1) -> int:
    """The streams that a run computes with: those that were recorded, if they apply on this device and these ranks."""
    return 0 if execution.streams < 1 or unfit(model, execution, ranks=ranks) else execution.streams


def resolved(model: ModelSpec, recipe: Recipe, execution: Execution) -> int:
    """The number of streams to record: chosen, or as requested; an InvalidValue if these have no effect."""
    why = unfit(model, execution)
    if execution.streams == CHOSEN:
        return 0 if why else chosen(model, execution.micro_batch or recipe.batch)
    if execution.streams and why:
        raise InvalidValue(f"has no effect in this run: {why}", field="streams")
    return execution.streams


def chosen(model: ModelSpec, images: int) -> int:
    """One stream per thread where that pays; `images` are those of a micro-batch."""
    threads, size = torch.get_num_threads(), count_spec(model)
    is_worthwhile = images // threads * size.macs >= WORTHWHILE
    return threads if 1 < threads <= MOST and is_worthwhile and threads * size.parameters <= LARGEST else 0
