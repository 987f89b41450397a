"""From what a user asks for to a complete run: which recipe, which model, which data, and why."""

from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Literal

from rich.console import Console

from vitlab.changes import with_fields
from vitlab.data.fingerprint import DataCard
from vitlab.data.images.sizes import typical_size
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
from vitlab.paper.recipes.length import Length
from vitlab.paper.recipes.pretraining import (
    MASKED,
    pretraining_head,
    pretraining_model,
    pretraining_recipe,
    pretraining_row_for,
)
from vitlab.recipe import CHOSEN, Execution, Recipe
from vitlab.require import require
from vitlab.run_dir import VERSION, RunSpec
from vitlab.runs.progress import say
from vitlab.runs.training.data import Opened
from vitlab.runs.training.initial_state import adapt
from vitlab.runs.training.unused_settings import unread_fields
from vitlab.spec import ModelSpec, ViTSpec, check_image
from vitlab.weights.load import StartWeights
from vitlab.world.device import default_workers, pick_device

OF_MODEL = "model."
ADJUSTABLE = {"dropout", "stochastic_depth"}  # fields of a model that loaded weights leave open
FEWEST_TO_SPLIT = 10  # images; fewer are all trained on, unless the user wants some held out
Objective = Literal["labels", "masked-patches"]


@dataclass(frozen=True)
class Request:
    """What a user may say about any run; what is empty is left to the recipe."""

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
        share = self.held_out
        if share is not None and (isinstance(share, bool) or not isinstance(share, Real)):
            raise InvalidValue(f"is {share!r}; expected a number from 0 to less than 1", field="held_out")
        if share is not None and not 0 <= share < 1:
            problem = f"{share} is not a share of the training images; give a number from 0 to less than 1"
            raise InvalidValue(f"{problem}, such as 0.1 for a tenth", field="held_out")


def pretraining_spec(
    name: str,
    card: DataCard,
    request: Request,
    execution: Execution,
    console: Console,
    objective: Objective = "labels",
    teacher: StartWeights | None = None,
) -> RunSpec:
    """A run with fresh weights: `ViT-B/16@imagenet21k`, or a model's name, which gets the nearest row.

    `card` describes the training data. Masked patches have one recipe, which fits any model with patches.
    """
    stated = stated_image(pretraining_model(name))
    if request.image is None and stated is not None:
        request = replace(request, image=(stated, stated))
    held_out = request.held_out or 0.0
    images = max(round(card.samples * (1 - held_out)), 1)
    row = name
    if objective == "masked-patches":
        require("@" not in name or name == MASKED, f"{name!r} learns labels; masked patches have one row, {MASKED}")
        row = MASKED
        say(console, f"recipe {row}: the paper's only row for masked patches, with your {images:,} images")
    elif "@" not in name:
        row, why = pretraining_row_for(name, images)
        say(console, f"recipe {row}: {why}")
    model_name = name if "@" not in name else pretraining_model(name)
    recipe = _changed(pretraining_recipe(row, _length(request, images)), request)
    _tell_peak(recipe, request, console)
    classes = _classes(card) if recipe.masking is None else 0
    model = model_spec(model_name, image=recipe.image, classes=classes, head=pretraining_head(row))
    model = _changed_model(_with_rates(model, recipe), request)
    if recipe.masking is not None:
        model = replace(check_maskable(model), head="linear")
    return _run_spec("pretrain", model, recipe, request, execution, held_out, teacher)


