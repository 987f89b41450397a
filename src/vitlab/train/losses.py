"""Losses: the sigmoid cross-entropy of pre-training and the softmax cross-entropy of fine-tuning."""

from torch import Tensor
from torch.nn import functional as F


def sigmoid_cross_entropy(logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """(B, K) logits and (B, K) targets of 0 and 1, any number of ones -> (B,): the sum over classes.

    Smoothing s makes the targets 1 - s and s. Start the head's bias at -10, so that the loss starts small.
    """
    smooth = targets * (1 - 2 * label_smoothing) + label_smoothing
    return F.binary_cross_entropy_with_logits(logits, smooth.to(logits.dtype), reduction="none").sum(dim=-1)


def softmax_cross_entropy(
    logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, class_weights: Tensor | None = None
) -> Tensor:
    """(B, K) logits and (B, K) targets that sum to 1 -> (B,).

    Smoothing s moves s of the mass evenly to all classes; `class_weights` (K,) multiply each class's part.
    """
    smooth = targets.to(logits.dtype) * (1 - label_smoothing) + label_smoothing / logits.shape[-1]
    weighted = smooth if class_weights is None else smooth * class_weights
    return -(weighted * logits.log_softmax(dim=-1)).sum(dim=-1)
