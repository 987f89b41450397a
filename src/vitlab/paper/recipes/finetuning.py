"""Recipes of fine-tuning: table 4, table 2, BiT-HyperRule, and a quick one for CPUs.

A recipe is named after its data, because one row of table 4 covers all models.
"""

import difflib
from typing import Final

from vitlab.errors import did_you_mean
from vitlab.paper import finetuning, vtab
from vitlab.paper.finetuning import FinetuningRow, TransferName
from vitlab.paper.recipes.length import OWN, SGD_POWER, Length
from vitlab.require import require
from vitlab.spec import image_size
from vitlab.spec.pixels import Augmentation
from vitlab.spec.recipe import AUTHORS_CROP, SGD, Recipe, Schedule

TRANSFER_SLUGS: Final[dict[str, TransferName]] = {
    "imagenet": "ImageNet",
    "cifar100": "CIFAR-100",
    "cifar10": "CIFAR-10",
    "pets": "Oxford-IIIT Pets",
    "flowers": "Oxford Flowers-102",
    "vtab": "VTAB",
}
# The development split selects the learning rate; 0.01 is the one in the grid of every row.
FINETUNING_RATE: Final = 0.01
BIT_SIZES: Final = ("bit-small", "bit-medium", "bit-large")
LARGE_PICTURES: Final = (384, 384)  # of unknown data; BiT-HyperRule treats all pictures of at least 96 x 96 alike
BIT_CROP: Final = Augmentation(crop="square-crop", enlarged=vtab.RESIZE / vtab.IMAGE)
QUICK: Final = "quick"
QUICK_EPOCHS, QUICK_LEAST = 10, 30  # number of epochs, and the minimum number of steps
QUICK_BATCHES, QUICK_STEPS = (8, 64), 100  # smallest and largest batch; steps that the batch should leave, if possible
QUICK_RATE: Final = FINETUNING_RATE * (QUICK_BATCHES[1] / finetuning.BATCH) ** 0.5
TABLE_4_SGD: Final = SGD(momentum=finetuning.MOMENTUM, weight_decay=finetuning.WEIGHT_DECAY, clip=finetuning.CLIP_NORM)


def finetuning_names() -> list[str]:
    """List the rows of table 4, the larger images of table 2, and BiT-HyperRule by size of the data."""
    return [*TRANSFER_SLUGS, *(f"imagenet-{side}" for side in finetuning.TABLE_2_IMAGENET_IMAGE.values()), *BIT_SIZES]


def finetuning_recipe(
    name: str, length: Length = OWN, pictures: tuple[int, int] = LARGE_PICTURES, model: str = ""
) -> Recipe:
    """Return the recipe of a fine-tuning such as `cifar10`; a ValueError for unknown names.

    What `length` leaves open comes from the row. The peak learning rate is proportional to the batch. The resolution of
    BiT-HyperRule depends on the height and width of the data's `pictures` and on the `model`.
    """
    names = finetuning_names()
    if name not in names:
        near = difflib.get_close_matches(name, [*names, QUICK], n=2)
        known = ", ".join([*names, QUICK])
        raise ValueError(f"unknown fine-tuning recipe {name!r}; {did_you_mean(near)}known are {known}")
    if name in BIT_SIZES:
        return _hyper_rule_recipe(name, length, finetuning.hyper_rule_resolution(*pictures, model))
    data, _, side = name.partition("-")
    row = finetuning.finetuning_row(TRANSFER_SLUGS[data])
    return _table_4_recipe(name, row, int(side) if side else finetuning.IMAGE, length)


def development_share(name: str) -> float:
    """Return the share of the training images that a row of table 4 holds out to select its learning rate."""
    data = name.partition("-")[0]
    return finetuning.finetuning_row(TRANSFER_SLUGS[data]).dev_fraction if data in TRANSFER_SLUGS else 0.1


def finetuning_row_for(images: int) -> tuple[str, str]:
    """Return (recipe, reason): the row of table 4 for a set of about this size, with the limits of BiT-HyperRule."""
    small, medium, _ = finetuning.HYPER_RULES
    if images < small.below:
        return "pets", f"{images:,} images are fewer than {small.below:,}, as in Pets and Flowers"
    if images < medium.below:
        return "cifar10", f"{images:,} images are between {small.below:,} and {medium.below:,}, as in CIFAR"
    return "imagenet", f"{images:,} images are {medium.below:,} or more, as in ImageNet"


