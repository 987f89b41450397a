"""AugReg's recipes, which are not the ViT paper's: "How to train your ViT?" (Steiner et al., 2021).

That paper compares seven levels of augmentation. The level for each model is that of the authors' big_vision.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from vitlab.paper.pretraining import DATA, DataName, training_steps
from vitlab.paper.recipes.length import ADAM_POWER, OWN, Length
from vitlab.spec import image_size
from vitlab.spec.pixels import Augmentation, RandAugment
from vitlab.spec.recipe import AdamW, Recipe, Schedule


class Level(NamedTuple):
    """The strength of augmentation: RandAugment's operations and magnitude, and the alpha of MixUp."""

    layers: int
    magnitude: float
    mixup: float


LEVELS: Final[Mapping[str, Level]] = {
    "none": Level(0, 0, 0.0),
    "light1": Level(2, 0, 0.0),  # not the identity: see the amounts in data/transforms/tensorflow_operations.py
    "light2": Level(2, 10, 0.2),
    "medium1": Level(2, 15, 0.2),
    "medium2": Level(2, 15, 0.5),
    "strong1": Level(2, 20, 0.5),
    "strong2": Level(2, 20, 0.8),
}
MODELS: Final = ("ViT-Ti/16", "ViT-S/32", "ViT-S/16", "ViT-B/32", "ViT-B/16", "ViT-L/16")
CHOSEN: Final[Mapping[DataName, Mapping[str, str]]] = {
    "ImageNet-21k": dict(zip(MODELS, ("none", "none", "light1", "light2", "light2", "medium2"), strict=True)),
    "ImageNet": dict(zip(MODELS, ("light1", "medium1", "medium2", "medium2", "medium2", "medium2"), strict=True)),
}
MARK: Final = "-augreg"
BATCH: Final = 4096  # images
WARMUP: Final = 10_000  # steps
EPOCHS: Final = 300  # 30 on ImageNet-21k too: --epochs 30
RATE: Final = 1e-3
WEIGHT_DECAY: Final = 0.1  # multiplied by the rate; 0.03 was tried too
CLIP_NORM: Final = 1.0


def names() -> list[str]:
    """List the names, such as ViT-S/16@imagenet-augreg. A level may follow: ViT-S/16@imagenet-augreg-strong1."""
    return [f"{model}@{DATA[data].slug}{MARK}" for data, models in CHOSEN.items() for model in models]


def is_name(name: str) -> bool:
    """Whether a name is one of `names`, with or without a level."""
    plain, mark, level = name.partition(MARK)
    return f"{plain}{mark}" in names() and (not level or level.removeprefix("-") in LEVELS)


def data_of(name: str) -> DataName:
    """Return the data set of a recipe."""
    slug = name.partition("@")[2].partition(MARK)[0]
    return next(data for data in CHOSEN if DATA[data].slug == slug)


def recipe(name: str, length: Length = OWN) -> Recipe:
    """Return the recipe of one of `names`, with the level in the name or else the level of the model."""
    data = data_of(name)
    model, _, rest = name.partition("@")
    level_name = rest.partition(MARK)[2].removeprefix("-") or CHOSEN[data][model]
    level = LEVELS[level_name]
    total = length.steps(images=DATA[data].training_images, epochs=EPOCHS, batch=BATCH)
    return Recipe(
        name=name,
        source=f"AugReg (not the ViT paper): {model} on {data}, {EPOCHS} epochs, augmentation {level_name}",
        batch=length.batch_or(BATCH),
        image=image_size(224),
        schedule=Schedule(
            peak=length.peak_of(RATE, batch=BATCH, power=ADAM_POWER),
            total=total,
            warmup=length.warmup_of(WARMUP, total=total, own_total=training_steps(data, EPOCHS, BATCH)),
            decay="cosine",
            end=0.0,
        ),
        optimizer=AdamW(weight_decay=WEIGHT_DECAY, decay="kernels", clip=CLIP_NORM),
        loss="softmax" if data == "ImageNet" else "sigmoid",
        augmentation=Augmentation(randaugment=RandAugment(level.layers, level.magnitude)),
        mixup=level.mixup,
        partners="rolled",
    )
