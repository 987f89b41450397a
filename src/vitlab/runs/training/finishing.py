"""After the last step: the weights that are kept, their numbers, the model's folder, the result."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console

from vitlab.data.fingerprint import DataCard
from vitlab.data.loading.accounting import Account
from vitlab.data.transforms.evaluation import normalised
from vitlab.errors import Diverged
from vitlab.files.store import sha256, verify_folder
from vitlab.files.strict_json import read_json
from vitlab.models.build import Model
from vitlab.models.masked import MaskedPatchModel
from vitlab.require import require
from vitlab.run_dir import CHECKPOINTS, EVENTS, MODEL, QUARANTINE, RESULT, RunDir, RunSpec
from vitlab.runs.progress import describe, say
from vitlab.runs.training.data import RunData, tell_requests
from vitlab.runs.training.report import has_answers, tell_report
from vitlab.runs.training.state import Session, open_state, whole_model
from vitlab.runs.training.validation import draw, score_set
from vitlab.spec import Task
from vitlab.spec.recipe import VALIDATION
from vitlab.train.checkpoints.checkpoints import Checkpoints
from vitlab.train.checkpoints.files import load_checkpoint, name_of, set_aside, steps_in
from vitlab.train.loop import ADVICE
from vitlab.train.state import TrainState
from vitlab.weights.files.folder import CARD, WEIGHTS
from vitlab.weights.save import save_model
from vitlab.world.parallel import is_cut


def finish(
    session: Session, data: RunData, state: TrainState, checkpoints: Checkpoints, *, is_shown: bool = False
) -> None:
    """Score and save the final model, and write the result; `is_shown` if the last validation is on the screen."""
    run, spec, console, world = session
    books = state.progress.books  # of all steps; those of the best checkpoint end with it
    weights = "best" if spec.recipe.patience and _take_best(state, checkpoints, console) else "last"
    model = state.trained.eval().requires_grad_(True)
    assert isinstance(model, Model)
    progress = state.progress
    result: dict[str, object] = {
        "step": progress.step,
        "weights": weights,
        "images": progress.images,
        "skipped": progress.skipped,
        **({"task": data.task} if data.task == "multi-label" else {}),
    }
    for name, source in ((VALIDATION, data.validation), ("test", data.test)):
        if source is not None:
            numbers = world.first(_recorded, run, name, progress.step)
            if numbers is None:
                numbers = score_set(session, data.task, name, source, model)
                run.record(name, {"step": progress.step, **numbers})
                is_shown = False
            elif spec.execution.report and not world.first(has_answers, run, name, numbers):
                score_set(session, data.task, name, source, model)  # the answers on disk are of later weights
            if not is_shown or weights == "best" or name != VALIDATION:
                say(console, f"{name}: {describe(numbers)}")
            result[name] = {what: value for what, value in numbers.items() if math.isfinite(float(value))}
    draw(session, data, model)
    run.check_there()
    if world.first(_model_fault, run):
        world.first(_set_aside, run.path / MODEL)
        _keep_model(session, data.card, data.task, state, checkpoints)
    result["model_sha256"] = world.first(sha256, run.path / MODEL / WEIGHTS)
    if why := world.first(run.not_exact):
        result["not_exact"] = why
    run.write(RESULT, result)
    tell_requests(console, run, data, world)
    run.record("finished", {"step": progress.step})
    _tell_end(run, Account.from_json(books) if books else Account(0), why, console)
    world.first(tell_report, run, spec, data, console)


def _tell_end(run: RunDir, account: Account, not_exact: Sequence[str], console: Console) -> None:
    """Print what was lost or unusual in the run, and where its model is."""
    if run.dropped:
        say(console, f"{run.dropped:,} events could not be written to {run.path / EVENTS}")
    if bad := len(account.quarantined):
        count = f"{bad:,} of {account.samples:,} images"
        say(console, f"{count} could not be read in training; {run.path / QUARANTINE} lists them")
    for reason in not_exact:
        say(console, f"this run is not exact: {reason}")
    say(console, f"the model is in {run.path / MODEL}")


def _keep_model(session: Session, card: DataCard, task: Task, state: TrainState, checkpoints: Checkpoints) -> None:
    """Write the model's folder; raises Diverged if its outputs are not finite."""
    model = cast(Model, state.trained)
    whole = whole_model(model, session.spec, session.world) if is_cut(model) else model
    session.world.first(_save, session, whole, card, task, state.progress.step, checkpoints)


def _save(session: Session, model: Model, card: DataCard, task: Task, step: int, checkpoints: Checkpoints) -> None:
    kept = (model.without_mask() if isinstance(model, MaskedPatchModel) else model).to("cpu").eval()
    if not _has_finite_outputs(kept):
        found = f"the model's outputs are NaN or infinite after step {step:,}, so it is not kept"
        raise Diverged(f"{found}; {ADVICE}; {checkpoints.last_good(before=step)}")
    if not isinstance(model, MaskedPatchModel):
        kept.class_names, kept.task = card.class_names or None, task
    kept.provenance = provenance(session.spec, card, step, session.run.not_exact())
    save_model(kept, session.run.path / MODEL)


