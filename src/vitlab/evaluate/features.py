"""Features of a module over batches, and few-shot accuracy as a training loop calls it."""

from collections.abc import Callable, Iterable
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from vitlab.evaluate.fewshot import ChooseL2, fewshot
from vitlab.evaluate.scoring import Normalise, Numbers, Scored, outputs
from vitlab.require import require


class Featured(Protocol):
    """A module that makes features: images (B, 3, H, W) -> (B, D)."""

    def features(self, images: Tensor) -> Tensor: ...


def features_and_labels(module: nn.Module, batches: Iterable[Scored], normalise: Normalise) -> tuple[Tensor, Tensor]:
    """(n, D) in float32 on the CPU and (n,): everything at once, for sets that fit in memory."""
    x, y = [], []
    for batch, features in outputs(module, batches, normalise, cast(Featured, module).features):
        several = [labels for labels in batch.labels if len(labels) != 1]
        require(not several, f"a sample has {len(several[0]) if several else 0} labels; few-shot needs exactly one")
        x.append(features.float().cpu())
        y += [label for (label,) in batch.labels]
    return torch.cat(x), torch.tensor(y, dtype=torch.long)


def fewshot_hook(
    train: Callable[[], Iterable[Scored]],
    test: Callable[[], Iterable[Scored]],
    normalise: Normalise,
    *,
    shots: Iterable[int] = (5,),
    seed: int | None = None,
    l2: ChooseL2 = "mean-rank",
) -> Numbers:
    """What a training loop calls every so often: model -> few-shot accuracies by name, such as `5-shot`."""
    wanted = tuple(shots)

    def measure(module: nn.Module) -> dict[str, float]:
        x, y = features_and_labels(module, train(), normalise)
        tests, truth = features_and_labels(module, test(), normalise)
        return {f"{k}-shot": fewshot(x, y, tests, truth, k, seed=seed, l2=l2).accuracy for k in wanted}

    return measure
