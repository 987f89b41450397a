"""k nearest neighbours on frozen features."""

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from vitlab.metrics.feature_sets import check_whole, check_widths, checked_features, checked_part
from vitlab.require import require

CHUNK = 1024  # test samples whose similarities are in memory at a time


def nearest_neighbours(
    train_x: Any, train_y: Any, test_x: Any, *, k: int = 20, temperature: float | None = None
) -> np.ndarray:
    """Predict labels (n,) by a vote of the k training samples with the largest cosine similarity s.

    Votes count 1 each, or exp(s / temperature); of classes with equal votes the first wins.
    """
    x, labels = checked_part(train_x, train_y, "train")
    tests = checked_features(test_x, "test")
    check_widths(x, tests)
    check_whole("k", k, 1)
    require(k <= len(x), f"k {k} is outside 1..{len(x)}, the number of training samples")
    require(temperature is None or temperature > 0, f"temperature {temperature} must be positive")
    names, places = np.unique(labels, return_inverse=True)
    y = torch.from_numpy(places)
    x = F.normalize(x.double())  # (m, D)
    answers = []
    for part in tests.split(CHUNK):
        similarity, place = (F.normalize(part.double()) @ x.mT).topk(k)  # (b, k)
        votes = torch.ones_like(similarity) if temperature is None else (similarity / temperature).exp()
        answers.append(votes.new_zeros(len(part), len(names)).scatter_add_(1, y[place], votes).argmax(dim=-1))
    return names[torch.cat(answers).numpy()]
