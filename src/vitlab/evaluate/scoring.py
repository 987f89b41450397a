"""A module and batches in, scores out: also the form a training loop calls between its steps."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vitlab.evaluate.multilabel import AnyScores
from vitlab.evaluate.scores import Scores


class Scored(Protocol):
    """What a batch must have: pixels (n, 3, H, W) of uint8, and the labels of its n samples."""

    @property
    def pixels(self) -> Tensor: ...
    @property
    def labels(self) -> Sequence[Sequence[int]]: ...


Normalise = Callable[[Tensor], Tensor]
Numbers = Callable[[nn.Module], dict[str, float]]


def score(module: nn.Module, batches: Iterable[Scored], normalise: Normalise, classes: int) -> Scores:
    """Scores of a module over batches, each sample once; run on the device and in the precision of its weights."""
    scores = Scores(classes)
    fill(scores, module, batches, normalise)
    return scores


def fill(
    scores: AnyScores,
    module: nn.Module,
    batches: Iterable[Scored],
    normalise: Normalise,
    watch: Callable[[Any, Tensor], None] = lambda batch, logits: None,
) -> None:
    """Add every sample of the batches to scores of any task, as `score` does; `watch` sees each batch with logits."""
    for batch, logits in outputs(module, batches, normalise):
        scores.add(logits, batch.labels)
        watch(batch, logits)


def outputs(
    module: nn.Module,
    batches: Iterable[Scored],
    normalise: Normalise,
    function: Callable[[Tensor], Tensor] | None = None,
) -> Generator[tuple[Scored, Tensor], None, None]:
    """Each batch with what the module, or a `function` of it, makes of it; batches whose samples are all bad too."""
    weight = next(module.parameters())
    with evaluating(module):
        for batch in batches:
            images = normalise(batch.pixels.to(weight.device)).to(weight.dtype)
            with torch.inference_mode():
                made = (function or module)(images)
            yield batch, made


def hook(
    batches: Callable[[], Iterable[Scored]],
    normalise: Normalise,
    classes: int,
    merge: Callable[[Scores], Scores] = lambda own: own,
) -> Numbers:
    """What a training loop calls every so often: model -> numbers by name, over fresh `batches` each time.

    On several ranks `batches` gives each its share and `merge` adds up the scores of all of them.
    """

    def measure(module: nn.Module) -> dict[str, float]:
        return merge(score(module, batches(), normalise, classes)).numbers()

    return measure


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module without dropout inside the block; every part of it is as it was afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
