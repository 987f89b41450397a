"""The paper's rows as recipes that can be run: table 3, table 4, BiT-HyperRule, SGD for ResNets, masked patches.

Those of two later papers, AugReg and DeiT, are here by their names only.

A pre-training recipe is named MODEL@DATA, with the epochs where the table has several; a fine-tuning recipe by its
data, because table 4 has one row for all models.
"""

import math
from collections.abc import Iterator
from typing import Final

from vitlab.paper import augreg, deit, finetuning, pretraining, selfsupervision
from vitlab.paper.finetuning import FinetuningRow, TransferName
from vitlab.paper.length import OWN, Length
from vitlab.paper.models import canonical, model_spec
from vitlab.paper.pretraining import DATA, SGD_JFT, TABLE_3, UNPRINTED_ROWS, DataName, PretrainingRow
from vitlab.pixels import Augmentation
from vitlab.recipe import SGD, AdamW, Masking, Recipe, Schedule
from vitlab.spec import HeadKind, ResNetSpec, ViTSpec, image_size
from vitlab.strict_json import require

DATA_SLUGS: Final[dict[str, DataName]] = {"jft300m": "JFT-300M", "imagenet21k": "ImageNet-21k", "imagenet": "ImageNet"}
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
SGD_MARK: Final = "-sgd"
MASKED: Final = "ViT-B/16@jft300m-masked"  # the one run of masked patch prediction
TABLE_7: Final = ("R50x1@jft300m", "R152x2@jft300m")

# -- Pre-training: table 3 -----------------------------------------------------------------------


def pretraining_names() -> list[str]:
    """Every run of table 3, those that other tables report, the SGD runs of table 7, masked patches, then AugReg's and
    DeiT's."""
    by_sgd = (f"{name}{SGD_MARK}" for name in _rows() if _has_sgd(name))
    return [*_rows(), *by_sgd, MASKED, *augreg.names(), *deit.names()]


def pretraining_recipe(name: str, length: Length = OWN) -> Recipe:
    """The recipe of a run such as `ViT-B/16@imagenet21k`; raises for runs the paper does not have.

    What the `length` leaves open is the row's own: epochs, batch, warm-up and the paper's number of images.
    """
    if augreg.is_name(name):
        return augreg.recipe(name, length)
    if name in deit.names():
        return deit.recipe(name, length)
    if name == MASKED:
        return _masked_recipe(length)
    rows = _rows()
    plain = name.removesuffix(SGD_MARK)
    if plain not in rows or (plain != name and not _has_sgd(plain)):
        near = [known for known in pretraining_names() if known.startswith(name.partition("@")[0] + "@")]
        known = ", ".join(near or pretraining_names())
        levels = f"; after {augreg.MARK} a level may follow, as -strong1: {', '.join(augreg.LEVELS)}"
        raise ValueError(f"no pre-training is named {name!r}; known are {known}{levels if augreg.MARK in name else ''}")
    row, epochs, cited = rows[plain]
    data = DATA[row.data]
    total = length.steps(images=data.training_images, epochs=epochs, batch=pretraining.BATCH)
    if plain != name:
        return _sgd_recipe(name, row, total, length)
    return Recipe(
        name=name,
        source=f"{cited}: {', '.join(row.models)} on {row.data}, {epochs} epochs",
        batch=length.batch_or(pretraining.BATCH),
        image=image_size(pretraining.IMAGE),
        schedule=Schedule(
            peak=row.learning_rate,
            total=total,
            warmup=length.warmup_or(pretraining.WARMUP),
            decay=row.decay,
            end=pretraining.LINEAR_DECAY_END if row.decay == "linear" else 0.0,
        ),
        optimizer=_adam(row.weight_decay, data.clip_norm),
        loss="sigmoid",
        label_smoothing=data.label_smoothing,
        dropout=row.dropout,
    )


def pretraining_row_for(model: str, images: int) -> tuple[str, str]:
    """(recipe, why): the row of the model whose data is of the size nearest to yours, or that of ViT-B/16.

    ResNets have rows for JFT-300M only: one gets its own whatever the data, or that of the ResNet of the nearest size.
    A DeiT has one of its own paper.
    """
    known = canonical(model)
    if not isinstance(model_spec(known), ViTSpec):
        return _resnet_row_for(known)
    if known in deit.MODELS:
        return f"{known}@imagenet", "a DeiT is trained as its own paper says"
    by_size = min(DATA_SLUGS, key=lambda slug: abs(_digits(DATA[DATA_SLUGS[slug]].images) - _digits(images)))
    own = [name for name in _rows() if pretraining_model(name) == known]
    fitting = [name for name in own if name.partition("@")[2].split("-")[0] == by_size]
    data = DATA_SLUGS[by_size]
    if fitting:
        return fitting[0], f"table 3 has {known}, and of its data, {data} is nearest in size to your {images:,} images"
    why = (
        f"table 3 does not have {known} on {data}, nearest in size to your {images:,} images; ViT-B/16's row stands in"
    )
    return f"ViT-B/16@{by_size}", why


def _resnet_row_for(model: str) -> tuple[str, str]:
    why = "the paper pre-trains ResNets on JFT-300M only"
    if own := [name for name in _rows() if pretraining_model(name) == model]:
        return own[0], why
    printed = [name for row in TABLE_3 for name in row.models if isinstance(model_spec(name), ResNetSpec)]
    nearest = min(printed, key=lambda name: abs(_log_size(name) - _log_size(model)))
    why += f"; table 3 has no {model}, and of its ResNets {nearest} is nearest in size"
    return f"{nearest}@jft300m", why


