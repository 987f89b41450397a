"""From what a user asks for to a complete run: recipe, model and data, with the reasons for what was chosen."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from rich.console import Console

from vitlab.data.fingerprint import DataCard
from vitlab.data.survey import typical_size
from vitlab.errors import InvalidValue
from vitlab.models.build import empty_model
from vitlab.models.masked import check_maskable
from vitlab.paper.models import model_spec, name_of
from vitlab.paper.names import stated_image
from vitlab.paper.recipes.finetuning import (
    BIT_SIZES,
    LARGE_PICTURES,
    QUICK,
    development_share,
    finetuning_recipe,
    finetuning_row_for,
    quick_recipe,
)
from vitlab.paper.recipes.length import OWN, Length
from vitlab.paper.recipes.pretraining import (
    MASKED,
    pretraining_head,
    pretraining_model,
    pretraining_recipe,
    pretraining_row_for,
)
from vitlab.require import require
from vitlab.run_dir import VERSION, RunSpec
from vitlab.runs.progress import say
from vitlab.runs.training.data import TrainingData
from vitlab.runs.training.state import adapt
from vitlab.spec import ModelSpec, SwinSpec, ViTSpec, check_image, check_same_weights
from vitlab.spec.changes import with_fields
from vitlab.spec.patterns import parse_pattern
from vitlab.spec.recipe import CHOSEN, Execution, Recipe
from vitlab.train.streams import resolved, unfit
from vitlab.weights.load import StartWeights
from vitlab.world.device import check_precision, default_workers, pick_device

OF_MODEL = "model."
ADJUSTABLE = {"dropout", "stochastic_depth", "merge", "attention", "window"}  # fields that loaded weights leave open
FEWEST_TO_SPLIT = 10  # images; smaller sets are trained on as a whole unless the user holds some out
RANDAUGMENT, ERASING, DISTILLATION = "augmentation.randaugment.", "augmentation.erasing.", "distillation."
Objective = Literal["labels", "masked-patches"]


@dataclass(frozen=True)
class Request:
    """What a user may say about any run; the recipe decides what is left empty."""

    data: str
    image: tuple[int, int] | None = None
    validation: str = ""
    held_out: float | None = None
    test: str = ""
    seed: int = 0
    changes: tuple[tuple[str, object], ...] = ()  # (dotted field, value) of the recipe, or of the model
    teacher: str | Path | None = None
    epochs: int | None = None
    is_swept: bool = False  # one of several runs, not all of which must use every change

    def __post_init__(self) -> None:
        if self.held_out is not None and not 0 <= self.held_out < 1:
            expected = "a share of the training images from 0 to less than 1, such as 0.1"
            raise InvalidValue(f"is {self.held_out!r}; expected {expected}", field="held_out")

    @property
    def recipe_changes(self) -> dict[str, object]:
        """The changed fields of the recipe."""
        return {field: value for field, value in self.changes if not field.startswith(OF_MODEL)}

    @property
    def model_changes(self) -> dict[str, object]:
        """The changed fields of the model, by their names there."""
        return {field.removeprefix(OF_MODEL): value for field, value in self.changes if field.startswith(OF_MODEL)}

    @property
    def attention(self) -> str | None:
        """The string form of another pattern of attention, if one is asked for."""
        wanted = self.model_changes.get("attention")
        return None if wanted is None else str(parse_pattern(cast(str, wanted)))


def pretraining_spec(
    name: str,
    card: DataCard,
    request: Request,
    execution: Execution,
    console: Console,
    objective: Objective = "labels",
    teacher: StartWeights | None = None,
) -> RunSpec:
    """A run from fresh weights: `ViT-B/16@imagenet21k`, or a model's name, which gets the nearest row.

    `card` describes the training data. Masked patches have one recipe, which fits any model with patches.
    """
    stated = stated_image(pretraining_model(name))
    if request.image is None and stated is not None:
        request = replace(request, image=(stated, stated))
    held_out = request.held_out or 0.0
    images = max(round(card.samples * (1 - held_out)), 1)
    row = name
    if objective == "masked-patches":
        require("@" not in name or name == MASKED, f"{name!r} learns labels; masked patches have one recipe, {MASKED}")
        row = MASKED
        say(console, f"chosen  recipe {row}: the paper's only one for masked patches, with your {images:,} images")
    elif "@" not in name:
        row, why = pretraining_row_for(name, images)
        say(console, f"chosen  recipe {row}: {why}")
    model_name = name if "@" not in name else pretraining_model(name)
    recipe = _changed(pretraining_recipe(row, _length(request, images)), request)
    _tell_peak(recipe, pretraining_recipe(row), request, console)
    classes = _classes(card) if recipe.masking is None else 0
    head, attention = pretraining_head(row), request.attention
    model = model_spec(model_name, image=recipe.image, classes=classes, head=head, attention=attention)
    model = with_fields(_with_rates(model, recipe), request.model_changes.items(), OF_MODEL)
    if recipe.masking is not None:
        model = replace(check_maskable(model), head="linear")
    return _run_spec("pretrain", model, recipe, request, execution, held_out, teacher)


def finetuning_spec(
    start: StartWeights,
    recipe_name: str,
    opened: TrainingData,
    request: Request,
    execution: Execution,
    console: Console,
    teacher: StartWeights | None = None,
) -> RunSpec:
    """A run from loaded weights, which are not changed here; an empty recipe name is chosen from the size of the data.

    `opened` is the training data.
    """
    given, images = start.model.spec, opened.card.samples
    if not recipe_name:
        recipe_name, why = finetuning_row_for(images)
        if pick_device(execution.device).type == "cpu":
            papers = f"the paper's recipe for this data is recipe='{recipe_name}', because {why}"
            recipe_name, why = QUICK, f"the default without an accelerator; {papers}"
        say(console, f"chosen  recipe {recipe_name}: {why}")
    held_out = request.held_out
    if held_out is None:
        held_out = 0.0 if request.validation or images < FEWEST_TO_SPLIT else development_share(recipe_name)
    length = _length(request, max(round(images * (1 - held_out)), 1))
    if recipe_name == QUICK:
        image = given.image if request.image is None else request.image
        recipe, unchanged = quick_recipe(images, image, length), quick_recipe(images, image)
    else:
        pictures = typical_size(opened.source) if recipe_name in BIT_SIZES else LARGE_PICTURES
        recipe, unchanged = (finetuning_recipe(recipe_name, one, pictures, name_of(given)) for one in (length, OWN))
    recipe = _changed(_fitting(recipe, given.stride, request, console), request)
    _tell_peak(recipe, unchanged, request, console)
    fixed = sorted(set(request.model_changes) - ADJUSTABLE)
    require(not fixed, f"the weights decide {', '.join(fixed)}; only {', '.join(sorted(ADJUSTABLE))} can be set")
    if isinstance(given, ViTSpec) and request.attention is not None:
        check_same_weights(given, request.attention)
    shapes = empty_model(given)  # enough to see whether the model can be adapted, and to what
    adapt(shapes, recipe.image, _classes(opened.card))
    model = with_fields(_with_rates(shapes.spec, recipe), request.model_changes.items(), OF_MODEL)
    run = _run_spec("finetune", model, recipe, request, execution, held_out, teacher)
    return replace(run, start=str(start.path), start_sha256=start.sha256)


def _run_spec(
    kind: Literal["pretrain", "finetune"],
    model: ModelSpec,
    recipe: Recipe,
    request: Request,
    execution: Execution,
    held_out: float,
    teacher: StartWeights | None,
) -> RunSpec:
    is_two_headed = isinstance(model, ViTSpec) and model.distilled
    is_consistent = teacher is None or recipe.loss == "softmax" or is_two_headed
    remedy = "give loss='softmax', or use a model with two heads, such as DeiT-S/16-distilled"
    require(is_consistent, f"one head cannot learn a sigmoid from labels and a softmax from a teacher; {remedy}")
    device = pick_device(execution.device)
    check_precision(execution.precision, device)
    workers = default_workers(device) if execution.workers == CHOSEN else execution.workers
    placed = replace(execution, device=str(device), workers=workers)
    if request.is_swept and unfit(model, placed):
        placed = replace(placed, streams=0)
    run = RunSpec(
        format="vitlab-run",
        version=VERSION,
        kind=kind,
        model=model,
        recipe=recipe,
        data=request.data,
        execution=replace(placed, streams=resolved(model, recipe, placed)),
        seed=request.seed,
        validation=request.validation,
        held_out=held_out,
        test=request.test,
        teacher="" if teacher is None else str(teacher.path),
        teacher_sha256="" if teacher is None else teacher.sha256,
    )
    if not request.is_swept and (unused := unused_settings(run, dict(request.changes))):
        raise next(iter(unused.values()))
    return run


def _length(request: Request, images: int) -> Length:
    """What the user says about the length, with the number of images to train on."""
    batch, total = _whole(request, "batch", 1), _whole(request, "schedule.total", 1)
    return Length(images, request.epochs, batch, total, warmup=_whole(request, "schedule.warmup", 0))


def _whole(request: Request, field: str, least: int) -> int | None:
    """A number that the recipe's length depends on, if the user gave one."""
    value = request.recipe_changes.get(field)
    if value is None:
        return None
    if not str(value).isdecimal() or int(str(value)) < least:
        raise InvalidValue(f"is {value!r}; expected a whole number, {least} or more", field=field)
    return int(str(value))


