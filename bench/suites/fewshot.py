"""The closed-form few-shot solver: the whole grid of l2 against one solve, scoring, and accuracy at the smallest l2.

The few-shot problem of ImageNet: 10 shots of 1000 classes, 768 features, 5,000 test samples. Features are drawn as a
network's are: clouds around class centres, in directions of very different strength.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from bench.runner import Call, Case, Contestant
from vitlab.metrics.ridge import GRID, Ridge, fit

ROUNDS = 11
SIZES = {False: (10_000, 768, 1000, 5_000), True: (500, 64, 50, 250)}  # samples, width, classes, tests; quick or not
SMALLEST = GRID[0]


def cases(is_quick: bool) -> Iterator[Case]:
    samples, width, classes, tests = SIZES[is_quick]
    x, y = drawn(samples, width, classes, seed=0)
    unseen, _ = drawn(tests, width, classes, seed=1)
    sizes = f"{samples:,} x {width} features, {classes} classes"
    yield Case(f"solving, {sizes}", solving(x, y, classes))
    yield Case(f"scoring {tests:,} samples for {len(GRID)} values of l2, {sizes}", scoring(fit(x, y, classes), unseen))
    yield Case(f"solving and scoring at l2 = 2^-10, {sizes}", accuracy(x, y, classes, unseen))


def solving(x: Tensor, y: Tensor, classes: int) -> list[Contestant]:
    def every_weight() -> None:
        ridge = fit(x, y, classes)
        for l2 in GRID:
            ridge.weights(l2)

    return [
        _contestant("one Cholesky solve, fp64", lambda: cholesky(x, y, classes, 1.0, torch.float64)),
        _contestant("one Cholesky solve, fp32", lambda: cholesky(x, y, classes, 1.0, torch.float32)),
        _contestant("vitlab: fit for the whole grid", lambda: fit(x, y, classes), is_compared=False),
        _contestant("vitlab: fit, and all weights formed", every_weight, is_compared=False),
    ]


def scoring(ridge: Ridge, tests: Tensor) -> list[Contestant]:
    # Both return the logits of the last l2.
    weights, whole = [ridge.weights(l2) for l2 in GRID], ridge.whitened(tests)
    return [
        _contestant("a product with the weights of each l2", lambda: [whole @ weight for weight in weights][-1]),
        _contestant("vitlab: logits without weights", lambda: list(ridge.logits(tests, GRID))[-1]),
    ]


def accuracy(x: Tensor, y: Tensor, classes: int, tests: Tensor) -> list[Contestant]:
    whole = fit(x, y, classes).whitened(tests).double()
    return [
        _contestant("Cholesky, fp64", lambda: whole @ cholesky(x, y, classes, SMALLEST, torch.float64)),
        _contestant("vitlab", lambda: whole @ fit(x, y, classes).weights(SMALLEST).double()),
        _contestant("one eigendecomposition, fp32", lambda: whole @ eigen(x, y, classes).double()),
    ]


def _contestant(name: str, call: Call, is_compared: bool = True) -> Contestant:
    return Contestant(name, lambda: torch.inference_mode()(call), is_compared)


def drawn(samples: int, width: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    labels = torch.arange(samples) % classes
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(99))
    mixing = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(98)))[0]
    noise = torch.randn(samples, width, generator=torch.Generator().manual_seed(seed))
    return ((centres[labels] + 2 * noise) * torch.logspace(0, -4, width)) @ mixing, labels


def whitened(x: Tensor) -> Tensor:
    x = (x - x.mean(0)) / (x.std(0, correction=0) + 1e-5)
    return torch.cat([x, x.new_full((len(x), 1), 100.0)], dim=1)


def cholesky(x: Tensor, y: Tensor, classes: int, l2: float, dtype: torch.dtype) -> Tensor:
    """What one would write for a single l2."""
    x = whitened(x.to(dtype))
    targets = 2 * torch.nn.functional.one_hot(y, classes).to(dtype) - 1
    gram = x.mT @ x
    gram.diagonal().add_(l2)
    return torch.cholesky_solve(x.mT @ targets, torch.linalg.cholesky(gram))


def eigen(x: Tensor, y: Tensor, classes: int) -> Tensor:
    """What one would write for all l2, in the precision of the features."""
    x = whitened(x.float())
    values, basis = torch.linalg.eigh(x.mT @ x)
    targets = 2 * torch.nn.functional.one_hot(y, classes).float() - 1
    return basis @ ((basis.mT @ (x.mT @ targets)) / (values + SMALLEST)[:, None])
