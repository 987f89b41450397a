"""What all model families share: checked images in, a feature vector, a replaceable head, logits out."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from vitlab.models.embedding import lecun_normal_
from vitlab.models.transformer import dense
from vitlab.paper.imagenet import imagenet_classes
from vitlab.require import require
from vitlab.spec import (
    AttentionLike,
    AxialResNetSpec,
    HeadKind,
    Image,
    ModelSpec,
    ResNetSpec,
    SwinSpec,
    Task,
    ViTSpec,
    image_size,
)
from vitlab.spec.patterns import no_pattern, parse_pattern

Spec = TypeVar("Spec", ViTSpec, ResNetSpec, AxialResNetSpec, SwinSpec)
MAKES = "vitlab.preprocess(model, files) makes such a tensor"


class LinearHead(nn.Module):
    """One dense layer: the head of fine-tuning. `classes` is 0 for a model that only makes features."""

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
    """A dense layer of the same width, tanh, and the logits: the head of pre-training."""

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
    """DeiT's two heads: one on the class token, one on the distillation token."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(width, classes)
        self.distillation = dense(width, classes)

    def features(self, y: Tensor) -> Tensor:
        """(B, 2, D) -> (B, D)."""
        return y.mean(dim=1)

    def both(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 2, D) -> two (B, K): the logits for the loss on labels, and those for the loss against the teacher."""
        return self.logits(y[:, 0]), self.distillation(y[:, 1])

    def forward(self, y: Tensor) -> Tensor:
        """(B, 2, D) -> (B, K): the mean of both heads, as in DeiT's inference."""
        own, taught = self.both(y)
        return (own + taught) / 2

    def initialise(self, generator: torch.Generator, bias: float) -> None:
        super().initialise(generator, bias)
        nn.init.zeros_(self.distillation.weight)
        nn.init.constant_(self.distillation.bias, bias)


HEADS = {"mlp": MLPHead, "linear": LinearHead}


def make_head(spec: ModelSpec) -> LinearHead:
    """Make the head that a spec describes."""
    kind = DistilledHead if isinstance(spec, ViTSpec) and spec.distilled else HEADS[spec.head]
    return kind(spec.width, spec.classes)


class Classifier(nn.Module, Generic[Spec]):
    """A model built from its spec; `class_names`, `task` and `provenance` are saved and loaded with it."""

    head: LinearHead  # every family makes it last, so that its parameters come last

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec: Spec = spec
        self.class_names: tuple[str, ...] | None = None
        self.task: Task = "single-label"
        self.provenance: dict[str, str] = {}

    def pooled(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D): the input of the head."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, K)."""
        return self.head(self.pooled(images))

    def probabilities(self, logits: Tensor) -> Tensor:
        """(B, K) -> (B, K): a softmax over classes, or for a multi-label model a sigmoid per class."""
        return logits.sigmoid() if self.task == "multi-label" else logits.softmax(dim=-1)

    def features(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D): the pre-logits before the tanh if the head has them, else the pooled vector."""
        return self.head.features(self.pooled(images))

    def both_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) -> two (B, K) of a distilled model: for the loss on labels, and for that against the teacher."""
        if not isinstance(self.head, DistilledHead):
            raise ValueError("this model has one head; only distilled models, such as DeiT-B/16-distilled, have two")
        return self.head.both(self.pooled(images))

    def layer_attention(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the attention probabilities of each layer; a ValueError for families without such attention."""
        raise ValueError("this model has no attention between patches to look at; use a ViT or a hybrid")

    def resize(self, image: Image) -> None:
        """Change the image size."""
        self.spec = replace(self.spec, image=image_size(image))

    def set_merge(self, merge: int) -> None:
        """Merge tokens in every layer; a ValueError for families that have none."""
        require(merge == 0, f"merge {merge} is for Vision Transformers and hybrids; this model has no tokens to merge")

    def set_attention(self, attention: AttentionLike) -> None:
        """Change the pattern of attention; a ValueError for families that have none."""
        wanted = str(parse_pattern(attention))
        require(wanted == "full", no_pattern(wanted, "this model has no attention between patches"))

    def reset_head(self, classes: int, head: HeadKind = "linear") -> None:
        """Replace the head by a zero head for `classes` classes, as fine-tuning does."""
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
        """Draw every parameter as in the authors' code."""
        raise NotImplementedError

    def check(self, images: Tensor) -> None:
        """Raise a ValueError for images that this model cannot take; nothing is checked while it is traced."""
        if isinstance(images, Proxy) or torch.jit.is_tracing():  # there are no numbers to branch on
            return
        check_images(images)
        # Only float64 always fails: half-precision images are fine under autocast.
        own = next(self.parameters()).dtype  # not the head's: a quantised head has no such weight
        if images.dtype == torch.float64 != own:
            raise ValueError(f"images must be {own} like the model, not torch.float64: images.to({own}); {MAKES}")
        check_shape(images, self.spec.image)


def check_images(images: object) -> None:
    """Raise a ValueError unless `images` is a tensor of floating point; its values are not looked at."""
    if isinstance(images, Tensor) and images.is_floating_point():
        return
    given = images.dtype if isinstance(images, Tensor) else type(images).__name__
    raise ValueError(f"images must be a float tensor in the model's normalisation, not {given}; {MAKES}")


def check_shape(images: Tensor, size: tuple[int, int] | None) -> None:
    """Raise a ValueError unless `images` is (B, 3, H, W), of this height and width unless they are None."""
    if images.dim() != 4 or images.shape[1] != 3:
        raise ValueError(f"images must be (B, 3, H, W), not {tuple(images.shape)}")
    if size is not None and images.shape[2:] != size:
        given, own = ("x".join(map(str, sides)) for sides in (images.shape[2:], size))
        raise ValueError(f"images are {given}, this model expects {own}; resize them, or call model.resize")


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode inside the block and restore the mode of every submodule afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def check_model(model: object) -> None:
    """Raise a ValueError unless `model` is a vitlab model or wraps one and exposes its spec, as a compiled one does."""
    if isinstance(getattr(model, "spec", None), ModelSpec):
        return
    given = f"a str, {model!r:.100}" if isinstance(model, str) else f"a {type(model).__name__}"
    raise ValueError(f"model is {given}; give a model from vitlab.load_model(path) or vitlab.build_model(name)")


def class_names(
    model: Classifier[ViTSpec] | Classifier[ResNetSpec] | Classifier[AxialResNetSpec] | Classifier[SwinSpec],
) -> tuple[tuple[str, ...], str]:
    """The names of the model's classes, and where they come from."""
    if model.class_names is not None:
        return model.class_names, "stored with the model"
    if model.spec.classes == 1000:
        names = tuple(name for _, name in imagenet_classes())
        return names, "assumed ImageNet-1k: the model has 1000 classes without names"
    return tuple(f"class {i}" for i in range(model.spec.classes)), "numbers: the model has no class names"
