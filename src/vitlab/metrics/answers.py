"""Details of an evaluation: results by class, the confusion matrix and the worst mistakes."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from vitlab.metrics.multilabel import AnyScores, MultiLabelScores
from vitlab.report.answers import Answers, ClassResult, Mistake, finite_numbers, worst


def mistakes_in(
    numbers: Sequence[int], ids: Sequence[str], labels: Sequence[Sequence[int]], logits: Tensor
) -> list[Mistake]:
    """The mistakes among logits (n, K); samples with several labels or none are left out."""
    rows = [row for row, of in enumerate(labels) if len(of) == 1]
    if not rows:
        return []
    log_p = logits.detach()[rows].float().log_softmax(dim=-1).cpu()  # (m, K)
    truth = torch.tensor([labels[row][0] for row in rows])
    loss = -log_p.gather(1, truth[:, None])[:, 0]
    best, answers = log_p.max(dim=-1)
    found = []
    for place in (answers != truth).nonzero()[:, 0].tolist():
        where = (numbers[rows[place]], ids[rows[place]], int(truth[place]), int(answers[place]))
        found.append(Mistake(*where, best[place].exp().item(), loss[place].item()))
    return found


def answers_of(scores: AnyScores, numbers: Mapping[str, float], mistakes: Iterable[Mistake]) -> Answers:
    """Collect what is kept of an evaluation.

    With several labels per image there is neither a confusion matrix nor a worst mistake.
    """
    if isinstance(scores, MultiLabelScores):
        rows = ((c, one) for c, one in scores.by_class().items() if one["samples"])
        judged = (ClassResult(c, int(one["samples"]), None, one["ap"], one["f1"]) for c, one in rows)
        return Answers(finite_numbers(numbers), tuple(judged), (), ())
    classes = tuple(ClassResult(c, images, right) for c, (right, images) in scores.by_class().items())
    confusion = tuple((label, answer, count) for (label, answer), count in sorted(scores.confusion.items()))
    return Answers(finite_numbers(numbers), classes, confusion, tuple(worst(mistakes)))
