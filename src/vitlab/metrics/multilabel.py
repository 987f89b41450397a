"""Scores of a multi-label model: mean average precision, and F1 at a threshold.

Average precision depends on the ranks of all samples, so every logit is kept: 4 bytes per sample and class.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from torch import Tensor

from vitlab.metrics.scores import UNIT, Scores, check_scorable, in_units, scores_from_json, share
from vitlab.require import require
from vitlab.spec import Task

THRESHOLD = 0.5  # probability from which a class is predicted
MOST_LOGITS = 2**29  # 2 GiB
KEYS = {"classes", "threshold", "loss", "count", "logits", "truth"}


@dataclass
class MultiLabelScores:
    """Logits and labels of the samples scored so far; `a + b` scores both parts together.

    A sample may have any number of labels, including none. Averages over classes ("macro") are over the classes with a
    defined value: for average precision those with at least one sample, for F1 also those that were predicted.
    """

    classes: int
    threshold: float = THRESHOLD
    loss: int = 0  # of UNIT
    logits: list[np.ndarray] = field(default_factory=list)  # parts (n, K) of float32
    truth: list[np.ndarray] = field(default_factory=list)  # parts (n, K) of bool

    def __post_init__(self) -> None:
        require(self.classes >= 1, f"{self.classes} classes cannot be scored; the model needs a head with at least 1")
        require(0 < self.threshold < 1, f"threshold {self.threshold} is not a probability between 0 and 1")

    def add(self, logits: Tensor, labels: Sequence[Sequence[int]]) -> None:
        """Score logits (n, K) against lists of class numbers; the loss is the sigmoid cross-entropy of all classes."""
        logits = logits.detach().cpu().float()
        check_scorable(logits, labels, self.classes)
        check_kept(self.count + len(labels), self.classes)
        values = cast(np.ndarray, logits.numpy())
        truth = np.zeros(values.shape, bool)
        for row, of in enumerate(labels):
            truth[row, list(of)] = True
        wide = values.astype(np.float64)
        losses = (np.logaddexp(0, wide) - wide * truth).sum(axis=1)  # (n,)
        self.loss += sum(in_units(losses))
        self.logits.append(values)
        self.truth.append(truth)

    def __add__(self, other: "MultiLabelScores") -> "MultiLabelScores":
        settings = [(type(one), one.classes, getattr(one, "threshold", None)) for one in (self, other)]
        require(settings[0] == settings[1], "scores of different tasks, classes or thresholds cannot be added")
        parts = (self.logits + other.logits, self.truth + other.truth)
        return MultiLabelScores(self.classes, self.threshold, self.loss + other.loss, *parts)

    @property
    def count(self) -> int:
        """Samples scored."""
        return sum(map(len, self.logits))

    def by_class(self) -> dict[int, dict[str, float]]:
        """Samples, average precision, and F1, precision and recall at the threshold, by class; NaN if undefined."""
        logits, truth = _joined(self.logits, self.classes, np.float32), _joined(self.truth, self.classes, bool)
        predicted = logits >= np.log(self.threshold / (1 - self.threshold))
        right, said, true = ((part.sum(axis=0)) for part in (predicted & truth, predicted, truth))  # (K,)
        return {
            number: {
                "samples": int(true[number]),
                "predicted": int(said[number]),
                "ap": average_precision(logits[:, number], truth[:, number]),
                "f1": share(2 * right[number], said[number] + true[number]),
                "precision": share(right[number], said[number]),
                "recall": share(right[number], true[number]),
            }
            for number in range(self.classes)
        }

    def numbers(self) -> dict[str, float]:
        """The headline numbers by name, for a table or a training log."""
        found = self.by_class().values()
        precisions = [one["ap"] for one in found if one["samples"]]
        f1 = [one["f1"] for one in found if one["f1"] == one["f1"]]
        right = sum(one["recall"] * one["samples"] for one in found if one["samples"])
        both = sum(one["samples"] + one["predicted"] for one in found)
        return {
            "map": share(sum(precisions), len(precisions)),
            "f1_micro": share(2 * right, both),
            "f1_macro": share(sum(f1), len(f1)),
            "threshold": self.threshold,
            "loss": share(self.loss, self.count) * UNIT,
            "count": self.count,
            "classes_judged": len(precisions),
        }

    def to_json(self) -> dict[str, object]:
        """Everything as plain JSON values; `any_scores_from_json` gives the same scores back."""
        logits, truth = _joined(self.logits, self.classes, np.float32), _joined(self.truth, self.classes, bool)
        return {
            "classes": self.classes,
            "threshold": self.threshold,
            "loss": self.loss,
            "count": self.count,
            "logits": base64.b64encode(logits.astype("<f4").tobytes()).decode(),
            "truth": base64.b64encode(np.packbits(truth).tobytes()).decode(),
        }


AnyScores = Scores | MultiLabelScores


def empty_scores(task: Task, classes: int, threshold: float = THRESHOLD) -> AnyScores:
    """Scores of a model of that task before any sample."""
    return MultiLabelScores(classes, threshold) if task == "multi-label" else Scores(classes)


def any_scores_from_json(value: object) -> AnyScores:
    """The inverse of `to_json` of both kinds of scores; raises ValueError for anything else."""
    if not isinstance(value, dict) or "logits" not in value:
        return scores_from_json(value)
    require(set(value) == KEYS, f"not the scores of an evaluation: {value!r:.100}")
    given = cast(dict[str, Any], value)
    shape = (given["count"], given["classes"])
    try:
        logits = np.frombuffer(base64.b64decode(given["logits"], validate=True), "<f4").reshape(shape)
        bits = np.frombuffer(base64.b64decode(given["truth"], validate=True), np.uint8)
        require(len(bits) == -(-shape[0] * shape[1] // 8), f"{len(bits)} bytes of labels for {shape}")
        truth = np.unpackbits(bits, count=shape[0] * shape[1]).astype(bool).reshape(shape)
    except (ValueError, TypeError) as error:
        raise ValueError(f"these scores are damaged: {error!s:.100}") from None
    parts = ([logits.astype(np.float32)], [truth]) if len(logits) else ([], [])
    return MultiLabelScores(given["classes"], given["threshold"], given["loss"], *parts)


def merged(*parts: AnyScores) -> AnyScores:
    """The scores of all parts together; all are of the same task."""
    whole: Any = parts[0]
    for part in parts[1:]:
        whole = whole + part
    return whole


def check_kept(samples: int, classes: int) -> None:
    """Raise if the logits of this many samples need too much memory."""
    kept = f"{samples:,} samples of {classes:,} classes have {samples * classes:,} logits"
    require(samples * classes <= MOST_LOGITS, f"{kept}; at most {MOST_LOGITS:,} fit; evaluate on fewer samples")


def average_precision(scores: np.ndarray, is_true: np.ndarray) -> float:
    """The sum over ranks of precision times the gain in recall, equal scores sharing a rank; NaN without positives."""
    if not is_true.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # the last sample of each score
    right = np.cumsum(is_true[order])[ends]
    precision, recall = right / (ends + 1), right / right[-1]
    return float((np.diff(recall, prepend=0) * precision).sum())


def _joined(parts: list[np.ndarray], classes: int, kind: type) -> np.ndarray:
    return np.concatenate([np.empty((0, classes), kind), *parts])