def finetuning_spec(
    start: StartWeights,
    recipe_name: str,
    opened: Opened,
    request: Request,
    execution: Execution,
    console: Console,
    teacher: StartWeights | None = None,
) -> RunSpec:
    """A run that starts from loaded weights; without a recipe's name one is chosen by the size of the data.

    `opened` is the training data. The loaded model is not changed here.
    """
    given, images = start.model.spec, opened.card.samples
    on_cpu = pick_device(execution.device).type == "cpu"
    row, why = finetuning_row_for(images)
    if not recipe_name:
        recipe_name = QUICK if on_cpu else row
        if on_cpu:
            why = f"the default without an accelerator; the paper's row for this data is --recipe {row}, because {why}"
        say(console, f"recipe {recipe_name}: {why}")
    held_out = request.held_out
    if held_out is None:
        held_out = 0.0 if request.validation or images < FEWEST_TO_SPLIT else development_share(recipe_name)
    length = _length(request, max(round(images * (1 - held_out)), 1))
    own = given.image if request.image is None else request.image
    if recipe_name == QUICK:
        recipe = quick_recipe(images, own, length)
    else:
        pictures = typical_size(opened.source) if recipe_name in BIT_SIZES else LARGE_PICTURES
        recipe = finetuning_recipe(recipe_name, length, pictures, name_of(given))
    recipe = _changed(_fitting(recipe, given.stride, request, console), request)
    _tell_peak(recipe, request, console)
    changed = {field.removeprefix(OF_MODEL) for field, _ in request.changes if field.startswith(OF_MODEL)}
    require(
        changed <= ADJUSTABLE,
        f"the weights decide {sorted(changed - ADJUSTABLE)}; only {sorted(ADJUSTABLE)} can be set",
    )
    shapes = empty_model(given)  # what adapting changes, and whether it can, needs no weights
    adapt(shapes, recipe.image, _classes(opened.card))
    model = _changed_model(_with_rates(shapes.spec, recipe), request)
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
    require(
        teacher is None or recipe.loss == "softmax" or is_two_headed,
        "with a teacher, the one head of this model would learn a sigmoid from the labels and a softmax from the "
        "teacher; give --loss softmax, or use a model with two heads, such as DeiT-S/16-distilled",
    )
    device = pick_device(execution.device)
    workers = default_workers(device) if execution.workers == CHOSEN else execution.workers
    run = RunSpec(
        format="vitlab-run",
        version=VERSION,
        kind=kind,
        model=model,
        recipe=recipe,
        data=request.data,
        execution=replace(execution, device=str(device), workers=workers),
        seed=request.seed,
        validation=request.validation,
        held_out=held_out,
        test=request.test,
        teacher="" if teacher is None else str(teacher.path),
        teacher_sha256="" if teacher is None else teacher.sha256,
    )
    for why in () if request.is_swept else unread_fields(run, dict(request.changes)).values():
        raise ValueError(why)
    return run


def _length(request: Request, images: int) -> Length:
    """What the user says about the length, with the number of images to train on."""
    return Length(
        images=images,
        epochs=request.epochs,
        batch=_whole(request, "batch"),
        total=_whole(request, "schedule.total"),
        warmup=_whole(request, "schedule.warmup"),
    )


def _whole(request: Request, field: str) -> int | None:
    """A number that the recipe's length depends on, where the user gave one."""
    value = dict(request.changes).get(field)
    if value is None:
        return None
    least = 0 if field == "schedule.warmup" else 1
    is_whole = str(value).isdecimal() and int(str(value)) >= least
    if not is_whole:
        raise InvalidValue(f"is {value!r}; expected a whole number, {least} or more", field=field)
    return int(str(value))


def _tell_peak(recipe: Recipe, request: Request, console: Console) -> None:
    """Say that the learning rate has followed the user's batch."""
    given = dict(request.changes)
    if "batch" in given and "schedule.peak" not in given and not request.is_swept:
        say(
            console,
            f"peak    {recipe.schedule.peak:g}, scaled to the batch of {recipe.batch:,}; --schedule.peak sets it",
        )


def _fitting(recipe: Recipe, patch: int, request: Request, console: Console) -> Recipe:
    """The user's resolution, or the recipe's as far as the model's patches divide it: 378 for 384 and patches of 14."""
    if request.image is not None:
        check_image(request.image, patch)
        return recipe
    height, width = (max(side // patch, 1) * patch for side in recipe.image)
    if (height, width) != recipe.image:
        say(console, f"image   {height}x{width}, because {recipe.image[0]} is no multiple of {patch}")
    return replace(recipe, image=(height, width))


def _changed(recipe: Recipe, request: Request) -> Recipe:
    if request.image is not None:
        recipe = replace(recipe, image=request.image)
    changes = [change for change in request.changes if not change[0].startswith(OF_MODEL)]
    for field, _ in changes:
        require(
            recipe.masking is not None or not field.startswith("masking."),
            f"--{field} is for learning without labels: vitlab pretrain; give --objective masked-patches",
        )
    said = ", ".join(f"{field} {text}" for field, text in changes)
    return with_fields(replace(recipe, source=f"{recipe.source}; with {said}") if said else recipe, changes)


def _with_rates(model: ModelSpec, recipe: Recipe) -> ModelSpec:
    """The model with a recipe's dropout and stochastic depth, which ResNets do not have."""
    if not isinstance(model, ViTSpec):
        return model
    return replace(model, dropout=recipe.dropout, stochastic_depth=recipe.stochastic_depth)


def _changed_model(model: ModelSpec, request: Request) -> ModelSpec:
    changes = [(field.removeprefix(OF_MODEL), text) for field, text in request.changes if field.startswith(OF_MODEL)]
    return with_fields(model, changes, OF_MODEL)


def _classes(card: DataCard) -> int:
    require(
        len(card.class_names) >= 2,
        f"{len(card.class_names)} class in the data; at least 2 are needed, or none with: vitlab pretrain MODEL "
        "--objective masked-patches",
    )
    return len(card.class_names)
