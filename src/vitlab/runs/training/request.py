"""From a user's words to a run: which recipe, which model, which data, and why."""

import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console

from vitlab.changes import with_fields
from vitlab.counting import count_spec
from vitlab.data.fingerprint import DataCard
from vitlab.data.images.sizes import typical_size
from vitlab.data.sources.catalogue import open_source
from vitlab.models.build import empty_model
from vitlab.models.masked import check_maskable, empty_masked_model
from vitlab.paper.models import model_spec, name_of
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
from vitlab.recipe import Execution, Recipe
from vitlab.require import require
from vitlab.run_dir import VERSION, RunDir, RunSpec
from vitlab.runs.progress import duration, say
from vitlab.runs.training.account import tell_bad, tell_classes, write_quarantine
from vitlab.runs.training.data import Material, adapt
from vitlab.runs.training.distillation import open_teacher
from vitlab.runs.training.masked_patches import corruption_of
from vitlab.runs.training.time_estimate import learning_pace, reading_seconds
from vitlab.runs.training.unused_settings import unread_fields
from vitlab.runs.training.validation import check_pictures
from vitlab.spec import ModelSpec, ViTSpec, check_image
from vitlab.strict_json import to_json
from vitlab.train.optimizers import make_optimizer
from vitlab.train.update import BACKBONE, freeze, recompute_activations
from vitlab.weights.load import load_model, located, weights_sha256
from vitlab.world.device import pick_device

OF_MODEL = "model."
ADJUSTABLE = {"dropout", "stochastic_depth"}  # of a model whose weights are there already
DAY = 86_400  # seconds; a longer run on a CPU has to be wanted
TRAINING_COST = 3  # forward passes that a step costs: one forward, two back
Objective = Literal["labels", "masked-patches"]
TYPICAL_SHARE = 0.6  # of the speed of one large matrix product that a training step reaches


@dataclass(frozen=True)
class Asked:
    """What a user may say of any run; empty words leave the choice to the recipe."""

    data: str
    image: tuple[int, int] | None = None
    validation: str = ""
    held_out: float | None = None
    test: str = ""
    seed: int = 0
    changes: tuple[tuple[str, str], ...] = ()  # (dotted field, value) of the recipe, or of the model
    teacher: Path | None = None
    is_swept: bool = False  # one of several points, of which not each has to read every change

    def __post_init__(self) -> None:
        require(
            self.held_out is None or 0 <= self.held_out < 1,
            f"--held-out {self.held_out} is no share of the training images; give a number from 0 to less than 1, such "
            f"as 0.1 for a tenth",
        )


def pretraining_run(
    name: str,
    card: DataCard,
    asked: Asked,
    execution: Execution,
    epochs: int | None,
    console: Console,
    objective: Objective = "labels",
) -> RunSpec:
    """A run with fresh weights: `ViT-B/16@imagenet21k`, or a model's name, which gets the nearest row.

    `card` is of the data that is asked for. Masked patches have one recipe, which fits any model with patches.
    """
    held_out = asked.held_out or 0.0
    images = max(round(card.samples * (1 - held_out)), 1)
    row = name
    if objective == "masked-patches":
        require("@" not in name or name == MASKED, f"{name!r} learns labels; masked patches have the one row {MASKED}")
        row = MASKED
        say(console, f"recipe {row}: the paper's one for masked patches, with your {images:,} images")
    elif "@" not in name:
        row, why = pretraining_row_for(name, images)
        say(console, f"recipe {row}: {why}")
    model_name = name if "@" not in name else pretraining_model(name)
    recipe = _changed(pretraining_recipe(row, _length(asked, images, epochs)), asked)
    _tell_peak(recipe, asked, console)
    classes = _classes(card) if recipe.masking is None else 0
    model = model_spec(model_name, image=recipe.image, classes=classes, head=pretraining_head(row))
    model = _changed_model(_with_rates(model, recipe), asked)
    if recipe.masking is not None:
        model = replace(check_maskable(model), head="linear")
    return _run("pretrain", model, recipe, asked, execution, held_out)


