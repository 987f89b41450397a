"""The teacher of a run: any model that can be loaded, with its own preprocessing and resolution."""

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
from vitlab.weights.load import StartWeights, load_start


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


class Teacher:
    """A fixed model whose answers a run learns from.

    It sees the pixels that the student sees, normalised its own way and resized where its pictures have another size:
    what was cropped away is hidden from both. It computes in full precision.
    """

    def __init__(self, model: Model, order: list[int]) -> None:
        self.model = model.eval().requires_grad_(False)
        self.order = order  # the teacher's number of each class of the data

    def to(self, device: torch.device) -> "Teacher":
        """Move the model to a device."""
        self.model.to(device)
        return self

    def __call__(self, pixels: Tensor) -> Tensor:
        """(B, 3, H, W) of 0..255 -> (B, K), in the order of the data's classes."""
        pixels, size = pixels.float(), self.model.spec.image
        if pixels.shape[2:] != size:
            pixels = F.interpolate(pixels, size, mode="bilinear", align_corners=False, antialias=True).clamp(0, 255)
        logits = self.model(normalised(pixels, self.model.spec.conventions.preprocessing))  # (B, K)
        return logits if self.order == sorted(self.order) else logits[:, self.order]


def open_teacher(
    spec: RunSpec, card: DataCard, loaded: StartWeights | None = None, *, command: str = "vitlab resume RUN"
) -> Teacher:
    """Load the run's teacher, unless the caller has; raises unless its weights and classes are those of the run."""
    if loaded is None:
        path = Path(spec.teacher)
        require(path.exists(), f"there is no teacher at {path}; if it has moved: {command} --teacher MODEL")
        loaded = load_start(path)
    require(
        loaded.sha256 == spec.teacher_sha256,
        f"the teacher in {spec.teacher} is not the one the run began with; restore it, or start a new run",
    )
    return Teacher(loaded.model, _order_of_classes(loaded.model, card, spec))


def _order_of_classes(model: Model, card: DataCard, spec: RunSpec) -> list[int]:
    """The teacher's number of each class of the data, by name where the teacher has names."""
    classes = spec.model.classes
    require(
        model.spec.classes == classes,
        f"the teacher has {model.spec.classes:,} classes and the data has {classes:,}; use a teacher trained on the "
        f"same classes",
    )
    if model.class_names and card.class_names:
        try:
            return list(matched(model.class_names, card.class_names))
        except ValueError as error:
            raise ValueError(f"the teacher's classes are not the data's: {error}") from None
    return list(range(classes))
