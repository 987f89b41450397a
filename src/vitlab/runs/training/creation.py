"""Create the folder of a run, having said what is about to happen and how long it may take."""

import re
from pathlib import Path

from rich.console import Console

from vitlab.interrupts import raise_when_interrupted
from vitlab.models.build import empty_model
from vitlab.models.masked import empty_masked_model
from vitlab.require import require
from vitlab.run_dir import RunDir, RunSpec
from vitlab.runs.progress import duration, say
from vitlab.runs.training.account import tell_bad, tell_classes, write_quarantine
from vitlab.runs.training.data import RunData
from vitlab.runs.training.distillation import Teacher
from vitlab.runs.training.masked_patches import corruption_of
from vitlab.runs.training.time_estimate import DAY, estimated_seconds
from vitlab.runs.training.validation import check_pictures
from vitlab.spec import ViTSpec
from vitlab.strict_json import to_json
from vitlab.train.optimizers import make_optimizer
from vitlab.train.update import freeze, recompute_activations
from vitlab.world.device import pick_device


def create_run(
    path: Path,
    spec: RunSpec,
    data: RunData,
    console: Console,
    teacher: Teacher | None = None,
    *,
    is_confirmed: bool,
    is_announced: bool = True,
) -> RunDir:
    """Announce a run, check what can be checked before its first step, and create its folder.

    A run of more than a day on a CPU must be confirmed. A sweep announces its runs together.
    """
    banner = console if is_announced else Console(quiet=True)
    _announce(spec, data, banner)
    device = pick_device(spec.execution.device)
    seconds = estimated_seconds(spec, device, data, None if teacher is None else teacher.model.spec)
    sooner = "; less if the training loss settles before" if spec.recipe.settle_window else ""
    say(banner, f"time    about {duration(seconds)} on {device.type}, as busy as it is now{sooner}")
    require(
        seconds < DAY or device.type != "cpu" or is_confirmed,
        f"the run would take about {duration(seconds)} on this CPU; confirm with --yes, or reduce the number of steps "
        f"(--schedule.total), the resolution (--image) or the size of the model",
    )
    check_buildable(spec)
    judged = check_pictures(spec, data, console)
    raise_when_interrupted()
    run = RunDir.create(path, spec, to_json(data.card))
    for name, account in judged.items():
        tell_bad(console, run, account, write_quarantine(run, account, name), name)
    say(banner, f"run     {path}; if it is stopped: {run.command}\n")
    return run


def _announce(spec: RunSpec, data: RunData, console: Console) -> None:
    recipe, (height, width) = spec.recipe, spec.recipe.image
    validation = 0 if data.validation is None else len(data.validation)
    say(
        console,
        f"data    {len(data.train):,} images to train on, {validation:,} to validate, "
        f"{len(data.card.class_names):,} classes",
    )
    tell_classes(console, data)
    if spec.teacher:
        how = recipe.distillation
        say(console, f"teacher {spec.teacher}, {how.kind} distillation of weight {how.share:g}")
    elif isinstance(spec.model, ViTSpec) and spec.model.distilled:
        say(console, "teacher none: both heads learn from the labels; --teacher MODEL gives the second one its own")
    say(console, f"recipe  {recipe.name}: {recipe.source}")
    say(
        console,
        f"        {recipe.schedule.total:,} steps of {recipe.batch:,} images, {height}x{width} pixels, "
        f"{recipe.optimizer.kind}, peak learning rate {recipe.schedule.peak:g}",
    )


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


def free_folder(base: Path, *names: str) -> Path:
    """A folder for a new run that does not exist yet, named after model and data."""
    plain = re.sub(r"[^\w.]+", "-", "-".join(names)).strip("-.") or "run"
    tries = (base / f"{plain}-{n}" for n in range(1, 100_000))
    return next(path for path in tries if not path.exists())
