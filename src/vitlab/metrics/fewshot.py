"""Few-shot accuracy of frozen features: k samples per class, a closed-form classifier, and a rule that chooses l2."""

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vitlab.metrics.feature_sets import FeatureSet, checked
from vitlab.metrics.ridge import GRID, fit
from vitlab.report.tables import Results, Tabular
from vitlab.require import require
from vitlab.shots import Draw, shot_numbers

SHOTS = (1, 5, 10, 25)
CHUNK = 4096  # test samples whose logits are in memory at a time
ChooseL2 = Literal["mean-rank", "held-out"] | float


@dataclass(frozen=True)
class FewShot(Tabular):
    """The result for one set and one number of shots."""

    accuracy: float
    shots: int | None  # None: all training samples
    l2: float
    chosen_by: str
    train: int  # samples learned from
    count: int  # samples tested on
    by_l2: dict[float, float] = field(repr=False)  # test accuracy for every l2 that was tried

    @property
    def table(self) -> Results:
        """The result as one row, without the other values of l2."""
        columns = ("shots", "accuracy %", "l2", "chosen by", "training samples", "test samples")
        cells = ("all" if self.shots is None else self.shots, 100 * self.accuracy, self.l2)
        return Results(columns, ((*cells, self.chosen_by, self.train, self.count),))


def fewshot(
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    shots: int | None = 5,
    *,
    seed: int | None = None,
    draw: Draw = "big-vision",
    l2: ChooseL2 = "mean-rank",
) -> FewShot:
    """Few-shot accuracy on one set of features, given as arrays or tensors; see `fewshot_sets`.

    With a single set the paper's rule chooses the l2 that is best on the test samples, so the accuracy is optimistic;
    `l2="held-out"` chooses it on some of the shots, and a number fixes it.
    """
    sets = {"": FeatureSet(train_x, train_y, test_x, test_y)}
    (result,) = fewshot_sets(sets, shots, seed=seed, draw=draw, l2=l2).values()
    return result


def fewshot_sets(
    sets: Mapping[str, FeatureSet],
    shots: int | None = 5,
    *,
    seed: int | None = None,
    draw: Draw = "big-vision",
    l2: ChooseL2 = "mean-rank",
) -> dict[str, FewShot]:
    """Few-shot accuracy on each of several sets, by name.

    The shots are the first of every class, as in the authors' code, or drawn with `seed` (see `shot_numbers`).
    `mean-rank` is the paper's rule: rank the 30 values of l2 by test accuracy within each set, and use the one with the
    best mean rank for all sets. Choosing on the test set makes the accuracy optimistic.
    """
    require(bool(sets), "few-shot needs at least one set of features")
    sound = {name: checked(given, name) for name, given in sets.items()}
    chosen = {
        name: torch.from_numpy(shot_numbers(given.names[given.train_y.numpy()], shots, seed, draw=draw))
        for name, given in sound.items()
    }
    fixed = isinstance(l2, numbers.Real) and not isinstance(l2, bool)
    is_rule = fixed or l2 in ("mean-rank", "held-out")
    require(is_rule, f"l2 {l2!r} is not a rule; give 'mean-rank', 'held-out' or a positive number")
    grid = (float(l2),) if fixed else GRID
    shown = {name: (given.train_x[chosen[name]], given.train_y[chosen[name]]) for name, given in sound.items()}
    accuracies = {name: _accuracies(*shown[name], given.test_x, given.test_y, grid) for name, given in sound.items()}
    if l2 == "held-out":
        picked = {name: _held_out_l2(x, y) for name, (x, y) in shown.items()}
        rule = "held-out shots"
    else:
        best = grid[mean_rank_choice([list(of.values()) for of in accuracies.values()])]
        picked = dict.fromkeys(sets, best)
        rule = "given" if fixed else f"mean rank of the test accuracy over {len(sets)} set{'s' * (len(sets) > 1)}"
    results = {}
    for name, of in accuracies.items():
        counts = (len(chosen[name]), len(sound[name].test_y))
        results[name] = FewShot(of[picked[name]], shots, picked[name], rule, *counts, of)
    return results


def mean_rank_choice(accuracies: Sequence[Sequence[float]]) -> int:
    """The position of the l2 with the best mean rank over sets (rows of accuracies); the first of equal ranks.

    Within a set, equal accuracies rank in the order of l2, so the largest l2 of them is the best.
    """
    ranks = np.array([np.argsort(np.argsort(row, kind="stable"), kind="stable") for row in accuracies])
    return int(ranks.sum(axis=0).argmax())


def _accuracies(tx: Tensor, ty: Tensor, ex: Tensor, ey: Tensor, grid: Sequence[float]) -> dict[float, float]:
    """Test accuracy for each l2; memory does not grow with the number of test samples."""
    ridge = fit(tx, ty, int(ty.max()) + 1)  # every class has shots
    right = dict.fromkeys(grid, 0)
    for at in range(0, len(ex), CHUNK):
        for l2, logits in zip(grid, ridge.logits(ex[at : at + CHUNK], grid), strict=True):
            right[l2] += int((logits.argmax(dim=-1) == ey[at : at + CHUNK]).sum())
    return {l2: number / len(ey) for l2, number in right.items()}


def _held_out_l2(x: Tensor, y: Tensor) -> float:
    """The l2 that is best on the last fifth of the shots of every class (at least one), fitted to the others."""
    kept, held = [], []
    for label in torch.unique(y):
        own = torch.nonzero(y == label).flatten()
        require(len(own) > 1, "a class has one shot; choosing l2 on held-out shots needs at least two")
        out = max(len(own) // 5, 1)
        kept.append(own[:-out])
        held.append(own[-out:])
    inside, outside = torch.cat(kept), torch.cat(held)
    accuracies = _accuracies(x[inside], y[inside], x[outside], y[outside], GRID)
    return GRID[mean_rank_choice([list(accuracies.values())])]
