"""The whole grid of 30 l2 against one solve, as ratios of time, and how accurate each way is at the smallest l2.

The few-shot problem of ImageNet: 10 shots of 1000 classes, 768 features, 5,000 test samples. All ways run in one
process, interleaved in shuffled order; `one Cholesky again` is the null: what differs less is no difference.
    python bench/fewshot.py > evidence/fewshot.txt
"""

import random
import statistics
import time

import torch

from vitlab.metrics.ridge import GRID, Ridge, fit

SAMPLES, WIDTH, CLASSES, TESTS = 10_000, 768, 1000, 5_000
ROUNDS = 11
SMALLEST = GRID[0]


def drawn(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features as a network's are: clouds around class centres, in directions of very different strength."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % CLASSES
    centres = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(99))
    strength = torch.logspace(0, -4, WIDTH)
    mixing = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(98)))[0]
    return ((centres[labels] + 2 * torch.randn(samples, WIDTH, generator=generator)) * strength) @ mixing, labels


def whitened(x: torch.Tensor) -> torch.Tensor:
    x = (x - x.mean(0)) / (x.std(0, correction=0) + 1e-5)
    return torch.cat([x, x.new_full((len(x), 1), 100.0)], dim=1)


def cholesky(x: torch.Tensor, y: torch.Tensor, l2: float, dtype: torch.dtype) -> torch.Tensor:
    """What one would write for a single l2."""
    x = whitened(x.to(dtype))
    targets = 2 * torch.nn.functional.one_hot(y, CLASSES).to(dtype) - 1
    gram = x.mT @ x
    gram.diagonal().add_(l2)
    return torch.cholesky_solve(x.mT @ targets, torch.linalg.cholesky(gram))


def every_weight(ridge: Ridge) -> None:
    for l2 in GRID:
        ridge.weights(l2)


def single(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One eigendecomposition in float32, for the comparison of accuracy."""
    x = whitened(x.float())
    values, basis = torch.linalg.eigh(x.mT @ x)
    targets = 2 * torch.nn.functional.one_hot(y, CLASSES).float() - 1
    return basis @ ((basis.mT @ (x.mT @ targets)) / (values + SMALLEST)[:, None])


def seconds(work: dict, rounds: int = ROUNDS) -> dict[str, float]:
    taken = {name: [] for name in work}
    for turn in range(rounds):
        for name in random.Random(turn).sample(list(work), len(work)):
            start = time.perf_counter()
            work[name]()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(own) for name, own in taken.items()}


@torch.inference_mode()
def main() -> None:
    x, y = drawn(SAMPLES, 0)
    tests, truth = drawn(TESTS, 1)
    ridge = fit(x, y, CLASSES)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{SAMPLES:,} x {WIDTH} features, {CLASSES} classes, {len(GRID)} values of l2; medians of {ROUNDS} rounds")
    found = seconds(
        {
            "one Cholesky solve, fp64": lambda: cholesky(x, y, 1.0, torch.float64),
            "one Cholesky solve, fp64, again": lambda: cholesky(x, y, 1.0, torch.float64),
            "one Cholesky solve, fp32": lambda: cholesky(x, y, 1.0, torch.float32),
            "vitlab: fit for the whole grid": lambda: fit(x, y, CLASSES),
            "vitlab: fit, and all 30 weights formed": lambda: every_weight(fit(x, y, CLASSES)),
        }
    )
    base = found["one Cholesky solve, fp64"]
    print("\ntime as a multiple of one Cholesky solve in fp64, without scoring")
    for name, own in found.items():
        print(f"  {name:42} {own / base:.2f}")

    weights, whole = [ridge.weights(l2) for l2 in GRID], ridge.whitened(tests)
    scoring = seconds(
        {
            "30 products with formed weights": lambda: sum((whole @ weight).sum() for weight in weights),
            "vitlab: 30 logits without weights": lambda: sum(x.sum() for x in ridge.logits(tests, GRID)),
        },
        rounds=3,
    )
    print(f"\nscoring {TESTS:,} test samples for 30 values, in the same unit")
    for name, own in scoring.items():
        print(f"  {name:42} {own / base:.2f}")

    exact = cholesky(x, y, SMALLEST, torch.float64)
    targets = 2 * torch.nn.functional.one_hot(y, CLASSES).double() - 1
    features = whitened(x.double())
    print("\nat l2 = 2^-10: largest error of the weights against fp64 Cholesky; residual of the normal equations;")
    print("accuracy on the test samples")
    for name, weight in (
        ("fp64 Cholesky", exact),
        ("vitlab", ridge.weights(SMALLEST)),
        ("one eigendecomposition in fp32", single(x, y).double()),
    ):
        error = ((weight - exact).abs().max() / exact.abs().max()).item()
        residual = features.mT @ (targets - features @ weight) - SMALLEST * weight
        left = (residual.abs().max() / (features.mT @ targets).abs().max()).item()
        right = ((ridge.whitened(tests) @ weight).argmax(-1) == truth).double().mean().item()
        print(f"  {name:42} {error:.1e}  {left:.1e}  {100 * right:.2f} %")


if __name__ == "__main__":
    main()
