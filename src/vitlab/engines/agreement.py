"""How far an engine agrees with the plain model."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitlab.engines.engine import Engine
from vitlab.engines.runtimes import plain_function
from vitlab.models.build import Model

# Of outputs, relative to the largest: more is a fault of a conversion, not rounding. Tests hold the logits of engines
# to 1e-5; exported from pixels on, an axial ResNet differs by 1.1e-5, and other processors round differently.
LARGEST_DIFFERENCE = 1e-4


@dataclass(frozen=True)
class Agreement:
    """Images with the same top-1, and the largest error of a logit relative to the largest logit."""

    images: int
    same: int
    difference: float

    def __str__(self) -> str:
        same = f"the same top-1 for {self.same} of {self.images} images ({self.same / self.images:.1%})"
        return f"{same}, logits within {self.difference:.2g} of the largest"

    @property
    def is_exact(self) -> bool:
        """Whether only rounding differs."""
        return self.same == self.images and self.difference <= LARGEST_DIFFERENCE


def agreement(engine: Engine, model: Model, images: Tensor) -> Agreement:
    """Compare an engine with the plain model on preprocessed images (B, 3, H, W)."""
    plain = Engine("plain", plain_function(model), device=engine.device, dtype=engine.dtype)
    return agreement_of(engine(images), plain(images))


def agreement_of(ours: Tensor, theirs: Tensor) -> Agreement:
    """Compare the logits (B, K) of an engine with those of the plain model."""
    same = int((ours.argmax(dim=-1) == theirs.argmax(dim=-1)).sum())
    return Agreement(len(ours), same, float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30)))


def probe(model: Model, batch: int) -> Tensor:
    """Random images for a model, the same every time."""
    return torch.randn(batch, 3, *model.spec.image, generator=torch.Generator().manual_seed(0))
