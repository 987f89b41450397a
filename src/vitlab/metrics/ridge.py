"""Regularised least squares on frozen features, as in the paper's few-shot evaluation (section 4.1, appendix B)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitlab.require import require

BIAS = 100.0  # value of the constant feature; large, so that the bias is hardly regularised
FLAT = 1e-5  # added to every deviation, for constant features
GRID = tuple(2.0**exponent for exponent in range(-10, 20))  # the authors' 30 values of l2


@dataclass(frozen=True)
class Ridge:
    """W(l2) = (X'X + l2)^-1 X'Y for every l2, from one eigendecomposition.

    X are the whitened features with a constant appended, Y is 2 onehot - 1. With X'X = V diag(s) V' the weights are
    V (V'X'Y / (s + l2)); with fewer samples than features the same from XX' = U diag(s) U': X'U (U'Y / (s + l2)).
    """

    mean: Tensor  # (d,)
    deviation: Tensor  # (d,)
    values: Tensor  # (r,) eigenvalues
    basis: Tensor  # (d+1, r): V, or X'U
    target: Tensor  # (r, K): V'X'Y, or U'Y

    def weights(self, l2: float) -> Tensor:
        """(d+1, K); the last row belongs to the constant feature."""
        return self.basis @ self._scaled(l2)

    def logits(self, x: Tensor, grid: Sequence[float]) -> Iterator[Tensor]:
        """Yield (n, K) for each l2; what does not depend on l2 is computed once, and the weights are never formed."""
        rotated = self.whitened(x) @ self.basis  # (n, r)
        for l2 in grid:
            yield rotated @ self._scaled(l2)

    def whitened(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, d+1) in float64."""
        return _with_bias((x.double() - self.mean) / self.deviation)

    def _scaled(self, l2: float) -> Tensor:
        require(0 < l2 < math.inf, f"l2 {l2} must be positive and finite")
        return self.target / (self.values + l2)[:, None]


def fit(x: Tensor, y: Tensor, classes: int, *, primal: bool | None = None) -> Ridge:
    """Fit features (n, d) and class numbers (n,) for every l2, in float64.

    float32 is accurate for large l2 but not at 2^-10. The smaller of the two systems is solved unless `primal` chooses
    one.
    """
    is_pair = x.dim() == 2 and len(x) == len(y) > 0
    require(is_pair, f"features {tuple(x.shape)} and labels {tuple(y.shape)} do not match")
    x = x.double()
    mean, deviation = x.mean(dim=0), x.std(dim=0, correction=0) + FLAT
    x = _with_bias((x - mean) / deviation)  # (n, d+1)
    if len(x) >= x.shape[1] if primal is None else primal:
        values, basis = torch.linalg.eigh(x.mT @ x)  # (d+1,), (d+1, d+1)
        target = basis.mT @ _by_targets(x, y, classes)  # (d+1, K)
    else:
        values, vectors = torch.linalg.eigh(x @ x.mT)  # (n,), (n, n)
        basis = x.mT @ vectors  # (d+1, n)
        target = _by_targets(vectors, y, classes)  # (n, K)
    return Ridge(mean, deviation, values.clamp(min=0), basis, target)


def _by_targets(x: Tensor, y: Tensor, classes: int) -> Tensor:
    """X'Y (d, K) with Y = 2 onehot - 1, from sums over classes: Y itself is never formed."""
    sums = x.new_zeros(classes, x.shape[1]).index_add_(0, y, x)  # (K, d)
    return 2 * sums.mT - x.sum(dim=0)[:, None]


def _with_bias(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_full((len(x), 1), BIAS)], dim=1)
