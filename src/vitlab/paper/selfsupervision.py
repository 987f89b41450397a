"""Masked patch prediction: section 4.6 and appendix B.1.2, for ViT-B/16."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from vitlab.paper.pretraining import DataName, Decay
from vitlab.spec import check_fields

TargetName = Literal["mean-colour", "colours-4x4", "pixels"]


class Target(NamedTuple):
    """What is predicted for a corrupted patch: `predictions` values, each one of `classes`."""

    predictions: int
    classes: int | None  # None: regression


COLOUR_BITS: Final = 3  # per channel of a mean colour, B.1.2

TARGETS: Final[Mapping[TargetName, Target]] = {  # B.1.2, for patches of 16 x 16 pixels
    "mean-colour": Target(1, 512),  # the one reported
    "colours-4x4": Target(16, 512),  # of the patch shrunk to 4 x 4
    "pixels": Target(768, None),  # L2 on all pixels; slightly worse
}


@dataclass(frozen=True)
class MaskedPatchRecipe:
    """A self-supervised run: half the patch embeddings are corrupted, the loss is on those alone."""

    model: str
    data: DataName
    target: TargetName
    corrupted: float  # share of an image's patches
    masked: float  # share of the corrupted replaced by the learned [mask] vector
    swapped: float  # replaced by another patch's embedding
    kept: float  # left as they are
    batch: int
    image: int  # pixels
    steps: int
    warmup: int  # steps
    learning_rate: float
    decay: Decay
    weight_decay: float
    dropout: float

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.corrupted <= 1:
            raise ValueError(f"corrupted {self.corrupted} is outside (0, 1]")
        if not math.isclose(self.masked + self.swapped + self.kept, 1):
            raise ValueError(f"masked {self.masked}, swapped {self.swapped} and kept {self.kept} must add up to 1")


RECIPE: Final = MaskedPatchRecipe(  # B.1.2
    model="ViT-B/16",
    data="JFT-300M",
    target="mean-colour",
    corrupted=0.5,
    masked=0.8,
    swapped=0.1,
    kept=0.1,
    batch=4096,
    image=224,
    steps=1_000_000,
    warmup=10_000,
    learning_rate=2e-4,
    decay="cosine",
    weight_decay=0.1,  # the paper is silent: the value of its supervised JFT rows
    dropout=0.0,  # the paper is silent: the value of its supervised JFT rows
)

SHORT_STEPS: Final = 100_000  # steps that already bring most of the gain, B.1.2
BERT_CORRUPTED: Final = 0.15  # the share BERT corrupts; few-shot results were slightly worse, B.1.2