def _table_4_recipe(name: str, row: FinetuningRow, side: int, length: Length) -> Recipe:
    is_table_2 = side != finetuning.IMAGE
    total = _steps(row.steps, length)
    return Recipe(
        name=name,
        source=f"Table 4: {row.data}"
        + (f", at {side} pixels with Polyak averaging as in table 2" if is_table_2 else ""),
        batch=length.batch_or(finetuning.BATCH),
        image=image_size(side),
        schedule=Schedule(
            peak=length.peak_of(FINETUNING_RATE, batch=finetuning.BATCH, power=SGD_POWER),
            total=total,
            warmup=length.warmup_of(row.warmup, total=total, own_total=row.steps),
            decay=finetuning.DECAY,
            end=0.0,
        ),
        optimizer=TABLE_4_SGD,
        loss="softmax",
        label_smoothing=finetuning.LABEL_SMOOTHING,
        dropout=finetuning.DROPOUT,
        # Differs from the paper: recipes of the five transfer sets have the Inception crop of the released code; B.1.1
        # says BiT's preprocessing, which recipe `vtab` has: `--augmentation.crop square-crop` gives it to the others.
        augmentation=BIT_CROP if row.data == "VTAB" else AUTHORS_CROP,
        average=finetuning.POLYAK if is_table_2 else None,
    )


def _steps(own: int, length: Length) -> int:
    """Return the total steps: as set, from the epochs as set, or the recipe's own for data of any size."""
    if not length.is_set:
        return own
    is_known = length.total is not None or length.images is not None
    require(is_known, f"{length.epochs} epochs give no number of steps without a number of images")
    return length.steps(images=0, epochs=0, batch=finetuning.BATCH)


def _hyper_rule_recipe(name: str, length: Length, resolution: tuple[int, int]) -> Recipe:
    rule = finetuning.HYPER_RULES[BIT_SIZES.index(name)]
    total = _steps(rule.stop, length)
    enlarged, crop = resolution
    return Recipe(
        name=name,
        source="BiT-HyperRule (appendix B.1.1; BiT's released code)",
        batch=length.batch_or(finetuning.BATCH),
        image=image_size(crop),
        schedule=Schedule(
            peak=length.peak_of(finetuning.HYPER_RULE_LEARNING_RATE, batch=finetuning.BATCH, power=SGD_POWER),
            total=total,
            warmup=length.warmup_of(rule.warmup, total=total, own_total=rule.stop),
            decay="staircase",
            end=0.0,
            boundaries=tuple(decay * total // rule.stop for decay in rule.decays),
        ),
        optimizer=SGD(momentum=finetuning.MOMENTUM, weight_decay=0.0, clip=None),
        augmentation=Augmentation(crop="square-crop", enlarged=enlarged / crop),
        mixup=rule.mixup,
    )


def quick_recipe(images: int, image: tuple[int, int], length: Length = OWN) -> Recipe:
    """Return a recipe that a CPU can finish: table 4 with a small batch, few epochs and the model's own resolution.

    The batch depends on the number of all `images`, so that few images still give enough steps; the steps depend on the
    images of `length`, which are left for training. The run stops early when the training loss has settled, unless
    `length` sets the epochs or steps.
    """
    # Differs from the paper: recipe `quick` has batches of 8 to 64 images instead of 512, 10 epochs (at least 30
    # steps), no higher resolution, and an early stop. It is the default without an accelerator, and the run says so.
    own, (least, most) = quick_batch(images), QUICK_BATCHES
    left = length.images or images
    batch = length.batch_or(own)
    # Batches of 8 to 64 images have the same peak rate, and so has the recipe's own batch of fewer. A smaller or larger
    # batch that the user sets changes it in proportion, up to the rate of table 4.
    same_rate = min(max(batch, least), most) if length.batch else own
    total = max(QUICK_EPOCHS * left // batch, QUICK_LEAST)
    if length.is_set:
        total = length.steps(images=left, epochs=QUICK_EPOCHS, batch=own)
    return Recipe(
        name=QUICK,
        source="Table 4 made small for a CPU; not the paper's",
        batch=batch,
        image=image,
        schedule=Schedule(
            peak=min(QUICK_RATE * batch / same_rate, FINETUNING_RATE),
            total=total,
            warmup=length.warmup_of(total // 10, total=total, own_total=total),
            decay=finetuning.DECAY,
            end=0.0,
        ),
        optimizer=TABLE_4_SGD,
        settle_window=0 if length.is_set else max(left // batch, QUICK_LEAST // 6),
    )


def quick_batch(images: int) -> int:
    """Return the largest power of two that leaves 100 steps, between 8 and 64 and at most the number of images."""
    least, most = QUICK_BATCHES
    fitting = max(QUICK_EPOCHS * images // QUICK_STEPS, 1)
    return min(max(2 ** (fitting.bit_length() - 1), least), most, images)
