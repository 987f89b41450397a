"""k nearest neighbours on frozen features: no training, no parameter but k."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.strict_json import require

CHUNK = 1024  # test samples whose similarities to all training samples are held at a time


def nearest_neighbours(
    train_x: Any, train_y: Any, test_x: Any, *, k: int = 20, temperature: float | None = None
) -> Tensor:
    """Class numbers (n,) voted by the k training samples of the largest cosine similarity s.

    Votes count 1 each, or exp(s / temperature); of classes with equal votes the first is taken.
    """
    x, y, tests = torch.as_tensor(train_x), torch.as_tensor(train_y).long(), torch.as_tensor(test_x)
    require(1 <= k <= len(x), f"k {k} is outside 1..{len(x)}, the training samples")
    require(temperature is None or temperature > 0, f"temperature {temperature} must be positive")
    classes = int(y.max()) + 1
    x = F.normalize(x.double())  # (m, D)
    answers = []
    for part in tests.split(CHUNK):
        similarity, place = (F.normalize(part.double()) @ x.mT).topk(k)  # (b, k)
        votes = torch.ones_like(similarity) if temperature is None else (similarity / temperature).exp()
        answers.append(votes.new_zeros(len(part), classes).scatter_add_(1, y[place], votes).argmax(dim=-1))
    return torch.cat(answers) if answers else torch.empty(0, dtype=torch.long)
