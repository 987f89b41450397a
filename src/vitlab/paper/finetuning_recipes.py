"""The paper's fine-tunings as recipes that can be run: table 4, table 2, BiT-HyperRule, and a quick one for CPUs.

A recipe is named by its data, because table 4 has one row for all models.
"""

from typing import Final

from vitlab.paper import finetuning
from vitlab.paper.finetuning import FinetuningRow, TransferName
from vitlab.pixels import Augmentation
from vitlab.recipe import SGD, Recipe, Schedule
from vitlab.spec import image_size
from vitlab.strict_json import require

TRANSFER_SLUGS: Final[dict[str, TransferName]] = {
    "imagenet": "ImageNet",
    "cifar100": "CIFAR-100",
    "cifar10": "CIFAR-10",
    "pets": "Oxford-IIIT Pets",
    "flowers": "Oxford Flowers-102",
    "vtab": "VTAB",
}
# The learning rate is picked on the development split; 0.01 is the one that stands in every row's grid.
FINETUNING_RATE: Final = 0.01
BIT_SIZES: Final = ("bit-small", "bit-medium", "bit-large")
QUICK: Final = "quick"
QUICK_BATCH, QUICK_EPOCHS, QUICK_LEAST = 64, 10, 100  # images, epochs, steps


def finetuning_names() -> list[str]:
    """The rows of table 4, the larger pictures of table 2, and BiT-HyperRule by size of the data."""
    return [*TRANSFER_SLUGS, *(f"imagenet-{side}" for side in finetuning.TABLE_2_IMAGENET_IMAGE.values()), *BIT_SIZES]


def finetuning_recipe(name: str) -> Recipe:
    """The recipe of a fine-tuning such as `cifar10`; raises for names that do not exist."""
    require(
        name in finetuning_names(),
        f"no fine-tuning is named {name!r}; known are {', '.join([*finetuning_names(), QUICK])}",
    )
    if name in BIT_SIZES:
        return _hyper_rule_recipe(name)
    data, _, side = name.partition("-")
    row = finetuning.finetuning_row(TRANSFER_SLUGS[data])
    return _table_4_recipe(name, row, int(side) if side else finetuning.IMAGE)


def development_share(name: str) -> float:
    """The part of the training images that a row of table 4 holds out to pick its learning rate on."""
    data = name.partition("-")[0]
    return finetuning.finetuning_row(TRANSFER_SLUGS[data]).dev_fraction if data in TRANSFER_SLUGS else 0.1


def _table_4_recipe(name: str, row: FinetuningRow, side: int) -> Recipe:
    is_table_2 = side != finetuning.IMAGE
    return Recipe(
        name=name,
        source=f"Table 4: {row.data}"
        + (f", at {side} pixels with Polyak averaging as in table 2" if is_table_2 else ""),
        batch=finetuning.BATCH,
        image=image_size(side),
        schedule=Schedule(peak=FINETUNING_RATE, total=row.steps, warmup=row.warmup, decay="cosine", end=0.0),
        optimizer=SGD(momentum=finetuning.MOMENTUM, weight_decay=finetuning.WEIGHT_DECAY, clip=finetuning.CLIP_NORM),
        loss="softmax",
        label_smoothing=finetuning.LABEL_SMOOTHING,
        dropout=finetuning.DROPOUT,
        average=finetuning.POLYAK if is_table_2 else None,
    )


def _hyper_rule_recipe(name: str) -> Recipe:
    rule = finetuning.HYPER_RULES[BIT_SIZES.index(name)]
    enlarged, crop = finetuning.hyper_rule_resolution(384, 384, model="")
    return Recipe(
        name=name,
        source="BiT-HyperRule (appendix B.1.1; BiT's released code)",
        batch=finetuning.BATCH,
        image=image_size(crop),
        schedule=Schedule(
            peak=finetuning.HYPER_RULE_LEARNING_RATE,
            total=rule.stop,
            warmup=rule.warmup,
            decay="staircase",
            end=0.0,
            boundaries=rule.decays,
        ),
        optimizer=SGD(momentum=finetuning.MOMENTUM, weight_decay=0.0, clip=None),
        augmentation=Augmentation(crop="square-crop", enlarged=enlarged / crop),
        mixup=rule.mixup,
    )


def quick_recipe(images: int, image: tuple[int, int]) -> Recipe:
    """Fine-tuning that a CPU finishes: table 4 with a smaller batch, fewer steps and the model's own resolution.

    The learning rate shrinks with the square root of the batch.
    """
    # Differs from the paper: batch 64 instead of 512, about 10 epochs, no larger pictures; only when it is asked for by
    # name or no accelerator is there, and the run says so.
    batch = min(QUICK_BATCH, images)
    total = max(QUICK_EPOCHS * images // batch, QUICK_LEAST)
    return Recipe(
        name=QUICK,
        source="Table 4 made small for a CPU; not the paper's",
        batch=batch,
        image=image,
        schedule=Schedule(
            peak=FINETUNING_RATE * (batch / finetuning.BATCH) ** 0.5,
            total=total,
            warmup=total // 10,
            decay="cosine",
            end=0.0,
        ),
        optimizer=SGD(),
    )
