"""Scores against scikit-learn and plain loops, and however a set is cut into parts."""

import json
import math

import numpy as np
import pytest
import sklearn.metrics
import torch

from vitlab.metrics.multilabel import merged
from vitlab.metrics.scores import BINS, Scores, scores_from_json


def drawn(samples, classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(samples, classes, generator=generator)
    return logits, torch.randint(classes, (samples,), generator=generator)


def softmax(row):
    exponents = [math.exp(value - max(row)) for value in row]
    return [e / sum(exponents) for e in exponents]


def ece_by_loop(rows, labels):
    """Of 15 bins (k/15, (k+1)/15], as it is defined."""
    gap = 0.0
    for k in range(BINS):
        inside = []
        for row, label in zip(rows, labels, strict=True):
            p = softmax(row)
            if k / BINS < max(p) <= (k + 1) / BINS:
                inside.append((max(p), p.index(max(p)) == label))
        gap += abs(sum(right for _, right in inside) - sum(confidence for confidence, _ in inside))
    return gap / len(rows)


def test_accuracy_loss_and_confusion_are_those_of_scikit_learn():
    logits, labels = drawn(500, 12)
    scores = Scores(12)
    predictions = scores.add(logits, labels)
    probabilities = logits.double().softmax(-1).numpy()
    assert predictions == logits.argmax(-1).tolist()
    assert scores.count == 500
    assert scores.numbers()["top1"] == sklearn.metrics.accuracy_score(labels, predictions)
    assert scores.numbers()["top5"] == pytest.approx(sklearn.metrics.top_k_accuracy_score(labels, probabilities, k=5))
    assert scores.numbers()["loss"] == pytest.approx(sklearn.metrics.log_loss(labels, probabilities), rel=1e-11)
    matrix = sklearn.metrics.confusion_matrix(labels, predictions)
    assert {cell: n for cell, n in np.ndenumerate(matrix) if n} == dict(scores.confusion)
    recall = sklearn.metrics.recall_score(labels, predictions, average=None)
    assert [right / n for right, n in scores.by_class().values()] == recall.tolist()
    assert scores.numbers()["class_mean"] == pytest.approx(sklearn.metrics.balanced_accuracy_score(labels, predictions))


def test_the_calibration_error_is_that_of_a_plain_loop():
    logits, labels = drawn(400, 7, seed=3)
    labels[:200] = logits[:200].argmax(-1)  # some bins too sure and some not sure enough, so that their limits matter
    labels[(logits.softmax(-1).amax(-1) > 0.8)] = 0
    scores = Scores(7)
    scores.add(logits, labels)
    assert scores.numbers()["ece"] == pytest.approx(ece_by_loop(logits.double().tolist(), labels.tolist()), abs=1e-11)
    sure = Scores(2)
    sure.add(torch.tensor([[0.0, 1000.0]] * 4), [(1,), (1,), (1,), (0,)])
    assert sure.numbers()["ece"] == 0.25
    assert sure.bin_count == [0] * (BINS - 1) + [4]


def test_several_labels_make_every_one_of_them_right_and_none_skips_the_sample():
    logits = torch.tensor(
        [[3.0, 2, 1, 0, 0, 0, 0], [3, 2, 1, 0, 0, 0, 0], [3, 2, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 9]]
    )
    scores = Scores(7)
    assert scores.add(logits, [(2, 0), (1, 2), (), (5,)]) == [0, 0, 0, 6]
    assert (scores.count, scores.skipped, scores.top1, scores.top5) == (3, 1, 1, 2)
    assert scores.by_class() == {0: (1, 1), 1: (0, 1), 2: (1, 2), 5: (0, 1)}
    assert scores.confusion == {(5, 6): 1}
    p = softmax([3, 2, 1, 0, 0, 0, 0])
    pairs = -(math.log(p[2]) + math.log(p[0])) / 2 - (math.log(p[1]) + math.log(p[2])) / 2
    assert scores.numbers()["loss"] == pytest.approx((pairs - math.log(softmax([0] * 6 + [9])[5])) / 3, rel=1e-11)


def test_of_equal_logits_the_first_class_stands_first():
    scores = Scores(8)
    assert scores.add(torch.zeros(8, 8), torch.arange(8)) == [0] * 8
    assert (scores.top1, scores.top5) == (1, 5)


def test_any_cut_into_parts_gives_the_same_scores_to_the_last_bit():
    logits, labels = drawn(37, 6, seed=1)
    whole = Scores(6)
    whole.add(logits, labels)
    for size in (1, 2, 5, 36):
        parts = []
        for at in range(0, 37, size):
            parts.append(Scores(6))
            parts[-1].add(logits[at : at + size], labels[at : at + size])
        assert merged(*reversed(parts)) == whole
        assert merged(*parts).numbers() == whole.numbers()


def test_scores_survive_json_and_strangers_do_not():
    logits, labels = drawn(20, 4)
    scores = Scores(4)
    scores.add(logits, [(int(label),) if label else () for label in labels])
    text = json.dumps(scores.to_json())
    assert scores_from_json(json.loads(text)) == scores
    for spoilt in ({}, [], json.loads(text) | {"count": 1.5}, json.loads(text) | {"confusion": [[1, 2]]}):
        with pytest.raises(ValueError, match="scores"):
            scores_from_json(spoilt)


def test_nothing_scored_is_not_a_number_and_no_accuracy():
    assert math.isnan(Scores(3).numbers()["top1"])
    assert Scores(3).add(torch.empty(0, 3), []) == []


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.zeros(2, 4), [(0,), (1,)], "not \\(samples, classes\\)"),
        (torch.zeros(2, 3), [(0,)], "not \\(samples, classes\\)"),
        (torch.tensor([[0.0, float("nan"), 0]]), [(0,)], "NaN or infinity for 1 of 1"),
        (torch.zeros(1, 3), [(3,)], "outside the model's classes"),
        (torch.zeros(1, 3), [(1, 1)], "twice"),
    ],
)
def test_what_cannot_be_scored_is_refused(logits, labels, message):
    with pytest.raises(ValueError, match=message):
        Scores(3).add(logits, labels)
    with pytest.raises(ValueError, match="cannot be added"):
        Scores(3) + Scores(4)
