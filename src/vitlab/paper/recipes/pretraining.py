"""Recipes of pre-training: table 3, SGD for ResNets, masked patches; those of AugReg and DeiT by name.

A recipe is named MODEL@DATA, followed by the epochs where the table has several.
"""

import difflib
import math
from collections.abc import Iterator
from typing import Final

from vitlab.errors import did_you_mean
from vitlab.paper import pretraining
from vitlab.paper.models import model_spec
from vitlab.paper.names import SWIN, canonical, meant
from vitlab.paper.pretraining import DATA, MASKED_PATCHES, SGD_JFT, TABLE_3, UNPRINTED_ROWS, DataName, PretrainingRow
from vitlab.paper.recipes import augreg, deit
from vitlab.paper.recipes.length import ADAM_POWER, OWN, Length
from vitlab.spec import AxialResNetSpec, HeadKind, ResNetSpec, ViTSpec, image_size
from vitlab.spec.recipe import SGD, AdamW, Recipe, Schedule

SGD_MARK: Final = "-sgd"
JFT: Final = DATA["JFT-300M"].slug
MASKED: Final = f"ViT-B/16@{JFT}-masked"  # the only run of masked patch prediction
TABLE_7: Final = (f"R50x1@{JFT}", f"R152x2@{JFT}")


def pretraining_names() -> list[str]:
    """List the runs of table 3, the runs in other tables, SGD as in table 7, masked patches, AugReg's and DeiT's."""
    by_sgd = (f"{name}{SGD_MARK}" for name in rows_by_name() if _has_sgd(name))
    return [*rows_by_name(), *by_sgd, MASKED, *augreg.names(), *deit.names()]


def pretraining_recipe(name: str, length: Length = OWN) -> Recipe:
    """Return the recipe of a run such as `ViT-B/16@imagenet21k`; a ValueError for runs that do not exist.

    What `length` leaves open comes from the row: epochs, batch, warm-up and the number of images.
    """
    if augreg.is_name(name):
        return augreg.recipe(name, length)
    if name in deit.names():
        return deit.recipe(name, length)
    if name == MASKED:
        return _masked_recipe(length)
    rows = rows_by_name()
    plain = name.removesuffix(SGD_MARK)
    if plain not in rows or (plain != name and not _has_sgd(plain)):
        raise ValueError(f"no recipe of pre-training is named {name!r:.80}; {_instead_of(name)}")
    row, epochs, cited = rows[plain]
    data = DATA[row.data]
    total = length.steps(images=data.training_images, epochs=epochs, batch=pretraining.BATCH)
    own_total = pretraining.training_steps(row.data, epochs)
    if plain != name:
        return _sgd_recipe(name, row, total, own_total, length)
    peak = length.peak_of(row.learning_rate, batch=pretraining.BATCH, power=ADAM_POWER)
    return Recipe(
        name=name,
        source=f"{cited}: {', '.join(row.models)} on {row.data}, {epochs} epochs",
        batch=length.batch_or(pretraining.BATCH),
        image=image_size(pretraining.IMAGE),
        schedule=Schedule(
            peak=peak,
            total=total,
            warmup=length.warmup_of(pretraining.WARMUP, total=total, own_total=own_total),
            decay=row.decay,
            end=min(pretraining.LINEAR_DECAY_END, peak) if row.decay == "linear" else 0.0,
        ),
        optimizer=_adam(row.weight_decay, data.clip_norm),
        loss="sigmoid",
        label_smoothing=data.label_smoothing,
        dropout=row.dropout,
    )


def _instead_of(name: str) -> str:
    """Return advice for an unknown name: the rows of its model, or names that are spelt alike."""
    model = pretraining_model(name)
    own = [known for known in pretraining_names() if known.startswith(f"{model}@")]
    levels = f"; after {augreg.MARK} a level may follow, such as -strong1: {', '.join(augreg.LEVELS)}"
    if own:
        return f"known are {', '.join(own)}{levels if augreg.MARK in name else ''}"
    models = meant(model)
    rows = [known for known in pretraining_names() if pretraining_model(known) in models]
    stems = tuple(f"{found.partition('/')[0]}/" for found in models)
    size = rows or [known for known in pretraining_names() if known.startswith(stems)]
    near = difflib.get_close_matches(name, size or pretraining_names(), n=3, cutoff=0.5 if not rows else 0.0)
    alone = f"{models[0]} alone gets the row nearest to your data; " if "@" in name and models else ""
    return f"{did_you_mean(near)}{alone}known are those of vitlab recipes, such as ViT-B/16@imagenet"


def pretraining_head(name: str) -> HeadKind | None:
    """Return the head of a recipe's model: linear in AugReg; None is the default of the model."""
    return "linear" if augreg.is_name(name) else None


def pretraining_model(name: str) -> str:
    """Return the name of a recipe's model."""
    return name.partition("@")[0]


def pretraining_data(name: str) -> DataName:
    """Return the data set of a recipe."""
    if name == MASKED:
        return MASKED_PATCHES.data
    if augreg.is_name(name):
        return augreg.data_of(name)
    if name in deit.names():
        return "ImageNet"
    return rows_by_name()[name.removesuffix(SGD_MARK)][0].data


