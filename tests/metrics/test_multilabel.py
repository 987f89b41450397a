"""Scores of several labels per image: those of scikit-learn, whatever the parts they were added up from."""

import json

import numpy as np
import pytest
import torch

from vitlab.metrics.multilabel import (
    MOST_LOGITS,
    MultiLabelScores,
    any_scores_from_json,
    average_precision,
    check_kept,
    empty_scores,
    merged,
)
from vitlab.metrics.scores import NotFinite, Scores

metrics = pytest.importorskip("sklearn.metrics")


def made(samples=60, classes=5, seed=0):
    """Logits with many equal ones, labels of any number; the last class is of no sample and is never predicted."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(samples, classes, generator=generator).mul(4).round().div(2)
    truth = (logits + torch.randn(samples, classes, generator=generator) > 0.6).numpy()
    logits[:, -1], truth[:, -1] = -9.0, False
    return logits, truth, [np.flatnonzero(row).tolist() for row in truth]


@pytest.mark.parametrize("threshold", [0.5, 0.2])
def test_the_numbers_are_those_of_scikit_learn(threshold):
    logits, truth, labels = made()
    assert {len(of) for of in labels} >= {0, 1, 2}
    scores = MultiLabelScores(5, threshold)
    scores.add(logits, labels)
    found = scores.numbers()
    predicted = (logits.sigmoid() >= threshold).numpy()
    wanted = metrics.average_precision_score(truth[:, :4], logits[:, :4].numpy(), average=None)
    assert found["map"] == pytest.approx(wanted.mean(), abs=1e-12)
    assert found["classes_judged"] == 4
    assert found["f1_micro"] == pytest.approx(metrics.f1_score(truth, predicted, average="micro"), abs=1e-12)
    macro = metrics.f1_score(truth[:, :4], predicted[:, :4], average="macro")
    assert found["f1_macro"] == pytest.approx(macro, abs=1e-12)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        logits.double(), torch.tensor(truth).double(), reduction="none"
    )
    assert found["loss"] == pytest.approx(loss.sum(dim=1).mean().item(), abs=1e-9)
    rows = scores.by_class()
    assert [rows[k]["ap"] for k in range(4)] == pytest.approx(wanted.tolist(), abs=1e-12)
    precision, recall, f1, count = metrics.precision_recall_fscore_support(truth[:, :4], predicted[:, :4])
    for name, values in (("precision", precision), ("recall", recall), ("f1", f1), ("samples", count)):
        assert [rows[k][name] for k in range(4)] == pytest.approx(values.tolist(), abs=1e-12)
    assert np.isnan(rows[4]["ap"])
    assert np.isnan(rows[4]["f1"])


def test_equal_scores_share_a_rank():
    assert average_precision(np.array([1.0, 1.0, 0.0]), np.array([True, False, False])) == 0.5
    assert average_precision(np.array([0.0, 1.0, 1.0]), np.array([False, False, True])) == 0.5


def test_parts_in_any_order_through_json_give_the_same_numbers():
    logits, _, labels = made()
    whole = MultiLabelScores(5)
    whole.add(logits, labels)
    parts = []
    for start, stop in ((40, 60), (0, 7), (7, 40)):
        part = MultiLabelScores(5)
        part.add(logits[start:stop], labels[start:stop])
        parts.append(any_scores_from_json(json.loads(json.dumps(part.to_json()))))
    assert merged(empty_scores("multi-label", 5), *parts).numbers() == whole.numbers()
    assert isinstance(any_scores_from_json(empty_scores("single-label", 5).to_json()), Scores)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": "???"}, "damaged"),
        ({"count": 59}, "damaged"),
        ({"truth": "AA=="}, "damaged"),
        ({"x": 1}, "not the scores"),
    ],
)
def test_what_is_no_such_scores_is_refused(change, message):
    scores = MultiLabelScores(5)
    scores.add(*made()[::2])
    with pytest.raises(ValueError, match=message):
        any_scores_from_json(scores.to_json() | change)


def test_what_cannot_be_scored_is_refused():
    scores = MultiLabelScores(3)
    with pytest.raises(NotFinite, match="1 of 1 samples"):
        scores.add(torch.tensor([[0.0, float("nan"), 0.0]]), [[0]])
    with pytest.raises(ValueError, match=r"outside the model's classes 0\.\.2"):
        scores.add(torch.zeros(1, 3), [[3]])
    with pytest.raises(ValueError, match="not \\(samples, classes\\)"):
        scores.add(torch.zeros(1, 2), [[0]])
    with pytest.raises(ValueError, match="not a probability between 0 and 1"):
        MultiLabelScores(3, 1.0)
    with pytest.raises(ValueError, match="evaluate on fewer samples"):
        check_kept(MOST_LOGITS, 2)
    assert np.isnan(scores.numbers()["map"])