@torch.inference_mode()
def _has_finite_outputs(model: Model) -> bool:
    """Whether the outputs for a black image and for noise are finite."""
    pixels = torch.zeros(2, 3, *model.spec.image, dtype=torch.uint8)
    pixels[1].random_(256, generator=torch.Generator().manual_seed(0))
    images = normalised(pixels, model.spec.conventions.preprocessing)
    outputs = model(images) if model.spec.classes else model.features(images)
    return bool(outputs.isfinite().all())


def _take_best(state: TrainState, checkpoints: Checkpoints, console: Console) -> bool:
    """Fill the state from the best checkpoint; if that is lost, report it and keep the last weights."""
    if state.progress.best is None:
        return False
    path = checkpoints.folder / name_of(state.progress.best_step)
    if fault := checkpoints.fault(path):
        say(console, f"the best checkpoint cannot be used, so the last weights are kept: {fault}")
        return False
    load_checkpoint(path, state)
    return True


def _recorded(run: RunDir, name: str, step: int) -> dict[str, float] | None:
    """The numbers of a measurement after this step, if there was one."""
    found = [event for event in run.events(name) if event["step"] == step]
    return {key: value for key, value in found[-1].items() if key not in ("event", "time", "step")} if found else None


def provenance(spec: RunSpec, card: DataCard, step: int, not_exact: Sequence[str] = ()) -> dict[str, str]:
    """Where a trained model comes from, saved with it."""
    from vitlab import __version__

    masking = spec.recipe.masking
    return {
        "trained_by": f"vitlab {__version__} {spec.kind}",
        **({"objective": f"masked patches, {masking.target}, {masking.corrupted:g} corrupted"} if masking else {}),
        "recipe": f"{spec.recipe.name} ({spec.recipe.source})",
        "data": card.spec,
        "data_fingerprint": card.fingerprint,
        "start": Path(spec.start).name if spec.start else "fresh",
        "start_sha256": spec.start_sha256,
        **({"teacher": Path(spec.teacher).name, "teacher_sha256": spec.teacher_sha256} if spec.teacher else {}),
        "seed": str(spec.seed),
        "steps": str(step),
        **({"not_exact": "; ".join(not_exact)} if not_exact else {}),
    }


# -- A finished run --------------------------------------------------------------------------------


def is_complete(session: Session, card: DataCard) -> bool:
    """Whether a finished run has its model; one that is missing or damaged is written again from a checkpoint.

    If the last checkpoint is lost as well but an earlier one exists, the run counts as unfinished.
    """
    run, _, console, world = session
    if not world.first(read_result, run):
        world.first(_set_aside, run.path / RESULT)  # the run is not finished any more
        say(console, f"{run.path / RESULT} is damaged and was set aside; the end of the run is repeated")
        return False
    fault = world.first(_model_fault, run)
    if not fault:
        return True
    say(console, f"the run is finished, but its model cannot be used: {fault}")
    lost = f"{run.path} has lost its model and its checkpoints; restore {MODEL} or {CHECKPOINTS}, or start a new run"
    require(bool(world.first(_steps_kept, run)), lost)
    state, checkpoints = open_state(session)
    restored = checkpoints.restore(state)
    assert restored is not None, "there are checkpoints"
    if _rebuild(session, card, state, checkpoints):
        return True
    world.first(_set_aside, run.path / RESULT)
    say(console, f"the last checkpoint is lost; training continues after step {restored.step:,}")
    return False


def _rebuild(session: Session, card: DataCard, state: TrainState, checkpoints: Checkpoints) -> bool:
    """Write the model again from a restored state or the best checkpoint; False if neither gave the result.

    What was there under the model's name is set aside.
    """
    run, _, console, world = session
    result = world.first(read_result, run)
    if result.get("weights") == "best" and not _take_best(state, checkpoints, console):
        return False
    step = state.progress.step
    if step != result.get("step", step):
        return False
    aside = world.first(_set_aside, run.path / MODEL)
    task: Task = "multi-label" if result.get("task") == "multi-label" else "single-label"
    _keep_model(session, card, task, state, checkpoints)
    made = world.first(sha256, run.path / MODEL / WEIGHTS)
    run.write(RESULT, result | {"model_sha256": made})  # another version may write the same tensors as other bytes
    run.record("rebuilt", {"step": step})
    moved = f"; what was there is now {aside}" if aside else ""
    say(console, f"the model was written again from the checkpoint of step {step:,}{moved}")
    return True


def _model_fault(run: RunDir) -> str:
    """What is wrong with the model of a finished run, or nothing; every byte is checked against its hash."""
    folder = run.path / MODEL
    try:
        require(folder.is_dir(), f"{folder} is missing")
        verify_folder(folder, (WEIGHTS, CARD))
        expected = read_result(run).get("model_sha256")  # results of earlier versions do not say
        require(expected in (None, sha256(folder / WEIGHTS)), f"{folder} holds other weights than the run ended with")
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def read_result(run: RunDir) -> dict[str, Any]:
    """The result of a finished run; an empty one if it is damaged."""
    try:
        value = read_json(run.path / RESULT)
    except (OSError, ValueError):
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _set_aside(path: Path) -> str:
    """Rename a file or folder; returns the new name, or nothing if there was nothing."""
    return str(set_aside(path)) if path.exists() else ""


def _steps_kept(run: RunDir) -> list[int]:
    return steps_in(run.path / CHECKPOINTS) if (run.path / CHECKPOINTS).is_dir() else []