def finetuning_run(
    start: Path,
    recipe_name: str,
    card: DataCard,
    asked: Asked,
    execution: Execution,
    console: Console,
    epochs: int | None = None,
) -> RunSpec:
    """A run that starts from weights of any format; without a recipe's name one is chosen by size, and it says why.

    `card` is of the data that is asked for.
    """
    start = located(start)
    loaded = load_model(start)
    images = card.samples
    on_cpu = pick_device(execution.device).type == "cpu"
    row, why = finetuning_row_for(images)
    if not recipe_name:
        recipe_name = QUICK if on_cpu else row
        if on_cpu:
            why = f"no accelerator is here; table 4's row would be --recipe {row}, because {why}"
        say(console, f"recipe {recipe_name}: {why}")
    held_out = development_share(recipe_name) if asked.held_out is None and not asked.validation else asked.held_out
    held_out = 0.0 if images < 10 and asked.held_out is None else held_out or 0.0
    length = _length(asked, max(round(images * (1 - held_out)), 1), epochs)
    own = loaded.spec.image if asked.image is None else asked.image
    if recipe_name == QUICK:
        recipe = quick_recipe(images, own, length)
    else:
        pictures = typical_size(open_source(asked.data)) if recipe_name in BIT_SIZES else LARGE_PICTURES
        recipe = finetuning_recipe(recipe_name, length, pictures, name_of(loaded.spec))
    recipe = _changed(_fitting(recipe, loaded.spec.stride, asked, console), asked)
    _tell_peak(recipe, asked, console)
    given = {field.removeprefix(OF_MODEL) for field, _ in asked.changes if field.startswith(OF_MODEL)}
    require(
        given <= ADJUSTABLE, f"the weights decide {sorted(given - ADJUSTABLE)}; only {sorted(ADJUSTABLE)} can be set"
    )
    adapt(loaded, recipe.image, _classes(card))
    model = _changed_model(_with_rates(loaded.spec, recipe), asked)
    run = _run("finetune", model, recipe, asked, execution, held_out)
    return replace(run, start=str(start.resolve()), start_sha256=weights_sha256(start))


def create(path: Path, spec: RunSpec, material: Material, console: Console, *, is_wanted: bool) -> RunDir:
    """Make the run's folder, having said what is going to happen and how long it may take."""
    recipe = spec.recipe
    validation = 0 if material.validation is None else len(material.validation)
    say(console, f"data    {len(material.train):,} images to train on, {validation:,} to validate, "
                 f"{len(material.card.class_names):,} classes")  # fmt: skip
    tell_classes(console, material)
    if spec.teacher:
        how = recipe.distillation
        open_teacher(spec, material.card, torch.device("cpu"))
        say(console, f"teacher {spec.teacher}, {how.kind} distillation of weight {how.share:g}")
    elif isinstance(spec.model, ViTSpec) and spec.model.distilled:
        say(console, "teacher none: both heads learn from the labels; --teacher MODEL gives the second one its own")
    height, width = recipe.image
    say(console, f"recipe  {recipe.name}: {recipe.source}")
    say(console, f"        {recipe.schedule.total:,} steps of {recipe.batch:,} images, {height}x{width} pixels, "
                 f"{recipe.optimizer.kind}, peak learning rate {recipe.schedule.peak:g}")  # fmt: skip
    device = pick_device(spec.execution.device)
    seconds = estimated_seconds(spec, device, material)
    sooner = "; less if the training loss settles before" if recipe.settle_window else ""
    say(console, f"time    about {duration(seconds)} on {device.type}, as busy as it is now{sooner}")
    require(
        seconds < DAY or device.type != "cpu" or is_wanted,
        f"the run would take about {duration(seconds)} on this CPU; say --yes if that is wanted, or take fewer steps "
        f"(--schedule.total), smaller pictures (--image) or a smaller model",
    )
    check_buildable(spec)
    judged = check_pictures(spec, material, console)
    run = RunDir.create(path, spec, to_json(material.card))
    for name, account in judged.items():
        tell_bad(console, run, account, write_quarantine(run, account, name), name)
    say(console, f"run     {path}; if it is stopped: vitlab resume {path}\n")
    return run


def check_buildable(spec: RunSpec) -> None:
    """Raise what the first step would, before there is a folder: unknown frozen parts, no blocks to recompute."""
    if spec.recipe.masking is not None:
        corruption_of(spec)
        model = empty_masked_model(spec.model, spec.recipe.masking.outputs(spec.model.stride))
    else:
        model = empty_model(spec.model)
    freeze(model, spec.recipe.frozen)
    make_optimizer(model, spec.recipe.optimizer, layer_decay=spec.recipe.layer_decay)
    if spec.execution.recompute:
        recompute_activations(model)


def estimated_seconds(spec: RunSpec, device: torch.device, material: Material) -> float:
    """The time of a run here: of its steps and its validations, tried or by the speed of a matrix product, and of
    reading its images.

    Workers read while the model learns.
    """
    side = 1024
    a = torch.ones(side, side, device=device)
    (a @ a).sum().item()
    began = time.perf_counter()
    (a @ a @ a @ a).sum().item()
    passed = max(time.perf_counter() - began, 1e-9)
    speed = TYPICAL_SHARE * 3 * side**3 / passed  # multiply-accumulates a second
    learnt = spec.recipe.schedule.total * spec.recipe.batch
    judged = images_judged(spec, material)
    taught = count_spec(load_model(spec.teacher).spec).macs if spec.teacher else 0
    cost = 1 if BACKBONE in spec.recipe.frozen else TRAINING_COST
    pace = learning_pace(spec, device, count_spec(spec.model).macs * cost / speed)
    working = (pace.image + taught / speed) * learnt + pace.step * spec.recipe.schedule.total
    working += pace.image / cost * judged
    reading = reading_seconds(spec, material.train) * (learnt + judged)
    return max(working, reading / spec.execution.workers) if spec.execution.workers else working + reading


