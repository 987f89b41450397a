"""Pre-training as in the paper: table 3, what all its rows share, the data sets, and masked patch prediction.

Section and table numbers are those of the paper. Where it is silent, a comment says so and names the source.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from vitlab.files.strict_json import check_fields
from vitlab.spec.recipe import Decay, Masking

DataName = Literal["JFT-300M", "ImageNet-21k", "ImageNet"]

# -- Table 3 -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PretrainingRow:
    """A row of table 3: each of its models was trained for each of its numbers of epochs."""

    models: tuple[str, ...]
    data: DataName
    epochs: tuple[int, ...]
    learning_rate: float
    decay: Decay
    weight_decay: float
    dropout: float

    def __post_init__(self) -> None:
        check_fields(self)


# fmt: off
TABLE_3: Final[tuple[PretrainingRow, ...]] = (  # models, data, epochs, learning rate, decay, weight decay, dropout
    PretrainingRow(("ViT-B/16", "ViT-B/32"),         "JFT-300M",     (7,),     8e-4, "linear", 0.1,  0.0),
    PretrainingRow(("ViT-L/32",),                    "JFT-300M",     (7,),     6e-4, "linear", 0.1,  0.0),
    PretrainingRow(("ViT-L/16",),                    "JFT-300M",     (7, 14),  4e-4, "linear", 0.1,  0.0),
    PretrainingRow(("ViT-H/14",),                    "JFT-300M",     (14,),    3e-4, "linear", 0.1,  0.0),
    PretrainingRow(("R50x1", "R50x2"),               "JFT-300M",     (7,),     1e-3, "linear", 0.1,  0.0),
    PretrainingRow(("R101x1",),                      "JFT-300M",     (7,),     8e-4, "linear", 0.1,  0.0),
    PretrainingRow(("R152x1", "R152x2"),             "JFT-300M",     (7,),     6e-4, "linear", 0.1,  0.0),
    PretrainingRow(("R50+ViT-B/16", "R50+ViT-B/32"), "JFT-300M",     (7,),     8e-4, "linear", 0.1,  0.0),
    PretrainingRow(("R50+ViT-L/32",),                "JFT-300M",     (7,),     2e-4, "linear", 0.1,  0.0),
    PretrainingRow(("R50+ViT-L/16",),                "JFT-300M",     (7, 14),  4e-4, "linear", 0.1,  0.0),
    PretrainingRow(("ViT-B/16", "ViT-B/32"),         "ImageNet-21k", (90,),    1e-3, "linear", 0.03, 0.1),
    PretrainingRow(("ViT-L/16", "ViT-L/32"),         "ImageNet-21k", (30, 90), 1e-3, "linear", 0.03, 0.1),
    # Printed "ViT-*": the four models with ImageNet results in table 5, where ViT-H/14 has none.
    PretrainingRow(("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32"),
                                                     "ImageNet",     (300,),   3e-3, "cosine", 0.3,  0.1),
)

# The paper is silent: runs that tables 5 and 6 report and table 3 omits. Everything but the model, the data and
# the 14 epochs is our choice, made from the neighbouring rows; ViT-H/14 may want gradients clipped to norm 1.
UNPRINTED_ROWS: Final[tuple[PretrainingRow, ...]] = (
    PretrainingRow(("R152x2",),   "JFT-300M",     (14,), 6e-4, "linear", 0.1,  0.0),
    PretrainingRow(("R200x3",),   "JFT-300M",     (14,), 4e-4, "linear", 0.1,  0.0),
    PretrainingRow(("ViT-H/14",), "ImageNet-21k", (90,), 3e-4, "linear", 0.03, 0.1),
)
# fmt: on


def pretraining_row(model: str, data: DataName) -> PretrainingRow:
    """Return the row of table 3 for a model on a data set; a ValueError for pairs that the table does not have."""
    found = [row for row in TABLE_3 if model in row.models and row.data == data]
    if not found:
        allowed = ", ".join(f"{name} on {row.data}" for row in TABLE_3 for name in row.models)
        raise ValueError(f"table 3 has no row for {model} on {data}; it has {allowed}")
    return found[0]


# -- What all rows share ---------------------------------------------------------------------------

BATCH: Final = 4096  # images; section 4.1
WARMUP: Final = 10_000  # steps; section 4.1 and the caption of table 3
IMAGE: Final = 224  # pixels; caption of table 3
ADAM_BETAS: Final = (0.9, 0.999)  # section 4.1
ADAM_EPSILON: Final = 1e-8  # the paper is silent: the default of flax.optim.Adam
LINEAR_DECAY_END: Final = 1e-5  # the paper is silent: configurations of google/uncertainty-baselines; cosine ends at 0
HEAD_BIAS: Final = -10.0  # the paper is silent: an author's reply (vision_transformer, issue 2); goes with sigmoid loss

# -- Data sets -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PretrainingData:
    """A pre-training set, and the settings that depend on it but not on the model."""

    slug: str  # in names of recipes
    images: int
    held_out: int  # of `images`, never trained on
    classes: int
    clip_norm: float | None  # global norm of the gradient; None: not clipped
    label_smoothing: float  # targets are 1 - x and x

    @property
    def training_images(self) -> int:
        """Images in an epoch."""
        return self.images - self.held_out


# Image counts: section 4.1. Clipping: caption of table 3, ImageNet only. The paper is silent on the exact numbers
# of classes, on what was held out and on the value of label smoothing: these are uncertainty-baselines'. With its
# sigmoid loss an image may have several labels.
DATA: Final[Mapping[DataName, PretrainingData]] = {  # slug, images, of them held out, classes
    "JFT-300M": PretrainingData("jft300m", 303_000_000, 0, 18_291, clip_norm=None, label_smoothing=0.0),
    "ImageNet-21k": PretrainingData("imagenet21k", 14_197_122, 102_400, 21_843, clip_norm=None, label_smoothing=1e-4),
    # The paper is silent on ImageNet's held-out images. All are used here; released code keeps 1 % (12,812) back.
    "ImageNet": PretrainingData("imagenet", 1_281_167, 0, 1_000, clip_norm=1.0, label_smoothing=1e-4),
}
FIGURE_4_SUBSETS: Final = (9_000_000, 30_000_000, 90_000_000)  # images drawn at random from JFT, section 4.3


def training_steps(data: DataName, epochs: int, batch: int = BATCH) -> int:
    """Return the number of steps of a run; the last, incomplete batch is dropped."""
    return epochs * DATA[data].training_images // batch


# -- SGD for ResNets: table 7, appendix D.1 ----------------------------------------------------------


@dataclass(frozen=True)
class SGDRecipe:
    """BiT's pre-training with SGD, which the paper's ResNets of table 7 follow. Each decay divides the rate by 10."""

    rate_per_256: float  # learning rate at batch 256; proportional to the batch
    momentum: float
    weight_decay: float
    warmup: int  # steps
    epochs: int
    decay_epochs: tuple[int, ...]

    def learning_rate(self, batch: int = BATCH) -> float:
        """Return the peak learning rate for a batch."""
        return self.rate_per_256 * batch / 256

    def decay_steps(self, total: int) -> tuple[int, ...]:
        """Return the steps of the decays in a run of `total` steps, at the same fractions of it."""
        # The paper is silent on where its 7-epoch runs decay; keeping BiT's fractions is our choice.
        return tuple(total * epoch // self.epochs for epoch in self.decay_epochs)


# BiT's own paper, for its JFT models (40 epochs there, 30 by the ViT paper's account).
SGD_JFT: Final = SGDRecipe(0.03, 0.9, 1e-4, warmup=5_000, epochs=40, decay_epochs=(10, 23, 30, 37))

# -- Masked patch prediction: section 4.6 and appendix B.1.2, for ViT-B/16 ---------------------------

_SUPERVISED = pretraining_row("ViT-B/16", "JFT-300M")
# The paper is silent on weight decay and dropout: those of the supervised row. Its length is in steps, not epochs.
MASKED_PATCHES: Final = replace(_SUPERVISED, models=("ViT-B/16",), epochs=(), learning_rate=2e-4, decay="cosine")
MASKING: Final = Masking("mean-colour", corrupted=0.5, masked=0.8, swapped=0.1, kept=0.1)  # the loss covers `corrupted`
MASKED_STEPS: Final = 1_000_000
