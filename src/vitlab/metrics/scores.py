"""The counts behind accuracy, loss and calibration, as integers: parts of a set add up exactly."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vitlab.require import require

BINS = 15  # of confidence, for the expected calibration error
TOP = 5
UNIT = 2.0**-40  # losses and confidences are integer multiples of it, so their sum does not depend on the order

Labels = Tensor | Sequence[Sequence[int]]


class NotFinite(ValueError, ArithmeticError):  # noqa: N818 - the name says what is wrong
    """The model returned NaN or infinity: it diverged in training."""


@dataclass
class Scores:
    """Sums over the samples scored so far; `a + b` scores both parts together.

    A sample may have several labels; its prediction is correct if it is one of them. A sample without labels is counted
    as `skipped` and not scored. Of classes with equal logits the first ranks first.
    """

    classes: int
    count: int = 0
    skipped: int = 0
    top1: int = 0
    top5: int = 0
    loss: int = 0  # of UNIT
    right_by_class: Counter[int] = field(default_factory=Counter)
    count_by_class: Counter[int] = field(default_factory=Counter)
    confusion: Counter[tuple[int, int]] = field(default_factory=Counter)  # (label, prediction), of one-label samples
    bin_count: list[int] = field(default_factory=lambda: [0] * BINS)
    bin_right: list[int] = field(default_factory=lambda: [0] * BINS)
    bin_confidence: list[int] = field(default_factory=lambda: [0] * BINS)  # of UNIT

    def __post_init__(self) -> None:
        require(self.classes >= 1, f"{self.classes} classes cannot be scored; the model needs a head with at least 1")

    def add(self, logits: Tensor, labels: Labels) -> list[int]:
        """Score logits (n, K) against class numbers (n,) or lists of them; return the n predictions.

        The loss is the softmax cross-entropy, averaged over the labels of a sample.
        """
        listed = [[label] for label in labels.tolist()] if isinstance(labels, Tensor) else [list(of) for of in labels]
        check_scorable(logits, listed, self.classes)
        twice = [of for of in listed if len(set(of)) != len(of)]
        require(not twice, f"a sample has a label twice: {twice[:1]}")
        predictions = logits.argmax(dim=-1).tolist() if len(listed) else []
        kept = [number for number, of in enumerate(listed) if of]
        self.skipped += len(listed) - len(kept)
        if kept:
            chosen = logits.detach().cpu()[kept].double()
            self._add_labelled(chosen, [listed[n] for n in kept], [predictions[n] for n in kept])
        return predictions

    def _add_labelled(self, logits: Tensor, labels: list[list[int]], predictions: list[int]) -> None:
        log_p = logits.log_softmax(dim=-1)  # (n, K)
        lengths = torch.tensor([len(of) for of in labels])  # (n,)
        most = int(lengths.max())
        padded = torch.tensor([of + [of[0]] * (most - len(of)) for of in labels])  # (n, m): repeats keep the best rank
        best_rank = _ranks(logits, padded).amin(dim=-1).tolist()  # (n,)
        is_label = torch.arange(most) < lengths[:, None]  # (n, m)
        losses = in_units(-(log_p.gather(1, padded) * is_label).sum(dim=-1) / lengths)  # (n,)
        confidence = log_p.amax(dim=-1).exp()  # (n,)
        bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1  # (lo, hi]
        confidences = in_units(confidence)
        for row, (of, predicted, rank) in enumerate(zip(labels, predictions, best_rank, strict=True)):
            right, place = rank == 0, int(bins[row])
            self.count += 1
            self.top1 += right
            self.top5 += rank < TOP
            self.loss += losses[row]
            self.count_by_class.update(of)
            self.right_by_class.update(of if right else ())
            if len(of) == 1:
                self.confusion[of[0], predicted] += 1
            self.bin_count[place] += 1
            self.bin_right[place] += right
            self.bin_confidence[place] += confidences[row]

    def __add__(self, other: "Scores") -> "Scores":
        same = isinstance(other, Scores) and self.classes == other.classes
        require(same, "scores of different tasks or numbers of classes cannot be added")
        sums = {name: getattr(self, name) + getattr(other, name) for name in (*SUMS, *COUNTERS)}
        for name in BINNED:
            sums[name] = [a + b for a, b in zip(getattr(self, name), getattr(other, name), strict=True)]
        return Scores(self.classes, **sums)

    def by_class(self) -> dict[int, tuple[int, int]]:
        """(correct, samples) for every class that occurs."""
        return {c: (self.right_by_class[c], self.count_by_class[c]) for c in sorted(self.count_by_class)}

    def numbers(self) -> dict[str, float]:
        """The headline numbers by name, for a table or a training log; NaN without samples.

        `top1`, `top5` and `class_mean`, the unweighted mean over the classes that occur, are accuracies between 0 and
        1. `loss` is the cross-entropy in nats. `ece` is the expected calibration error: |accuracy - confidence| of 15
        equal bins of confidence, weighted by their number of samples.
        """
        gaps = (abs(r / UNIT - c) for r, c in zip(self.bin_right, self.bin_confidence, strict=True))
        shares = [right / count for right, count in self.by_class().values()]
        return {
            "top1": share(self.top1, self.count),
            "top5": share(self.top5, self.count),
            "loss": share(self.loss, self.count) * UNIT,
            "ece": share(sum(gaps), self.count) * UNIT,
            "class_mean": share(sum(shares), len(shares)),
            "count": self.count,
            "skipped": self.skipped,
        }

    def to_json(self) -> dict[str, object]:
        """Every sum as plain JSON values; `scores_from_json` gives the same scores back."""
        return {
            "classes": self.classes,
            **{name: getattr(self, name) for name in SUMS},
            **{name: list(getattr(self, name)) for name in BINNED},
            "by_class": [[c, *pair] for c, pair in self.by_class().items()],
            "confusion": [[*cell, n] for cell, n in sorted(self.confusion.items())],
        }


SUMS = ("count", "skipped", "top1", "top5", "loss")
COUNTERS = ("right_by_class", "count_by_class", "confusion")
BINNED = ("bin_count", "bin_right", "bin_confidence")


def check_scorable(logits: Tensor, labels: Sequence[Sequence[int]], classes: int) -> None:
    """Raise unless logits are (n, K) and finite, and every label is one of the K classes."""
    shape = (len(labels), classes)
    require(tuple(logits.shape) == shape, f"logits are {tuple(logits.shape)}, not (samples, classes) = {shape}")
    if bad := len(labels) - int(logits.isfinite().all(dim=-1).sum()):
        raise NotFinite(f"the model returned NaN or infinity for {bad} of {len(labels)} samples; it cannot be scored")
    outside = [label for of in labels for label in of if not 0 <= label < classes]
    require(not outside, f"label {outside[:1]} is outside the model's classes 0..{classes - 1}")


def scores_from_json(value: object) -> Scores:
    """The inverse of `Scores.to_json`; raises ValueError for anything else."""
    whole = ("classes", *SUMS)
    is_known = isinstance(value, dict) and set(value) == {*whole, *BINNED, "by_class", "confusion"}
    require(is_known, f"not the scores of an evaluation: {value!r:.100}")
    given = cast(Mapping[str, Any], value)
    rows = [given["by_class"], given["confusion"]]
    require(
        all(type(given[name]) is int for name in whole)
        and all(_is_whole(given[name], BINS) for name in BINNED)
        and all(isinstance(listed, list) and all(_is_whole(row, 3) for row in listed) for listed in rows),
        f"these scores contain something other than integers: {value!r:.100}",
    )
    return Scores(
        **{name: given[name] for name in (*whole, *BINNED)},
        right_by_class=Counter({c: right for c, right, _ in given["by_class"] if right}),
        count_by_class=Counter({c: count for c, _, count in given["by_class"]}),
        confusion=Counter({(label, predicted): n for label, predicted, n in given["confusion"]}),
    )


def _ranks(logits: Tensor, labels: Tensor) -> Tensor:
    """(n, K), (n, m) -> (n, m): how many classes rank before each label."""
    own = logits.gather(1, labels)[:, :, None]  # (n, m, 1)
    before = torch.arange(logits.shape[1]) < labels[:, :, None]  # (n, m, K)
    every = logits[:, None]  # (n, 1, K)
    return ((every > own) | ((every == own) & before)).sum(dim=-1)


def in_units(values: Tensor | np.ndarray) -> list[int]:
    """Values as whole multiples of UNIT."""
    return [round(value / UNIT) for value in values.reshape(-1).tolist()]


def share(part: float, whole: float) -> float:
    """A fraction; NaN of nothing."""
    return float(part / whole) if whole else float("nan")


def _is_whole(value: object, length: int) -> bool:
    return isinstance(value, list) and len(value) == length and all(type(number) is int for number in value)
