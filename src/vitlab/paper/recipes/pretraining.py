"""The paper's pre-trainings as recipes that can be run: table 3, SGD for ResNets, masked patches.

Those of two later papers, AugReg and DeiT, are here by their names only. A recipe is named MODEL@DATA, with the epochs
where the table has several.
"""

import difflib
from collections.abc import Iterator
from typing import Final

from vitlab.paper import pretraining, selfsupervision
from vitlab.paper.names import meant
from vitlab.paper.pretraining import DATA, SGD_JFT, TABLE_3, UNPRINTED_ROWS, DataName, PretrainingRow
from vitlab.paper.recipes import augreg, deit
from vitlab.paper.recipes.length import ADAM_POWER, OWN, Length
from vitlab.recipe import SGD, AdamW, Masking, Recipe, Schedule
from vitlab.spec import HeadKind, image_size

DATA_SLUGS: Final[dict[str, DataName]] = {"jft300m": "JFT-300M", "imagenet21k": "ImageNet-21k", "imagenet": "ImageNet"}
SGD_MARK: Final = "-sgd"
MASKED: Final = "ViT-B/16@jft300m-masked"  # the one run of masked patch prediction
TABLE_7: Final = ("R50x1@jft300m", "R152x2@jft300m")


def pretraining_names() -> list[str]:
    """Every run of table 3, those that other tables report, the SGD runs of table 7, masked patches, then AugReg's and
    DeiT's."""
    by_sgd = (f"{name}{SGD_MARK}" for name in rows_by_name() if _has_sgd(name))
    return [*rows_by_name(), *by_sgd, MASKED, *augreg.names(), *deit.names()]


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
    rows = rows_by_name()
    plain = name.removesuffix(SGD_MARK)
    if plain not in rows or (plain != name and not _has_sgd(plain)):
        raise ValueError(f"no pre-training is named {name!r:.80}; {_instead_of(name)}")
    row, epochs, cited = rows[plain]
    data = DATA[row.data]
    total = length.steps(images=data.training_images, epochs=epochs, batch=pretraining.BATCH)
    own_total = epochs * data.training_images // pretraining.BATCH
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
    """What a name that does not exist may have meant: the rows of its model, or those that are spelt alike."""
    model = pretraining_model(name)
    own = [known for known in pretraining_names() if known.startswith(f"{model}@")]
    levels = f"; after {augreg.MARK} a level may follow, as -strong1: {', '.join(augreg.LEVELS)}"
    if own:
        return f"known are {', '.join(own)}{levels if augreg.MARK in name else ''}"
    models = meant(model)
    rows = [known for known in pretraining_names() if pretraining_model(known) in models]
    stems = tuple(f"{found.partition('/')[0]}/" for found in models)
    size = rows or [known for known in pretraining_names() if known.startswith(stems)]
    near = difflib.get_close_matches(name, size or pretraining_names(), n=3, cutoff=0.5 if not rows else 0.0)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    alone = f"{models[0]} alone gets the row nearest to your data; " if "@" in name and models else ""
    return f"{hint}{alone}known are those of vitlab recipes, such as ViT-B/16@imagenet"


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
    return rows_by_name()[name.removesuffix(SGD_MARK)][0].data


def rows_by_name() -> dict[str, tuple[PretrainingRow, int, str]]:
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


def _has_sgd(name: str) -> bool:
    """Table 7 compares SGD and Adam for ResNets pre-trained on JFT; every ResNet of table 3 can have both."""
    model, _, data = name.partition("@")
    return model.startswith("R") and "+" not in model and data.startswith("jft300m")


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
            peak=length.peak_of(row.learning_rate, batch=row.batch, power=ADAM_POWER),
            total=total,
            warmup=length.warmup_of(row.warmup, total=total, own_total=row.steps),
            decay=row.decay,
            end=0.0,
        ),
        optimizer=_adam(row.weight_decay, clip=None),
        dropout=row.dropout,
        masking=Masking(row.target, row.corrupted, row.masked, row.swapped, row.kept),
    )