def _tell_peak(recipe: Recipe, unchanged: Recipe, request: Request, console: Console) -> None:
    """Print how the learning rate has followed the user's batch."""
    peak, before, given = recipe.schedule.peak, unchanged.schedule.peak, request.recipe_changes
    if "batch" in given and "schedule.peak" not in given and peak != before and not request.is_swept:
        to = f"from {before:g} at {unchanged.batch:,} images to the batch of {recipe.batch:,}"
        say(console, f"peak    {peak:g}, scaled {to}; schedule.peak= sets it")


def _fitting(recipe: Recipe, patch: int, request: Request, console: Console) -> Recipe:
    """The user's resolution, or the recipe's as far as the model's patches divide it: 378 for 384 and patches of 14."""
    if request.image is not None:
        check_image(request.image, patch)
        return recipe
    height, width = (max(side // patch, 1) * patch for side in recipe.image)
    if (height, width) != recipe.image:
        say(console, f"image   {height}x{width}, because {recipe.image[0]} is not a multiple of {patch}")
    return replace(recipe, image=(height, width))


def _changed(recipe: Recipe, request: Request) -> Recipe:
    if request.image is not None:
        recipe = replace(recipe, image=request.image)
    changes = request.recipe_changes
    for field in changes:
        is_read = recipe.masking is not None or not field.startswith("masking.")
        require(is_read, f"{field}= is for learning without labels: vitlab pretrain; give objective='masked-patches'")
    said = ", ".join(f"{field} {text}" for field, text in changes.items())
    return with_fields(replace(recipe, source=f"{recipe.source}; with {said}") if said else recipe, changes.items())


def _with_rates(model: ModelSpec, recipe: Recipe) -> ModelSpec:
    """The model with a recipe's dropout and stochastic depth; ResNets have neither, Swins no dropout."""
    if isinstance(model, SwinSpec):
        return replace(model, stochastic_depth=recipe.stochastic_depth)
    if not isinstance(model, ViTSpec):
        return model
    return replace(model, dropout=recipe.dropout, stochastic_depth=recipe.stochastic_depth)


def _classes(card: DataCard) -> int:
    number = len(card.class_names)
    require(
        number >= 2,
        f"the data has {number} class{'es' * (number != 1)}; at least 2 are needed. To learn without labels: vitlab "
        "pretrain MODEL --objective masked-patches",
    )
    return number


# -- Settings without effect ---------------------------------------------------------------------


def unused_settings(run: RunSpec, fields: Iterable[str]) -> dict[str, InvalidValue]:
    """Of the fields that the user set, an error for each that has no effect in the run; recipes may set such fields."""
    reasons = {field: _without_effect(run, field) for field in fields}
    return {
        field: InvalidValue(f"has no effect in this run: {why}", field=field) for field, why in reasons.items() if why
    }


def _without_effect(run: RunSpec, field: str) -> str:
    """Why a field has no effect; empty for one that has."""
    recipe, how = run.recipe, run.recipe.augmentation
    if field.startswith(DISTILLATION) and not run.teacher:
        return "distillation needs a teacher; give teacher=MODEL (pretrain, finetune and sweep have it)"
    if field == f"{DISTILLATION}temperature" and recipe.distillation.kind == "hard":
        return f"the teacher's top class is the same at any temperature; give {DISTILLATION}kind='soft'"
    if field.startswith(RANDAUGMENT) and field != f"{RANDAUGMENT}layers" and not how.randaugment.layers:
        return f"RandAugment is off; give {RANDAUGMENT}layers='2'"
    if field.startswith(ERASING) and field != f"{ERASING}probability" and not how.erasing.probability:
        return f"random erasing is off; give {ERASING}probability='0.25'"
    if field == "partners" and not recipe.mixes:
        return "no images are mixed; give mixup= or cutmix="
    if field == "schedule.end" and recipe.schedule.decay not in ("linear", "cosine"):
        return f"a {recipe.schedule.decay} decay has no such end; give schedule.decay='linear' or 'cosine'"
    if field in ("dropout", "stochastic_depth") and getattr(recipe, field) and not hasattr(run.model, field):
        kind = "Swin" if isinstance(run.model, SwinSpec) else "ResNet"
        return f"a {kind} has no {field.replace('_', ' ')}; leave it out"
    return ""
