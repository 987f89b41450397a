"""How long a run may take, by trying a few of its images; what would take long to try is left to an expectation."""

import contextlib
import time

import torch

from vitlab.counting import count_spec
from vitlab.data.loading import order_of, training_batches
from vitlab.data.source import Source
from vitlab.models.build import build_from_spec
from vitlab.run_dir import RunSpec

BUDGET = 0.5  # seconds of each trial, about
LARGEST = 30_000_000  # parameters of a model that is built for it
LEARNT, READ = 64, 8  # images, at most


def learning_seconds(spec: RunSpec, device: torch.device, expected: float) -> float:
    """Seconds an image takes forward and back, measured for small models on a CPU; else what is `expected`."""
    together = min(spec.recipe.batch, spec.execution.micro_batch or LEARNT, LEARNT, int(BUDGET / (2 * expected)))
    if device.type != "cpu" or together < 1 or count_spec(spec.model).parameters > LARGEST:
        return expected
    model = build_from_spec(spec.model).to(device).train()
    images = torch.zeros(together, 3, *spec.model.image)
    with torch.random.fork_rng(devices=[]):  # of dropout
        model.pooled(images).sum().backward()  # the first time takes longer
        began = time.perf_counter()
        model.pooled(images).sum().backward()
    return (time.perf_counter() - began) / together


def reading_seconds(spec: RunSpec, source: Source) -> float:
    """Seconds an image takes to be read and augmented, measured on the first ones of the run."""
    recipe, read, began = spec.recipe, 0, time.perf_counter()
    how = {"size": recipe.image, "augmentation": recipe.augmentation, "stop": READ, "max_bad": 1.0}
    few = training_batches(source, order_of(source, spec.seed), batch=1, **how)
    with torch.random.fork_rng(devices=[]), contextlib.closing(few) as batches:  # a loader draws a seed
        for _ in batches:
            read += 1
            if time.perf_counter() - began > BUDGET:
                break
    return (time.perf_counter() - began) / max(read, 1)
