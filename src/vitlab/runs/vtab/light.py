"""Frozen features on the 1000 training images of each task: ridge regression as in few-shot, and a linear probe.

l2 and the learning rate are picked on val200 after learning from train800; then both methods learn from all 1000
images. Tasks on the same images share their features.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from vitlab.data.feature_files import FeatureFolder, read_folder
from vitlab.data.source import Source
from vitlab.data.splits import nested_subset
from vitlab.data.vtab.opening import open_task
from vitlab.engines.engine import EngineName
from vitlab.files.store import write_json
from vitlab.files.strict_json import read_json
from vitlab.metrics.fewshot import mean_rank_choice
from vitlab.metrics.probe import RATES, train_probe
from vitlab.metrics.ridge import GRID, fit
from vitlab.models.build import Model
from vitlab.paper.models import name_of
from vitlab.paper.vtab import TaskSplit, VtabTask
from vitlab.require import require
from vitlab.runs.measure.features import write_features
from vitlab.runs.measure.inputs import ModelLike, ModelOptions, open_model, settled
from vitlab.runs.measure.scoring import Reading
from vitlab.runs.progress import say
from vitlab.runs.vtab.problems import guarded
from vitlab.runs.vtab.results import Score
from vitlab.spec import image_size
from vitlab.world.group import ALONE

SPLITS: Final[tuple[TaskSplit, ...]] = ("train800val200", "test")
RIDGE, PROBE = "few-shot ridge", "linear probe"
STEPS = 1000  # of the probe
SHARD = 1024  # samples of a file of features
CHUNK = 4096  # test samples whose logits are in memory at a time
TRIED, TRIALS = 8, 3  # images that the time is estimated from, and how often they are computed
RESULT = "light.json"


@dataclass(frozen=True)
class LightWork:
    """What a job of the light evaluation needs: tasks that share their images, and how features are computed."""

    root: Path
    tasks: tuple[VtabTask, ...]
    folder: Path
    model: ModelLike
    loading: ModelOptions
    engine: EngineName
    batch: int
    workers: int
    max_bad: float
    test_images: int | None = None  # of each task, drawn at random; None: all


def run_light(work: LightWork, console: Console) -> int:
    """The job of an image set: `measure_light`, with damaged files as its problem and not that of other sets."""
    return guarded(measure_light, work, work.folder, console)


def measure_light(work: LightWork, console: Console) -> int:
    """Compute the features of an image set that are missing, measure its tasks, and write the result."""
    model = open_model(work.model, work.loading, console)
    # The whole image, as in VTAB's tests: the centre crop of the paper's few-shot evaluation would cut off objects.
    how = replace(model.spec.conventions.preprocessing, resize="square", fraction=1.0)
    say(console, f"{name_of(model.spec)}, preprocessing: {how}", "dim")
    engine = settled(model, work.engine, work.batch, ALONE, console)
    reading = Reading(work.batch, work.workers, work.max_bad, ALONE, engine)
    first = work.tasks[0]
    found: dict[TaskSplit, tuple[Tensor, np.ndarray, tuple[str, ...]]] = {}
    for split in SPLITS:
        source, _ = _opened(work, first, split)
        folder = FeatureFolder(work.folder / split, len(source), SHARD)
        write_features(model, how, source, folder, spec=f"{first.key}, {split}", reading=reading, console=console)
        ids = tuple(source.id(number) for number in range(len(source)))
        found[split] = (torch.from_numpy(read_folder(folder.path).x), folder.numbers(), ids)
    results = {}
    for task in work.tasks:
        labels: dict[TaskSplit, Tensor] = {}
        for split, (_, numbers, ids) in found.items():
            own, every = _opened(work, task, split)
            same = tuple(own.id(number) for number in range(len(own))) == ids
            require(same, f"{task.key} and {first.key} do not have the same images")
            labels[split] = torch.from_numpy(every[numbers])
        results[task.key] = _measured(task, found, labels)
    write_json(work.folder / RESULT, results)
    return 0


def _opened(work: LightWork, task: VtabTask, split: TaskSplit) -> tuple[Source, np.ndarray]:
    """The images of a task that are used, and their labels."""
    source = open_task(work.root, task, split)
    labels = source.labels.numbers.astype(np.int64)
    if split != "test" or work.test_images is None or work.test_images >= len(source):
        return source, labels
    part = nested_subset(source, work.test_images)
    return part, labels[[part.place(number) for number in range(len(part))]]


def _measured(task: VtabTask, found: Mapping[TaskSplit, Any], labels: Mapping[TaskSplit, Tensor]) -> dict[str, Any]:
    """The numbers of one task as JSON values."""
    x, numbers, _ = found["train800val200"]
    tests, kept, ids = found["test"]
    y, ey = labels["train800val200"], labels["test"]
    is_train = torch.from_numpy(numbers < task.train.images)
    require(0 < int(is_train.sum()) < len(x), f"{task.key} has no readable images to learn from or to pick on")
    inner = (x[is_train], y[is_train], x[~is_train], y[~is_train])
    l2, picked = _picked_l2(*inner, task.classes)
    ridge, right = fit(x, y, task.classes), 0
    for start in range(0, len(tests), CHUNK):
        (logits,) = ridge.logits(tests[start : start + CHUNK], (l2,))
        right += int((logits.argmax(dim=-1) == ey[start : start + CHUNK]).sum())
    rates = train_probe(*inner[:2], task.classes, steps=STEPS).accuracies(*inner[2:])
    rate = max(RATES, key=lambda one: rates[one])
    probe = train_probe(x, y, task.classes, rates=(rate,), steps=STEPS).accuracies(tests, ey)[rate]
    counts = Counter(ey.tolist())
    return {
        "test images": len(ey),
        "not scored": len(ids) - len(kept),
        "commonest class": max(counts.values()),
        "label counts": [counts[label] for label in range(task.classes)],
        RIDGE: {"accuracy": right / len(ey), "l2": l2, "val200": picked},
        PROBE: {"accuracy": probe, "rate": rate, "val200": rates[rate], "steps": STEPS},
    }


def _picked_l2(x: Tensor, y: Tensor, vx: Tensor, vy: Tensor, classes: int) -> tuple[float, float]:
    """The l2 that is best on val200, and its accuracy there; of equal ones the largest."""
    ridge = fit(x, y, classes)
    accuracies = [float((logits.argmax(dim=-1) == vy).double().mean()) for logits in ridge.logits(vx, GRID)]
    best = mean_rank_choice([accuracies])
    return GRID[best], accuracies[best]


def estimated_seconds(model: Model, images: int) -> float:
    """The time to compute the features of this many images, by the best of a few trials on blank ones."""
    blank = torch.zeros(TRIED, 3, *image_size(model.spec.image), device=next(model.parameters()).device)
    seconds = []
    with torch.inference_mode():
        model.features(blank[:1])
        for _ in range(TRIALS):
            began = time.perf_counter()
            model.features(blank)
            seconds.append(time.perf_counter() - began)
    return min(seconds) / TRIED * images


def read_light(folder: Path, task: VtabTask) -> Score:
    """The score that a finished job wrote."""
    found = cast(dict[str, Any], read_json(folder / RESULT))[task.key]
    count = int(found["test images"])
    runs: dict[str, tuple[float, ...]] = {
        method: (100 * float(found[method]["accuracy"]),) for method in (RIDGE, PROBE)
    }
    return Score(task, runs, count, 100 * int(found["commonest class"]) / count, int(found["not scored"]))
