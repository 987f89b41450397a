"""The counts behind accuracy, loss and calibration, as integers: parts of a set add up exactly."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

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
        self._check(logits, listed)
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
        padded = torch.tensor(
            [of + [of[0]] * (most - len(of)) for of in labels]
        )  # (n, m): repeats do not change the best rank
        best_rank = _ranks(logits, padded).amin(dim=-1).tolist()  # (n,)
        is_label = torch.arange(most) < lengths[:, None]  # (n, m)
        losses = _whole(-(log_p.gather(1, padded) * is_label).sum(dim=-1) / lengths)  # (n,)
        confidence = log_p.amax(dim=-1).exp()  # (n,)
        bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1  # (lo, hi]
        confidences = _whole(confidence)
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
        require(
            self.classes == other.classes, f"scores of {self.classes} and of {other.classes} classes cannot be added"
        )
        return Scores(
            self.classes,
            self.count + other.count,
            self.skipped + other.skipped,
            self.top1 + other.top1,
            self.top5 + other.top5,
            self.loss + other.loss,
            self.right_by_class + other.right_by_class,
            self.count_by_class + other.count_by_class,
            self.confusion + other.confusion,
            [a + b for a, b in zip(self.bin_count, other.bin_count, strict=True)],
            [a + b for a, b in zip(self.bin_right, other.bin_right, strict=True)],
            [a + b for a, b in zip(self.bin_confidence, other.bin_confidence, strict=True)],
        )

    # -- Results ---------------------------------------------------------------------------------

    @property
    def accuracy(self) -> float:
        """Top-1 accuracy, a fraction of the scored samples; NaN without any."""
        return _share(self.top1, self.count)

    @property
    def top5_accuracy(self) -> float:
        """Top-5 accuracy, the fraction of samples with a label among the five most probable classes."""
        return _share(self.top5, self.count)

    @property
    def mean_loss(self) -> float:
        """Cross-entropy in nats."""
        return _share(self.loss, self.count) * UNIT

    @property
    def calibration_error(self) -> float:
        """ECE: |accuracy - confidence| of 15 equal bins of confidence, weighted by their number of samples."""
        gaps = (abs(r / UNIT - c) for r, c in zip(self.bin_right, self.bin_confidence, strict=True))
        return _share(sum(gaps), self.count) * UNIT

    @property
    def mean_class_accuracy(self) -> float:
        """The unweighted mean of the accuracies of the classes that occur."""
        shares = [right / count for right, count in self.by_class().values()]
        return _share(sum(shares), len(shares))

    def by_class(self) -> dict[int, tuple[int, int]]:
        """(correct, samples) for every class that occurs."""
        return {c: (self.right_by_class[c], self.count_by_class[c]) for c in sorted(self.count_by_class)}

    def numbers(self) -> dict[str, float]:
        """The headline numbers by name, for a table or a training log."""
        return {
            "top1": self.accuracy,
            "top5": self.top5_accuracy,
            "loss": self.mean_loss,
            "ece": self.calibration_error,
            "class_mean": self.mean_class_accuracy,
            "count": self.count,
            "skipped": self.skipped,
        }

    # -- To and from JSON ------------------------------------------------------------------------

    def to_json(self) -> dict[str, object]:
        """Every sum as plain JSON values; `scores_from_json` gives the same scores back."""
        whole = {name: getattr(self, name) for name in WHOLE}
        lists = {name: list(getattr(self, name)) for name in BINNED}
        return {
            **whole,
            **lists,
            "by_class": [[c, *pair] for c, pair in self.by_class().items()],
            "confusion": [[*cell, n] for cell, n in sorted(self.confusion.items())],
        }

    def _check(self, logits: Tensor, labels: list[list[int]]) -> None:
        shape = (len(labels), self.classes)
        require(tuple(logits.shape) == shape, f"logits are {tuple(logits.shape)}, not (samples, classes) = {shape}")
        finite = logits.isfinite().all(dim=-1)
        bad = len(labels) - int(finite.sum())
        if bad:
            raise NotFinite(
                f"the model returned NaN or infinity for {bad} of {len(labels)} samples; it cannot be scored"
            )
        outside = [label for of in labels for label in of if not 0 <= label < self.classes]
        require(not outside, f"label {outside[:1]} is outside the model's classes 0..{self.classes - 1}")
        twice = [of for of in labels if len(set(of)) != len(of)]
        require(not twice, f"a sample has a label twice: {twice[:1]}")


WHOLE = ("classes", "count", "skipped", "top1", "top5", "loss")
BINNED = ("bin_count", "bin_right", "bin_confidence")


def scores_from_json(value: object) -> Scores:
    """The inverse of `Scores.to_json`; raises ValueError for anything else."""
    require(
        isinstance(value, dict) and set(value) == {*WHOLE, *BINNED, "by_class", "confusion"},
        f"not the scores of an evaluation: {value!r:.100}",
    )
    given = cast(Mapping[str, Any], value)
    rows = [given["by_class"], given["confusion"]]
    require(
        all(type(given[name]) is int for name in WHOLE)
        and all(_is_whole(given[name], BINS) for name in BINNED)
        and all(isinstance(listed, list) and all(_is_whole(row, 3) for row in listed) for listed in rows),
        f"these scores contain something other than integers: {value!r:.100}",
    )
    return Scores(
        **{name: given[name] for name in (*WHOLE, *BINNED)},
        right_by_class=Counter({c: right for c, right, _ in given["by_class"] if right}),
        count_by_class=Counter({c: count for c, _, count in given["by_class"]}),
        confusion=Counter({(label, predicted): n for label, predicted, n in given["confusion"]}),
    )


def merged(parts: Iterable[Scores]) -> Scores:
    """The scores of all parts together, such as those of every rank; at least one is needed."""
    first, *others = parts
    return sum(others, start=first)


def _ranks(logits: Tensor, labels: Tensor) -> Tensor:
    """(n, K), (n, m) -> (n, m): how many classes rank before each label."""
    own = logits.gather(1, labels)[:, :, None]  # (n, m, 1)
    before = torch.arange(logits.shape[1]) < labels[:, :, None]  # (n, m, K)
    every = logits[:, None]  # (n, 1, K)
    return ((every > own) | ((every == own) & before)).sum(dim=-1)


def _whole(values: Tensor) -> list[int]:
    return [round(value / UNIT) for value in values.reshape(-1).tolist()]


def _share(part: float, whole: int) -> float:
    return part / whole if whole else float("nan")


def _is_whole(value: object, length: int) -> bool:
    return isinstance(value, list) and len(value) == length and all(type(number) is int for number in value)
