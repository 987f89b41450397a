"""What a run learns: labels, the predictions of a teacher beside them, or masked patches."""

from collections import Counter
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.data.class_names import matched
from vitlab.data.fingerprint import DataCard
from vitlab.data.loading.batches import Batch
from vitlab.data.source import Source
from vitlab.data.transforms.corruption import Corruption
from vitlab.data.transforms.evaluation import normalised
from vitlab.models.build import Model
from vitlab.models.masked import check_maskable
from vitlab.models.vit import ViT
from vitlab.require import require
from vitlab.run_dir import RunSpec
from vitlab.spec import ViTSpec
from vitlab.train.masking import PatchPrediction
from vitlab.train.objectives import distilled, supervised
from vitlab.train.update import Objective
from vitlab.weights.load import StartWeights, load_start


def objective_of(spec: RunSpec, train: Source, teacher: "Teacher | None", device: torch.device) -> Objective:
    """The loss of a run's examples; `train` are its images."""
    if spec.recipe.masking is not None:
        return prediction_of(spec)
    labels = supervised(spec.recipe, class_weights(spec, train, device))
    if teacher is None:
        return labels
    require(not train.is_prepared, "a teacher needs images, but the data set gives float tensors")
    return distilled(spec.recipe.distillation, labels, teacher.to(device))


def targets_of(batch: Batch, spec: RunSpec) -> Tensor:
    """(n, K): any number of ones for the sigmoid loss, exactly one for softmax; the plans of masked patches."""
    if batch.plans is not None:
        return batch.plans
    if spec.recipe.loss == "softmax":
        batch.one_label()
    return batch.multi_hot(spec.model.classes)


def class_weights(spec: RunSpec, source: Source, device: torch.device) -> Tensor | None:
    """(K,) inversely proportional to how often a class occurs, 1 on average over the samples; None without them."""
    if spec.recipe.class_weights == "none":
        return None
    counts = Counter(label for number in range(len(source)) for label in source.label(number))
    weights = [len(source) / (len(counts) * counts[k]) if counts[k] else 0.0 for k in range(spec.model.classes)]
    return torch.tensor(weights, device=device)


# -- Distillation ----------------------------------------------------------------------------------


class BothLogits(nn.Module):
    """A distilled model as it is trained: (B, 3, H, W) -> (B, 2, K), for the labels and for the teacher."""

    def __init__(self, model: ViT) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 2, K)."""
        return torch.stack(self.model.both_logits(images), dim=1)


def student_of(spec: RunSpec, model: nn.Module) -> nn.Module:
    """The module that a run calls: with a teacher, a distilled model returns the logits of both heads."""
    has_two = bool(spec.teacher) and isinstance(spec.model, ViTSpec) and spec.model.distilled
    return BothLogits(model) if has_two and isinstance(model, ViT) else model


class Teacher:
    """A fixed model whose predictions a run learns from, with its own preprocessing and resolution.

    It sees the pixels that the student sees, normalised its own way and resized to its resolution: what was cropped
    away is hidden from both. It computes in full precision.
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
    is_same = loaded.sha256 == spec.teacher_sha256
    require(is_same, f"the teacher in {spec.teacher} is not the one the run began with; restore it, or start a new run")
    return Teacher(loaded.model, _order_of_classes(loaded.model, card, spec))


def _order_of_classes(model: Model, card: DataCard, spec: RunSpec) -> list[int]:
    """The teacher's number of each class of the data, by name where the teacher has names."""
    classes, others = spec.model.classes, model.spec.classes
    require(others == classes, f"the teacher has {others:,} classes and the data has {classes:,}; they must match")
    if model.class_names and card.class_names:
        try:
            return list(matched(model.class_names, card.class_names))
        except ValueError as error:
            raise ValueError(f"the teacher's classes are not the data's: {error}") from None
    return list(range(classes))


# -- Masked patches --------------------------------------------------------------------------------


def corruption_of(spec: RunSpec) -> Corruption:
    """How a run of masked patches corrupts them."""
    masking = spec.recipe.masking
    assert masking is not None, "the run learns from masked patches"
    rows, columns = check_maskable(spec.model).grid
    patches = rows * columns
    chosen = masking.chosen(patches)
    none = f"{masking.corrupted:g} of {patches} patches is none"
    require(chosen > 0, f"{none}; raise masking.corrupted=, or use larger images")
    return Corruption(patches, chosen, masking.masked, masking.swapped)


def prediction_of(spec: RunSpec) -> PatchPrediction:
    """The objective of a run of masked patches.

    A token behind a hybrid's ResNet stands for the pixels of its cell, although its neighbours have seen them too.
    """
    masking = spec.recipe.masking
    assert masking is not None, "the run learns from masked patches"
    prepare = partial(normalised, how=spec.model.conventions.preprocessing)
    return PatchPrediction(masking, spec.model.stride, prepare)
