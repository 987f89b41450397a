"""Masked patch prediction: section 4.6 and appendix B.1.2, for ViT-B/16."""

from dataclasses import dataclass
from typing import Final

from vitlab.paper.pretraining import BATCH, IMAGE, WARMUP, DataName, pretraining_row
from vitlab.recipe import Decay, Masking
from vitlab.spec import check_fields


@dataclass(frozen=True)
class MaskedPatchRecipe:
    """A self-supervised run: half of the patch embeddings are corrupted, and the loss covers only those."""

    model: str
    data: DataName
    masking: Masking
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


_SUPERVISED = pretraining_row("ViT-B/16", "JFT-300M")

RECIPE: Final = MaskedPatchRecipe(  # B.1.2
    model="ViT-B/16",
    data="JFT-300M",
    masking=Masking("mean-colour", corrupted=0.5, masked=0.8, swapped=0.1, kept=0.1),
    batch=BATCH,
    image=IMAGE,
    steps=1_000_000,
    warmup=WARMUP,
    learning_rate=2e-4,
    decay="cosine",
    weight_decay=_SUPERVISED.weight_decay,  # the paper is silent: the value of its supervised JFT rows
    dropout=_SUPERVISED.dropout,  # the paper is silent: the value of its supervised JFT rows
)

SHORT_STEPS: Final = 100_000  # steps that already give most of the gain, B.1.2
BERT_CORRUPTED: Final = 0.15  # the share that BERT corrupts; few-shot results were slightly worse, B.1.2
