"""How long a run may take: measured on a few of its images, or estimated where measuring would take long."""

import contextlib
import time
from dataclasses import dataclass, replace

import torch

from vitlab.counting import count_spec
from vitlab.data.loading.batches import order_of, training_batches
from vitlab.data.source import Source
from vitlab.models.build import build_from_spec
from vitlab.run_dir import RunSpec
from vitlab.runs.training.data import RunData
from vitlab.spec import ModelSpec, ViTSpec
from vitlab.train.optimizers import clip_gradients, make_optimizer
from vitlab.train.update import BACKBONE, freeze

BUDGET = 0.5  # seconds of each trial, about
LARGEST = 30_000_000  # parameters of a model that is built for it
LAYERS = 2  # of a larger Transformer that are built instead; all its layers are alike
LEARNT, READ = 64, 32  # images, at most
TRAINING_COST = 3  # forward passes that a step costs: one forward, two back
TYPICAL_SHARE = 0.6  # of the speed of one large matrix product that a training step reaches
DAY = 86_400  # seconds; a longer run on a CPU must be confirmed


def estimated_seconds(spec: RunSpec, device: torch.device, data: RunData, teacher: ModelSpec | None = None) -> float:
    """The time of a run here: of its steps and validations, measured or from the speed of a matrix product, and of
    reading its images. Workers read while the model computes.
    """
    side = 1024
    a = torch.ones(side, side, device=device)
    (a @ a).sum().item()
    began = time.perf_counter()
    (a @ a @ a @ a).sum().item()
    passed = max(time.perf_counter() - began, 1e-9)
    speed = TYPICAL_SHARE * 3 * side**3 / passed  # multiply-accumulates a second
    learnt = spec.recipe.schedule.total * spec.recipe.batch
    judged = images_judged(spec, data)
    taught = 0 if teacher is None else count_spec(teacher).macs
    cost = 1 if BACKBONE in spec.recipe.frozen else TRAINING_COST
    pace = learning_pace(spec, device, count_spec(spec.model).macs * cost / speed)
    working = (pace.image + taught / speed) * learnt + pace.step * spec.recipe.schedule.total
    working += pace.image / cost * judged
    reading = reading_seconds(spec, data.train) * (learnt + judged)
    return max(working, reading / spec.execution.workers) if spec.execution.workers else working + reading


def images_judged(spec: RunSpec, data: RunData) -> int:
    """Images that are only evaluated: those of every validation, and those of the test."""
    total, every = spec.recipe.schedule.total, spec.recipe.validate_every
    validations = (total - 1) // every + 1 if every else 1
    return validations * len(data.validation or ()) + len(data.test or ())


@dataclass(frozen=True)
class Pace:
    """Seconds that an image takes forward and back, and that the optimizer takes in every step."""

    image: float
    step: float = 0.0


def learning_pace(spec: RunSpec, device: torch.device, expected: float) -> Pace:
    """Measured on a CPU, on the model or on two of its layers; elsewhere an image takes what is `expected`."""
    tried = _tried(spec.model)
    part = _macs(tried) / _macs(spec.model)
    most = int(BUDGET / (2 * expected * part))
    together = min(spec.recipe.batch, spec.execution.micro_batch or LEARNT, LEARNT, most)
    if device.type != "cpu" or together < 1 or count_spec(tried).parameters > LARGEST:
        return Pace(expected)
    model = build_from_spec(tried).to(device).train()
    freeze(model, tuple(part for part in spec.recipe.frozen if part == BACKBONE))
    forward = model if tried.classes else model.pooled
    optimizer = make_optimizer(model, spec.recipe.optimizer)
    images = torch.zeros(together, 3, *spec.model.image)
    with torch.random.fork_rng(devices=[]):  # of dropout
        forward(images).sum().backward()  # the first time takes longer
        optimizer.step()
        began = time.perf_counter()
        forward(images).sum().backward()
        learnt = time.perf_counter()
        clip_gradients(model.parameters(), spec.recipe.optimizer.clip)
        optimizer.step()
        updated = time.perf_counter()
    weights = count_spec(spec.model).parameters / count_spec(tried).parameters
    return Pace((learnt - began) / together / part, (updated - learnt) * weights)


def _tried(model: ModelSpec) -> ModelSpec:
    """The model, or of a large Transformer a few layers."""
    if isinstance(model, ViTSpec) and count_spec(model).parameters > LARGEST and model.layers > LAYERS:
        return replace(model, layers=LAYERS)
    return model


def _macs(model: ModelSpec) -> int:
    return count_spec(model).macs


def reading_seconds(spec: RunSpec, source: Source) -> float:
    """Seconds an image takes to be read and augmented, measured on the first ones of the run.

    The very first is not among them: with it come imports, caches and the opening of files, once in a run.
    """
    recipe, read, began = spec.recipe, 0, time.perf_counter()
    how = {"size": recipe.image, "augmentation": recipe.augmentation, "stop": READ + 1, "max_bad": 1.0}
    few = training_batches(source, order_of(source, spec.seed), batch=1, **how)
    with torch.random.fork_rng(devices=[]), contextlib.closing(few) as batches:  # a loader draws a seed
        next(batches)
        began = time.perf_counter()
        for _ in batches:
            read += 1
            if time.perf_counter() - began > BUDGET:
                break
    return (time.perf_counter() - began) / max(read, 1)
