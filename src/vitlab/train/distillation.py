"""Distillation: learn from a teacher besides the labels, as in DeiT. The teacher is any function of the pixels."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.recipe import Distillation
from vitlab.train.update import Call, Objective, Piece

Teacher = Callable[[Tensor], Tensor]  # (n, 3, H, W) of 0..255, mixed or not -> (n, K) logits


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