def _log_size(model: str) -> float:
    """Logarithm of the weights in a ResNet's units: convolutions 1x1, 3x3, 1x1, and a shortcut in each first unit.

    In squares of a stage's inner width these are 4 + 9 + 4, and 2 + 9 + 4 + 8 in a first unit (1 + 9 + 4 + 4 at first).
    """
    spec = model_spec(model)
    assert not isinstance(spec, ViTSpec), "only ResNets are compared"
    stages = enumerate(spec.stages)
    return math.log(sum((spec.root * 2**n) ** 2 * (17 * (units - 1) + (23 if n else 18)) for n, units in stages))


def pretraining_head(name: str) -> HeadKind | None:
    """The head of a recipe's model; None is the model's own. AugReg's models have no hidden layer there."""
    return "linear" if augreg.is_name(name) else None


def pretraining_model(name: str) -> str:
    """The model of a pre-training recipe."""
    return name.partition("@")[0]


def pretraining_data(name: str) -> DataName:
    """The data of a pre-training recipe."""
    if name == MASKED:
        return selfsupervision.RECIPE.data
    if augreg.is_name(name):
        return augreg.data_of(name)
    if name in deit.names():
        return "ImageNet"
    return _rows()[name.removesuffix(SGD_MARK)][0].data


def _rows() -> dict[str, tuple[PretrainingRow, int, str]]:
    """(row, epochs, where it is printed) by recipe name."""
    return dict(_expanded(TABLE_3, "Table 3")) | dict(
        _expanded(UNPRINTED_ROWS, "tables 5 and 6, settings not printed", always_say_epochs=True)
    )


def _expanded(
    rows: tuple[PretrainingRow, ...], cited: str, *, always_say_epochs: bool = False
) -> Iterator[tuple[str, tuple[PretrainingRow, int, str]]]:
    slugs = {data: slug for slug, data in DATA_SLUGS.items()}
    for row in rows:
        for model in row.models:
            for epochs in row.epochs:
                mark = f"-{epochs}ep" if len(row.epochs) > 1 or always_say_epochs else ""
                yield f"{model}@{slugs[row.data]}{mark}", (row, epochs, cited)


def _digits(images: int) -> int:
    return len(str(images))


def _has_sgd(name: str) -> bool:
    """Table 7 compares SGD and Adam for ResNets pre-trained on JFT; every ResNet of table 3 can have both."""
    model, _, data = name.partition("@")
    return model.startswith("R") and "+" not in model and data.startswith("jft300m")


def _adam(weight_decay: float, clip: float | None) -> AdamW:
    return AdamW(weight_decay=weight_decay, betas=pretraining.ADAM_BETAS, epsilon=pretraining.ADAM_EPSILON, clip=clip)


def _sgd_recipe(name: str, row: PretrainingRow, total: int, length: Length) -> Recipe:
    batch = length.batch_or(pretraining.BATCH)
    return Recipe(
        name=name,
        source=f"Table 7 and appendix D.1: {pretraining_model(name)} on {row.data} with BiT's SGD"
        + ("" if name.removesuffix(SGD_MARK) in TABLE_7 else "; the table itself prints R50x1 and R152x2"),
        batch=batch,
        image=image_size(pretraining.IMAGE),
        schedule=Schedule(
            peak=SGD_JFT.learning_rate(batch),
            total=total,
            warmup=length.warmup_or(SGD_JFT.warmup),
            decay="staircase",
            end=0.0,
            boundaries=SGD_JFT.decay_steps(total),
        ),
        optimizer=SGD(momentum=SGD_JFT.momentum, weight_decay=SGD_JFT.weight_decay, clip=None),
        loss="sigmoid",
        label_smoothing=DATA[row.data].label_smoothing,
    )


def _masked_recipe(length: Length) -> Recipe:
    """Section 4.6 and appendix B.1.2; other data is seen as often as theirs, about 14 times."""
    row = selfsupervision.RECIPE
    total = row.steps if length.total is None else length.total
    if length.total is None and (length.images or length.epochs):
        theirs = DATA[row.data].training_images
        total = length.steps(images=theirs, epochs=round(row.steps * row.batch / theirs), batch=row.batch)
    return Recipe(
        name=MASKED,
        source=f"section 4.6, appendix B.1.2: {row.model} on {row.data}, masked patch prediction",
        batch=length.batch_or(row.batch),
        image=image_size(row.image),
        schedule=Schedule(
            peak=row.learning_rate,
            total=total,
            warmup=length.warmup_or(row.warmup),
            decay=row.decay,
            end=0.0,
        ),
        optimizer=_adam(row.weight_decay, clip=None),
        dropout=row.dropout,
        masking=Masking(row.target, row.corrupted, row.masked, row.swapped, row.kept),
    )


# -- Fine-tuning: table 4, table 2 and BiT-HyperRule -------------------------------------------------


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


def finetuning_row_for(images: int) -> tuple[str, str]:
    """(recipe, why): the row of table 4 for a set of about this size, split where BiT-HyperRule splits."""
    small, medium, _ = finetuning.HYPER_RULES
    if images < small.below:
        return "pets", f"{images:,} images are fewer than {small.below:,}, as in Pets and Flowers"
    if images < medium.below:
        return "cifar10", f"{images:,} images are between {small.below:,} and {medium.below:,}, as in CIFAR"
    return "imagenet", f"{images:,} images are {medium.below:,} or more, as in ImageNet"


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


# -- For a machine without an accelerator -------------------------------------------------------------

QUICK: Final = "quick"
QUICK_BATCH, QUICK_EPOCHS, QUICK_LEAST = 64, 10, 100  # images, epochs, steps


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
