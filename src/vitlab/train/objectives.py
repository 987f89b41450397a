"""Objectives: the loss of each example against its labels, and in distillation also against a teacher."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.spec.recipe import Distillation, Recipe


@dataclass(frozen=True)
class Piece:
    """A micro-batch: pixels as loaded (and mixed, if the recipe mixes), prepared inputs of the module, and targets."""

    pixels: Tensor
    inputs: Tensor
    targets: Tensor


Call = Callable[..., Tensor]  # the module, in the run's precision
Objective = Callable[[Call, Piece], Tensor]  # -> (n,): the loss of each example
Teacher = Callable[[Tensor], Tensor]  # (n, 3, H, W) of 0..255, mixed or not -> (n, K) logits


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


def supervised(recipe: Recipe, class_weights: Tensor | None = None) -> Objective:
    """The recipe's loss of the logits against the labels."""
    if recipe.loss == "sigmoid":
        loss = partial(sigmoid_cross_entropy, label_smoothing=recipe.label_smoothing)
    else:
        loss = partial(softmax_cross_entropy, label_smoothing=recipe.label_smoothing, class_weights=class_weights)
    return partial(_supervised_loss, loss)


def _supervised_loss(loss: Callable[[Tensor, Tensor], Tensor], call: Call, piece: Piece) -> Tensor:
    return loss(call(piece.inputs), piece.targets)


def hard_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Two (B, K) of logits -> (B,): cross-entropy with the teacher's best class."""
    return F.cross_entropy(student, teacher.argmax(dim=-1), reduction="none")


def soft_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Two (B, K) of logits -> (B,): tau^2 KL(teacher || student) of both softmaxes at the temperature tau."""
    # Differs from DeiT: its code divides by the number of classes as well, its paper does not.
    told, said = ((logits / temperature).log_softmax(dim=-1) for logits in (teacher, student))
    return temperature**2 * F.kl_div(said, told, reduction="none", log_target=True).sum(dim=-1)


def distilled(how: Distillation, labels: Objective, teacher: Teacher) -> Objective:
    """(1 - share) times the loss against the labels plus share times that against the teacher.

    If the module returns (B, 2, K), the first logits learn from the labels and the second from the teacher; if it
    returns (B, K), they learn from both. With MixUp or CutMix the teacher sees the mixed images.
    """

    def objective(call: Call, piece: Piece) -> Tensor:
        answer = call(piece.inputs)
        own, taught = answer.unbind(dim=1) if answer.dim() == 3 else (answer, answer)
        with torch.no_grad():
            told = teacher(piece.pixels)
        copied = hard_loss(taught, told) if how.kind == "hard" else soft_loss(taught, told, how.temperature)
        return (1 - how.share) * labels(lambda inputs: own, piece) + how.share * copied

    return objective
