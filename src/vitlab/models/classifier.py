"""What every family shares: images in, a feature vector, a head that can be replaced, logits out."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from vitlab.models.inputs import MAKES, check_images, is_traced
from vitlab.models.patches import lecun_normal_
from vitlab.models.transformer import dense
from vitlab.spec import AxialResNetSpec, HeadKind, Image, ModelSpec, ResNetSpec, Task, ViTSpec, image_size

Spec = TypeVar("Spec", ViTSpec, ResNetSpec, AxialResNetSpec)


class LinearHead(nn.Module):
    """One dense layer: the head of fine-tuning. `classes` may be 0 for a model that only makes features."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.logits = dense(width, classes)

    def features(self, y: Tensor) -> Tensor:
        """(B, D) -> (B, D)."""
        return y

    def forward(self, y: Tensor) -> Tensor:
        """(B, D) -> (B, K)."""
        return self.logits(y)

    def initialise(self, generator: torch.Generator, bias: float) -> None:
        nn.init.zeros_(self.logits.weight)
        nn.init.constant_(self.logits.bias, bias)


class MLPHead(LinearHead):
    """A dense layer of the same width, tanh, then the logits: the head of pre-training."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(width, classes)
        self.pre_logits = dense(width, width)

    def features(self, y: Tensor) -> Tensor:
        """(B, D) -> (B, D), before the tanh."""
        return self.pre_logits(y)

    def forward(self, y: Tensor) -> Tensor:
        """(B, D) -> (B, K)."""
        return self.logits(self.features(y).tanh())

    def initialise(self, generator: torch.Generator, bias: float) -> None:
        super().initialise(generator, bias)
        lecun_normal_(self.pre_logits.weight, generator)
        nn.init.zeros_(self.pre_logits.bias)


class DistilledHead(LinearHead):
    """DeiT's two heads: one reads the class token, the other the token that learnt from a teacher."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(width, classes)
        self.distillation = dense(width, classes)

    def features(self, y: Tensor) -> Tensor:
        """(B, 2, D) -> (B, D)."""
        return y.mean(dim=1)

    def both(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 2, D) -> two (B, K): the logits for the label's loss, and those for the teacher's."""
        return self.logits(y[:, 0]), self.distillation(y[:, 1])

    def forward(self, y: Tensor) -> Tensor:
        """(B, 2, D) -> (B, K): the mean of both, as DeiT infers."""
        own, taught = self.both(y)
        return (own + taught) / 2

    def initialise(self, generator: torch.Generator, bias: float) -> None:
        super().initialise(generator, bias)
        nn.init.zeros_(self.distillation.weight)
        nn.init.constant_(self.distillation.bias, bias)


HEADS = {"mlp": MLPHead, "linear": LinearHead}


def make_head(spec: ModelSpec) -> LinearHead:
    """The head a spec asks for."""
    kind = DistilledHead if isinstance(spec, ViTSpec) and spec.distilled else HEADS[spec.head]
    return kind(spec.width, spec.classes)


class Classifier(nn.Module, Generic[Spec]):
    """A model as its spec says; `build_model` makes one with fresh weights.

    `class_names`, `task` and `provenance` travel with the model when it is saved and loaded.
    """

    head: LinearHead  # made last by every family, so that it stands last among the parameters

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec: Spec = spec
        self.class_names: tuple[str, ...] | None = None
        self.task: Task = "single-label"
        self.provenance: dict[str, str] = {}

    def pooled(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D): what the head reads."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, K)."""
        return self.head(self.pooled(images))

    def probabilities(self, logits: Tensor) -> Tensor:
        """(B, K) -> (B, K): a softmax over the classes, or a sigmoid of each class for a multi-label model."""
        return logits.sigmoid() if self.task == "multi-label" else logits.softmax(dim=-1)

    def features(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D): the pre-logits before their tanh where the head has them, else the pooled vector."""
        return self.head.features(self.pooled(images))

    def both_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) -> two (B, K) of a distilled model: for the label's loss, and for the teacher's."""
        if not isinstance(self.head, DistilledHead):
            raise ValueError("this model has one head; a distilled one, such as DeiT-B/16-distilled, has two")
        return self.head.both(self.pooled(images))

    def layer_attention(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the attention probabilities of each layer, for the families that have such attention."""
        raise ValueError("this model has no attention between patches to look at; a ViT or a hybrid has")

    def resize(self, image: Image) -> None:
        """Accept another image size from now on."""
        self.spec = replace(self.spec, image=image_size(image))

    def reset_head(self, classes: int, head: HeadKind = "linear") -> None:
        """Put a fresh zero head for `classes` classes in place of the old one, as fine-tuning does."""
        self.spec = replace(self.spec, classes=classes, head=head)
        old = next(self.parameters())
        with torch.device("meta" if old.is_meta else "cpu"):
            fresh = make_head(self.spec)
        if not old.is_meta:
            fresh.initialise(torch.Generator().manual_seed(0), bias=0.0)
        self.head = fresh.to(device=old.device, dtype=old.dtype)
        self.class_names = None
        self.task = "single-label"

    def initialise(self, generator: torch.Generator, head_bias: float = 0.0) -> None:
        """Draw every parameter as the authors' code does."""
        raise NotImplementedError

    def _check(self, images: Tensor) -> None:
        """Raise a ValueError in words for what this model cannot take; nothing is checked while it is traced."""
        if is_traced(images):
            return
        check_images(images)
        # Only doubles are certain to fail: halves may meet whole weights under autocast.
        own = next(self.parameters()).dtype  # a quantised head has no such weight
        if images.dtype == torch.float64 != own:
            raise ValueError(f"images must be of {own} as the model is, not torch.float64: images.to({own}); {MAKES}")
        if images.dim() != 4 or images.shape[1] != 3:
            raise ValueError(f"images must be (B, 3, H, W), not {tuple(images.shape)}")
        if images.shape[2:] != self.spec.image:
            given, own = ("x".join(map(str, size)) for size in (images.shape[2:], self.spec.image))
            raise ValueError(f"images are {given}, this model expects {own}; resize them, or the model by model.resize")