def pretraining_row_for(model: str, images: int) -> tuple[str, str]:
    """Return (recipe, reason): the model's row with data nearest in size to yours, or the row of ViT-B/16.

    ResNets have rows for JFT-300M only: the model's own for any data, or that of the ResNet nearest in size. A DeiT
    gets the recipe of its own paper. A Swin gets that of the DeiT nearest in size, which its authors changed little.
    """
    known = canonical(model)
    if SWIN.fullmatch(known):
        like = "DeiT-S/16" if known == "Swin-T" else "DeiT-B/16"
        return f"{like}@{DATA['ImageNet'].slug}", f"a Swin is trained much as a DeiT is; {like} is nearest in size"
    if not isinstance(model_spec(known), ViTSpec):
        return _resnet_row_for(known)
    if known in deit.MODELS:
        return f"{known}@{DATA['ImageNet'].slug}", "a DeiT is trained as in its own paper"
    data = min(DATA, key=lambda data: abs(len(str(DATA[data].images)) - len(str(images))))
    own = {name: row for name, (row, _, _) in rows_by_name().items() if pretraining_model(name) == known}
    fitting = [name for name, row in own.items() if row.data == data]
    if fitting:
        return fitting[0], f"table 3 has {known}, and of its data, {data} is nearest in size to your {images:,} images"
    why = f"table 3 does not have {known} on {data}, nearest in size to your {images:,} images; ViT-B/16's row is used"
    return f"ViT-B/16@{DATA[data].slug}", why


def _resnet_row_for(model: str) -> tuple[str, str]:
    why = "the paper pre-trains ResNets on JFT-300M only"
    if own := [name for name in rows_by_name() if pretraining_model(name) == model]:
        return own[0], why
    printed = [name for row in TABLE_3 for name in row.models if isinstance(model_spec(name), ResNetSpec)]
    nearest = min(printed, key=lambda name: abs(_log_size(name) - _log_size(model)))
    why += f"; table 3 has no {model}, and of its ResNets {nearest} is nearest in size"
    return f"{nearest}@{DATA['JFT-300M'].slug}", why


def _log_size(model: str) -> float:
    """Return the logarithm of the weights in a ResNet's units: 1x1, 3x3 and 1x1 convolutions, and shortcuts.

    In squares of a stage's inner width a unit has 4 + 9 + 4, the first of a stage 2 + 9 + 4 + 8 (1 + 9 + 4 + 4 in the
    first stage).
    """
    spec = model_spec(model)
    assert isinstance(spec, ResNetSpec | AxialResNetSpec), "only ResNets are compared"
    stages = enumerate(spec.stages)
    return math.log(sum((spec.root * 2**n) ** 2 * (17 * (units - 1) + (23 if n else 18)) for n, units in stages))


def rows_by_name() -> dict[str, tuple[PretrainingRow, int, str]]:
    """Return (row, epochs, source) by the name of the recipe."""
    return dict(_expanded(TABLE_3, "Table 3")) | dict(
        _expanded(UNPRINTED_ROWS, "tables 5 and 6, settings not printed", always_say_epochs=True)
    )


def _expanded(
    rows: tuple[PretrainingRow, ...], cited: str, *, always_say_epochs: bool = False
) -> Iterator[tuple[str, tuple[PretrainingRow, int, str]]]:
    for row in rows:
        for model in row.models:
            for epochs in row.epochs:
                mark = f"-{epochs}ep" if len(row.epochs) > 1 or always_say_epochs else ""
                yield f"{model}@{DATA[row.data].slug}{mark}", (row, epochs, cited)


def _has_sgd(name: str) -> bool:
    """Whether a run also has a recipe with SGD: table 7 compares SGD and Adam for ResNets pre-trained on JFT."""
    model, _, data = name.partition("@")
    return model.startswith("R") and "+" not in model and data.startswith(JFT)


def _adam(weight_decay: float, clip: float | None) -> AdamW:
    return AdamW(weight_decay=weight_decay, betas=pretraining.ADAM_BETAS, epsilon=pretraining.ADAM_EPSILON, clip=clip)


def _sgd_recipe(name: str, row: PretrainingRow, total: int, own_total: int, length: Length) -> Recipe:
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
            warmup=length.warmup_of(SGD_JFT.warmup, total=total, own_total=own_total),
            decay="staircase",
            end=0.0,
            boundaries=SGD_JFT.decay_steps(total),
        ),
        optimizer=SGD(momentum=SGD_JFT.momentum, weight_decay=SGD_JFT.weight_decay, clip=None),
        loss="sigmoid",
        label_smoothing=DATA[row.data].label_smoothing,
    )


def _masked_recipe(length: Length) -> Recipe:
    """Section 4.6 and appendix B.1.2; your images are seen as often as those of the paper, about 14 times."""
    row, own_batch, own_total = MASKED_PATCHES, pretraining.BATCH, pretraining.MASKED_STEPS
    total = own_total if length.total is None else length.total
    if length.total is None and (length.images or length.epochs):
        theirs = DATA[row.data].training_images
        total = length.steps(images=theirs, epochs=round(own_total * own_batch / theirs), batch=own_batch)
    return Recipe(
        name=MASKED,
        source=f"section 4.6, appendix B.1.2: {row.models[0]} on {row.data}, masked patch prediction",
        batch=length.batch_or(own_batch),
        image=image_size(pretraining.IMAGE),
        schedule=Schedule(
            peak=length.peak_of(row.learning_rate, batch=own_batch, power=ADAM_POWER),
            total=total,
            warmup=length.warmup_of(pretraining.WARMUP, total=total, own_total=own_total),
            decay=row.decay,
            end=0.0,
        ),
        optimizer=_adam(row.weight_decay, clip=None),
        dropout=row.dropout,
        masking=pretraining.MASKING,
    )