def images_judged(spec: RunSpec, material: Material) -> int:
    """Images that are only evaluated: those of every validation, and those of the test."""
    total, every = spec.recipe.schedule.total, spec.recipe.validate_every
    validations = (total - 1) // every + 1 if every else 1
    return validations * len(material.validation or ()) + len(material.test or ())


def free_folder(base: Path, *names: str) -> Path:
    """A folder for a new run that does not exist yet, named after model and data."""
    plain = re.sub(r"[^\w.]+", "-", "-".join(names)).strip("-.") or "run"
    tries = (base / f"{plain}-{n}" for n in range(1, 100_000))
    return next(path for path in tries if not path.exists())


def _run(kind: str, model: ModelSpec, recipe: Recipe, asked: Asked, execution: Execution, held_out: float) -> RunSpec:
    teacher = None if asked.teacher is None else located(asked.teacher)
    is_two_headed = isinstance(model, ViTSpec) and model.distilled
    require(
        asked.teacher is None or recipe.loss == "softmax" or is_two_headed,
        "with a teacher the one head of this model would learn a sigmoid from the labels and a softmax from the "
        "teacher; give --loss softmax, or take a model with two heads, such as DeiT-S/16-distilled",
    )
    run = RunSpec(
        format="vitlab-run",
        version=VERSION,
        kind="pretrain" if kind == "pretrain" else "finetune",
        model=model,
        recipe=recipe,
        data=asked.data,
        execution=replace(execution, device=str(pick_device(execution.device))),
        seed=asked.seed,
        validation=asked.validation,
        held_out=held_out,
        test=asked.test,
        teacher="" if teacher is None else str(teacher.resolve()),
        teacher_sha256="" if teacher is None else weights_sha256(teacher),
    )
    for why in () if asked.is_swept else unread_fields(run, dict(asked.changes)).values():
        raise ValueError(why)
    return run


def _length(asked: Asked, images: int, epochs: int | None) -> Length:
    """What the user says of the length, with the number of images to train on."""
    return Length(
        images=images,
        epochs=epochs,
        batch=_whole(asked, "batch"),
        total=_whole(asked, "schedule.total"),
        warmup=_whole(asked, "schedule.warmup"),
    )


def _whole(asked: Asked, field: str) -> int | None:
    """A number that the recipe's length depends on, where the user gave one."""
    text = dict(asked.changes).get(field)
    least = 0 if field == "schedule.warmup" else 1
    require(
        text is None or (text.isdecimal() and int(text) >= least),
        f"--{field} {text!r} must be a whole number, {least} or more",
    )
    return None if text is None else int(text)


def _tell_peak(recipe: Recipe, asked: Asked, console: Console) -> None:
    """Say that the learning rate has followed the user's batch."""
    given = dict(asked.changes)
    if "batch" in given and "schedule.peak" not in given and not asked.is_swept:
        say(
            console,
            f"peak    {recipe.schedule.peak:g}, scaled to the batch of {recipe.batch:,}; --schedule.peak sets it",
        )


def _fitting(recipe: Recipe, patch: int, asked: Asked, console: Console) -> Recipe:
    """The user's resolution, or the recipe's as far as the model's patches divide it: 378 for 384 and patches of 14."""
    if asked.image is not None:
        check_image(asked.image, patch)
        return recipe
    height, width = (max(side // patch, 1) * patch for side in recipe.image)
    if (height, width) != recipe.image:
        say(console, f"image   {height}x{width}, because {recipe.image[0]} is no multiple of {patch}")
    return replace(recipe, image=(height, width))


def _changed(recipe: Recipe, asked: Asked) -> Recipe:
    if asked.image is not None:
        recipe = replace(recipe, image=asked.image)
    changes = [change for change in asked.changes if not change[0].startswith(OF_MODEL)]
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


def _changed_model(model: ModelSpec, asked: Asked) -> ModelSpec:
    changes = [(field.removeprefix(OF_MODEL), text) for field, text in asked.changes if field.startswith(OF_MODEL)]
    return with_fields(model, changes, OF_MODEL)


def _classes(card: DataCard) -> int:
    require(
        len(card.class_names) >= 2,
        f"{len(card.class_names)} class in the data; at least 2 are needed, or none with: vitlab pretrain MODEL "
        "--objective masked-patches",
    )
    return len(card.class_names)
