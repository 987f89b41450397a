"""How long a run takes: measured on a few of its images, or estimated where measuring would take long."""

import contextlib
import time
from dataclasses import replace
from typing import NamedTuple

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

DAY = 86_400  # seconds; a longer run on a CPU must be confirmed
BUDGET = 0.5  # seconds of each trial, about
LARGEST = 30_000_000  # parameters of a model that is built for a trial
LAYERS = 2  # layers built of a larger Transformer; all its layers are alike
TRAINED, READ = 64, 32  # images in a trial, at most
TRAINING_COST = 3  # forward passes that a step costs: one forward, two back
TYPICAL_SHARE = 0.6  # of the speed of one large matrix product that a training step reaches


def estimated_seconds(spec: RunSpec, device: torch.device, data: RunData, teacher: ModelSpec | None = None) -> float:
    """The time of a run on this device: its steps, its validations, and reading its images.

    Steps are timed, or estimated from the speed of a matrix product. Workers read while the model computes.
    """
    side = 1024
    a = torch.ones(side, side, device=device)
    (a @ a).sum().item()
    began = time.perf_counter()
    (a @ a @ a @ a).sum().item()
    passed = max(time.perf_counter() - began, 1e-9)
    speed = TYPICAL_SHARE * 3 * side**3 / passed  # multiply-accumulates per second
    trained = spec.recipe.schedule.total * spec.recipe.batch
    evaluated = _images_evaluated(spec, data)
    teaching = 0 if teacher is None else _macs(teacher)
    cost = 1 if BACKBONE in spec.recipe.frozen else TRAINING_COST
    pace = training_pace(spec, device, _macs(spec.model) * cost / speed)
    working = (pace.image + teaching / speed) * trained + pace.step * spec.recipe.schedule.total
    working += pace.image / cost * evaluated
    reading = reading_seconds(spec, data.train) * (trained + evaluated)
    return max(working, reading / spec.execution.workers) if spec.execution.workers else working + reading


def _images_evaluated(spec: RunSpec, data: RunData) -> int:
    """Images of all validations and of the test."""
    total, every = spec.recipe.schedule.total, spec.recipe.validate_every
    validations = (total - 1) // every + 1 if every else 1
    return validations * len(data.validation or ()) + len(data.test or ())


class Pace(NamedTuple):
    """Seconds for an image, forward and back, and for the optimizer in every step."""

    image: float
    step: float = 0.0


def training_pace(spec: RunSpec, device: torch.device, expected: float) -> Pace:
    """The pace measured on a CPU, with the model or two of its layers; elsewhere an image takes `expected` seconds."""
    model = spec.model
    if isinstance(model, ViTSpec) and count_spec(model).parameters > LARGEST and model.layers > LAYERS:
        model = replace(model, layers=LAYERS)
    part = _macs(model) / _macs(spec.model)
    most = int(BUDGET / (2 * expected * part))
    together = min(spec.recipe.batch, spec.execution.micro_batch or TRAINED, TRAINED, most)
    if device.type != "cpu" or together < 1 or count_spec(model).parameters > LARGEST:
        return Pace(expected)
    module = build_from_spec(model).to(device).train()
    freeze(module, tuple(part for part in spec.recipe.frozen if part == BACKBONE))
    forward = module if model.classes else module.pooled
    optimizer = make_optimizer(module, spec.recipe.optimizer)
    images = torch.zeros(together, 3, *spec.model.image)
    with torch.random.fork_rng(devices=[]):  # dropout draws
        forward(images).sum().backward()  # the first time takes longer
        optimizer.step()
        began = time.perf_counter()
        forward(images).sum().backward()
        computed = time.perf_counter()
        clip_gradients(module.parameters(), spec.recipe.optimizer.clip)
        optimizer.step()
        updated = time.perf_counter()
    weights = count_spec(spec.model).parameters / count_spec(model).parameters
    return Pace((computed - began) / together / part, (updated - computed) * weights)


def _macs(model: ModelSpec) -> int:
    return count_spec(model).macs


def reading_seconds(spec: RunSpec, source: Source) -> float:
    """Seconds to read and augment an image, measured on the first ones of the run but the very first.

    The first image includes imports, caches and the opening of files, once in a run.
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
