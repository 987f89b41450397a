"""Run a module over batches in evaluation mode."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn


class Scored(Protocol):
    """A batch: pixels (n, 3, H, W) of uint8 and the labels of its n samples."""

    @property
    def pixels(self) -> Tensor: ...
    @property
    def labels(self) -> Sequence[Sequence[int]]: ...


def outputs(
    module: nn.Module,
    batches: Iterable[Scored],
    normalise: Callable[[Tensor], Tensor],
    function: Callable[[Tensor], Tensor] | None = None,
) -> Generator[tuple[Scored, Tensor], None, None]:
    """Yield each batch with the output of the module, or of `function` if given; a batch may be empty.

    Runs on the device and in the precision of the module's weights, without gradients and without dropout.
    """
    weight = next(module.parameters())
    with evaluating(module):
        for batch in batches:
            images = normalise(batch.pixels.to(weight.device)).to(weight.dtype)
            with torch.inference_mode():
                made = (function or module)(images)
            yield batch, made


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put the module in evaluation mode inside the block and restore the mode of every submodule afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
