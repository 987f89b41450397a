"""Classifiers on all frozen features: k nearest neighbours, and a linear probe with a grid of learning rates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.metrics.feature_sets import FeatureSet, check_widths, checked, checked_features, checked_part
from vitlab.metrics.ridge import FLAT
from vitlab.require import require
from vitlab.spec.recipe import SGD, Schedule

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
CHUNK = 1024  # test samples whose similarities are in memory at a time


def nearest_neighbours(
    train_x: Any, train_y: Any, test_x: Any, *, k: int = 20, temperature: float | None = None
) -> np.ndarray:
    """Predict labels (n,) by a vote of the k training samples with the largest cosine similarity s.

    Votes count 1 each, or exp(s / temperature); of classes with equal votes the first wins.
    """
    x, labels = checked_part(train_x, train_y, "train")
    tests = checked_features(test_x, "test")
    check_widths(x, tests)
    is_whole = isinstance(k, int | np.integer) and not isinstance(k, bool)
    require(is_whole and 1 <= k <= len(x), f"k {k!r} is outside 1..{len(x)}, the number of training samples")
    require(temperature is None or temperature > 0, f"temperature {temperature} must be positive")
    names, places = np.unique(labels, return_inverse=True)
    y = torch.from_numpy(places)
    x = F.normalize(x.double())  # (m, D)
    answers = []
    for part in tests.split(CHUNK):
        similarity, place = (F.normalize(part.double()) @ x.mT).topk(k)  # (b, k)
        votes = torch.ones_like(similarity) if temperature is None else (similarity / temperature).exp()
        answers.append(votes.new_zeros(len(part), len(names)).scatter_add_(1, y[place], votes).argmax(dim=-1))
    return names[torch.cat(answers).numpy()]


@dataclass(frozen=True)
class Probe:
    """The trained classifiers, one for each learning rate: logits are (x - mean) / deviation @ weight + bias."""

    rates: tuple[float, ...]
    mean: Tensor  # (D,)
    deviation: Tensor  # (D,)
    weight: Tensor  # (G, D, K)
    bias: Tensor  # (G, 1, K)

    def accuracies(self, x: Tensor, y: Tensor) -> dict[float, float]:
        """Accuracy by learning rate, of features (n, D) with class numbers (n,)."""
        inputs = (x.to(self.mean) - self.mean) / self.deviation
        each = zip(self.rates, self.weight, self.bias, strict=True)
        return {rate: ((inputs @ w + b).argmax(dim=-1) == y).double().mean().item() for rate, w, b in each}


@dataclass(frozen=True)
class ProbeResult:
    """The test accuracy of the learning rate that is best on held-out training samples."""

    accuracy: float
    rate: float
    held_out: dict[float, float]
    train: int  # samples learned from
    count: int  # samples tested on


def train_probe(
    x: Tensor,
    y: Tensor,
    classes: int,
    *,
    rates: Sequence[float] = RATES,
    steps: int = 1000,
    batch: int = 512,
    seed: int = 0,
) -> Probe:
    """Train zero-initialised classifiers with SGD, momentum 0.9 and cosine decay, as in fine-tuning.

    Every step reads one batch and updates the classifier of each learning rate; samples are reshuffled every epoch.
    """
    require(len(x) == len(y) > 0, f"{len(x)} features and {len(y)} labels do not match")
    is_possible = steps >= 1 and batch >= 1 and bool(rates)
    require(is_possible, "a probe needs at least one step, one sample per batch and one learning rate")
    x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    mean, deviation = x.mean(dim=0), x.std(dim=0, correction=0) + FLAT
    grid = x.new_tensor(rates)[:, None, None]  # (G, 1, 1)
    weight, bias = x.new_zeros(len(rates), x.shape[1], classes), x.new_zeros(len(rates), 1, classes)
    speeds = torch.zeros_like(weight), torch.zeros_like(bias)
    schedule = Schedule(peak=1.0, total=steps, warmup=0, decay="cosine", end=0.0)
    batches = _batches(len(x), min(batch, len(x)), torch.Generator().manual_seed(seed))
    for step in range(steps):
        chosen = next(batches)
        inputs = (x[chosen] - mean) / deviation  # (B, D)
        error = (inputs @ weight + bias).softmax(dim=-1)  # (G, B, K)
        error[:, torch.arange(len(chosen)), y[chosen]] -= 1
        error /= len(chosen)  # d loss / d logits
        gradients = inputs.mT @ error, error.sum(dim=1, keepdim=True)
        for value, speed, gradient in zip((weight, bias), speeds, gradients, strict=True):
            speed.mul_(SGD().momentum).add_(gradient)
            value -= schedule.learning_rate(step) * grid * speed
    return Probe(tuple(rates), mean, deviation, weight, bias)


def linear_probe(
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    *,
    rates: Sequence[float] = RATES,
    steps: int = 1000,
    batch: int = 512,
    held_out: float = 0.1,
    seed: int = 0,
) -> ProbeResult:
    """Train on all but a share of `held_out` of the training samples, choose the rate on those, and test it."""
    given = checked(FeatureSet(train_x, train_y, test_x, test_y))
    x, y = given.train_x, given.train_y
    out = round(held_out * len(x))
    problem = f"held_out {held_out:g} of {len(x)} samples leaves none to choose the learning rate on, or to train on"
    require(0 < out < len(x), problem)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    held, kept = order[:out], order[out:]
    probe = train_probe(x[kept], y[kept], len(given.names), rates=rates, steps=steps, batch=batch, seed=seed)
    accuracies = probe.accuracies(x[held], y[held])
    best = max(accuracies, key=lambda rate: accuracies[rate])
    tested = probe.accuracies(given.test_x, given.test_y)
    return ProbeResult(tested[best], best, accuracies, len(kept), len(given.test_y))


def _batches(samples: int, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless batches (B,) of sample numbers; the incomplete batch at the end of an epoch is dropped."""
    while True:
        order = torch.randperm(samples, generator=generator)
        yield from (order[at : at + batch] for at in range(0, samples - batch + 1, batch))
