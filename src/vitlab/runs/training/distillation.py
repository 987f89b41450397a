"""A run's teacher: any model that can be loaded, fixed, with its own preprocessing and resolution."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.data.class_names import matched
from vitlab.data.fingerprint import DataCard
from vitlab.data.transforms.evaluation import normalised
from vitlab.models.build import Model
from vitlab.models.vit import ViT
from vitlab.require import require
from vitlab.run_dir import RunSpec
from vitlab.spec import ViTSpec
from vitlab.train.distillation import Teacher
from vitlab.weights.load import load_model, weights_sha256


class BothLogits(nn.Module):
    """A distilled model as it is trained: (B, 3, H, W) -> (B, 2, K), for the labels and for the teacher."""

    def __init__(self, model: ViT) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 2, K)."""
        return torch.stack(self.model.both_logits(images), dim=1)


def student_of(spec: RunSpec, model: nn.Module) -> nn.Module:
    """The module as a run calls it: with a teacher, a distilled model answers with both its heads."""
    has_two = bool(spec.teacher) and isinstance(spec.model, ViTSpec) and spec.model.distilled
    return BothLogits(model) if has_two and isinstance(model, ViT) else model


def open_teacher(spec: RunSpec, card: DataCard, device: torch.device) -> Teacher:
    """The run's teacher on the device; raises unless its weights are those of before and its classes the data's.

    It sees the pixels that the student sees, with its own mean and deviation, resized where its pictures are of
    another size: what was cut off is cut off for both. It computes in full precision.
    """
    path = Path(spec.teacher)
    require(path.exists(), f"there is no teacher at {path}; if it has moved: vitlab resume RUN --teacher MODEL")
    found = weights_sha256(path)
    require(
        found == spec.teacher_sha256,
        f"the teacher in {spec.teacher} is not the one the run began with; bring it back, or start a new run",
    )
    model = load_model(spec.teacher)
    order = _order_of_classes(model, card, spec)
    model = model.to(device).eval().requires_grad_(False)
    how, size = model.spec.conventions.preprocessing, model.spec.image

    def teacher(pixels: Tensor) -> Tensor:
        pixels = pixels.float()
        if pixels.shape[2:] != size:
            pixels = F.interpolate(pixels, size, mode="bilinear", align_corners=False, antialias=True).clamp(0, 255)
        logits = model(normalised(pixels, how))  # (B, K)
        return logits if order == sorted(order) else logits[:, order]

    return teacher


def _order_of_classes(model: Model, card: DataCard, spec: RunSpec) -> list[int]:
    """The teacher's number of each class of the data, by name where the teacher has names."""
    classes = spec.model.classes
    require(
        model.spec.classes == classes,
        f"the teacher knows {model.spec.classes:,} classes, the data has {classes:,}; take a teacher of the same data",
    )
    if model.class_names and card.class_names:
        try:
            return list(matched(model.class_names, card.class_names))
        except ValueError as error:
            raise ValueError(f"the teacher's classes are not the data's: {error}") from None
    return list(range(classes))
