"""The worst mistakes of an evaluation: found in one pass, the same however the set is cut."""

import numpy as np
import pytest
import torch

from vitlab.files.strict_json import from_json, to_json
from vitlab.metrics.answers import answers_of, mistakes_in
from vitlab.metrics.multilabel import MultiLabelScores
from vitlab.metrics.scores import Scores
from vitlab.report.answers import worst

N, K = 60, 5


@pytest.fixture
def samples():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N, K, generator=generator) * 3, torch.randint(K, (N,), generator=generator).tolist()


def batch_of(labels, start):
    numbers = range(start, start + len(labels))
    return list(numbers), [f"s{n}" for n in numbers], [(label,) for label in labels]


def found_in(logits, labels, step, starts=None):
    found = []
    for start in range(0, N, step) if starts is None else starts:
        new = mistakes_in(*batch_of(labels[start : start + step], start), logits[start : start + step])
        found = worst([*found, *new], 7)
    return found


@pytest.mark.parametrize("step", [60, 9, 1])
def test_they_are_the_wrong_answers_of_the_largest_loss(samples, step):
    logits, labels = samples
    values = logits.double().numpy()
    p = np.exp(values) / np.exp(values).sum(axis=1, keepdims=True)
    loss = -np.log(p[np.arange(N), labels])
    wrong = [n for n in range(N) if p[n].argmax() != labels[n]]
    expected = sorted(wrong, key=lambda n: -loss[n])[:7]
    found = found_in(logits, labels, step)
    assert [mistake.number for mistake in found] == expected
    assert [mistake.loss for mistake in found] == pytest.approx([loss[n] for n in expected], rel=1e-5)
    assert [mistake.probability for mistake in found] == pytest.approx([p[n].max() for n in expected], rel=1e-5)
    assert [(mistake.label, mistake.answer) for mistake in found] == [(labels[n], p[n].argmax()) for n in expected]


def test_parts_of_a_set_have_the_mistakes_of_the_whole(samples):
    logits, labels = samples
    halves = [found_in(logits, labels, 6, range(first, N, 12)) for first in (0, 6)]
    assert worst([*halves[0], *halves[1]], 7) == found_in(logits, labels, N)


def test_images_with_several_labels_or_none_are_left_out(samples):
    logits, labels = samples
    numbers, ids, _ = batch_of(labels, 0)
    several = [() if n % 2 else (labels[n], (labels[n] + 1) % K) for n in range(N)]
    assert mistakes_in(numbers, ids, several, logits) == []


def test_what_is_kept_comes_back_from_json(samples):
    logits, labels = samples
    scores = Scores(K)
    scores.add(logits, torch.tensor(labels))
    mistakes = found_in(logits, labels, N)
    answers = answers_of(scores, {**scores.numbers(), "ece": float("nan")}, mistakes)
    assert from_json(type(answers), to_json(answers)) == answers
    assert sum(one.images for one in answers.classes) == N
    assert sum(one.right for one in answers.classes) == scores.top1
    assert sum(count for label, answer, count in answers.confusion if label == answer) == scores.top1
    assert "ece" not in answers.numbers


def test_of_several_labels_the_classes_are_kept_and_no_confusion(samples):
    logits, labels = samples
    scores = MultiLabelScores(K + 1)
    scores.add(torch.cat([logits, -logits[:, :1]], dim=1), [[label, (label + 1) % K] for label in labels])
    answers = answers_of(scores, scores.numbers(), [])
    assert from_json(type(answers), to_json(answers)) == answers
    assert [one.number for one in answers.classes] == list(range(K))  # the last class has no image
    assert all(one.right is None and 0 <= one.average_precision <= 1 for one in answers.classes)
    assert (answers.confusion, answers.mistakes) == ((), ())
