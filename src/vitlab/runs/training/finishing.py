"""After the last step: the weights that are kept, their numbers, the model's folder, the result."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console

from vitlab.data.fingerprint import DataCard
from vitlab.data.loading.accounting import Account
from vitlab.data.transforms.evaluation import normalised
from vitlab.errors import Diverged
from vitlab.models.build import Model
from vitlab.models.masked import MaskedPatchModel
from vitlab.require import require
from vitlab.run_dir import EVENTS, MODEL, RESULT, RunDir, RunSpec
from vitlab.runs.progress import describe, say
from vitlab.runs.training.account import tell_total
from vitlab.runs.training.data import RunData
from vitlab.runs.training.initial_state import whole_model
from vitlab.runs.training.report import has_answers, tell_report
from vitlab.runs.training.session import Session
from vitlab.runs.training.validation import draw, score_set
from vitlab.spec import Task
from vitlab.store import sha256, verify_folder
from vitlab.strict_json import read_json
from vitlab.train.checkpoints.checkpoints import Checkpoints
from vitlab.train.checkpoints.files import load_checkpoint, name_of, set_aside
from vitlab.train.loop import ADVICE, JUDGE
from vitlab.train.state import TrainState
from vitlab.weights.files.folder import CARD, WEIGHTS
from vitlab.weights.save import save_model
from vitlab.world.parallel import is_cut


def finish(session: Session, data: RunData, state: TrainState, checkpoints: Checkpoints) -> None:
    """Score and save the final model, and write the result."""
    run, spec, console, world = session.run, session.spec, session.console, session.world
    books = state.progress.books  # of all steps; those of the best end with it
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
    for name, source in ((JUDGE, data.validation), ("test", data.test)):
        if source is not None:
            numbers = world.first(partial(_recorded, run, name, progress.step))
            if numbers is None:
                numbers = score_set(session, data.task, name, source, model)
                run.record(name, {"step": progress.step, **numbers})
            elif spec.execution.report and not world.first(partial(has_answers, run, name, numbers)):
                # The answers are of later weights.
                score_set(session, data.task, name, source, model)
            result[name] = {what: value for what, value in numbers.items() if math.isfinite(float(value))}
            say(console, f"{name}: {describe(numbers)}")
    draw(session, data, model)
    run.check_there()
    if world.first(partial(model_fault, run)):
        world.first(partial(_set_aside, run))
        keep_model(session, data.card, data.task, state, checkpoints)
    result["model_sha256"] = world.first(partial(_weights_sha256, run))
    if why := world.first(run.not_exact):
        result["not_exact"] = why
    run.write(RESULT, result)
    run.record("finished", {"step": progress.step})
    if run.dropped:
        say(console, f"{run.dropped:,} events could not be written to {run.path / EVENTS}")
    if books:
        tell_total(console, run, Account.from_json(books))
    for reason in why:
        say(console, f"this run is not exact: {reason}")
    say(console, f"the model is in {run.path / MODEL}")
    world.first(partial(tell_report, run, spec, data, console))


def keep_model(session: Session, card: DataCard, task: Task, state: TrainState, checkpoints: Checkpoints) -> None:
    """Write the model's folder; raises Diverged where the model does not answer with numbers."""
    run, spec, world = session.run, session.spec, session.world
    model, step = cast(Model, state.trained), state.progress.step
    kept = whole_model(model, spec, world) if is_cut(model) else model

    def save() -> None:
        assert kept is not None, "the first rank has it"
        whole = kept.without_mask() if isinstance(kept, MaskedPatchModel) else kept
        whole = whole.to("cpu").eval()
        if not answers_are_finite(whole):
            raise Diverged(
                f"the model answers with NaN or infinity after step {step:,}, so it is not kept; {ADVICE}; "
                f"{checkpoints.last_good(before=step)}"
            )
        if not isinstance(kept, MaskedPatchModel):
            whole.class_names, whole.task = card.class_names or None, task
        whole.provenance = provenance(spec, card, step, run.not_exact())
        save_model(whole, run.path / MODEL)

    world.first(save)


# -- A finished run whose model is missing or damaged ----------------------------------------------


def model_fault(run: RunDir) -> str:
    """What is wrong with the model of a finished run, or nothing; every byte is checked against its hash."""
    folder = run.path / MODEL
    try:
        require(folder.is_dir(), f"{folder} is missing")
        verify_folder(folder, (WEIGHTS, CARD))
        expected = read_result(run).get("model_sha256")  # results of earlier versions do not say
        require(expected in (None, _weights_sha256(run)), f"{folder} holds other weights than the run ended with")
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def rebuild(session: Session, card: DataCard, state: TrainState, checkpoints: Checkpoints) -> bool:
    """Write the model again from a state that is restored, or from the best one; False if it is not that of the result.

    What was there under the model's name is set aside.
    """
    run, console, world = session.run, session.console, session.world
    result = world.first(partial(read_result, run))
    if result.get("weights") == "best" and not _take_best(state, checkpoints, console):
        return False
    if state.progress.step != result.get("step", state.progress.step):
        return False
    aside = world.first(partial(_set_aside, run))
    task: Task = "multi-label" if result.get("task") == "multi-label" else "single-label"
    keep_model(session, card, task, state, checkpoints)
    made, step = world.first(partial(_weights_sha256, run)), state.progress.step
    run.write(RESULT, result | {"model_sha256": made})  # another version may write the same tensors as other bytes
    run.record("rebuilt", {"step": step})
    told = f"; what was there is now {aside}" if aside else ""
    say(console, f"the model was made again from the checkpoint of step {step:,}{told}")
    return True


def withdraw_result(run: RunDir) -> None:
    """Set the result aside: the run is not finished any more."""
    set_aside(run.path / RESULT)


def _set_aside(run: RunDir) -> str:
    """Give what has the model's name another one; returns it, or nothing where nothing had it."""
    return str(set_aside(run.path / MODEL)) if (run.path / MODEL).exists() else ""


def read_result(run: RunDir) -> dict[str, Any]:
    """The result of a finished run; an empty one if it is damaged."""
    try:
        value = read_json(run.path / RESULT)
    except (OSError, ValueError):
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _weights_sha256(run: RunDir) -> str:
    return sha256(run.path / MODEL / WEIGHTS)


@torch.inference_mode()
def answers_are_finite(model: Model) -> bool:
    """Whether a model has numbers for a black picture and for one of noise."""
    pixels = torch.zeros(2, 3, *model.spec.image, dtype=torch.uint8)
    pixels[1].random_(256, generator=torch.Generator().manual_seed(0))
    images = normalised(pixels, model.spec.conventions.preprocessing)
    answer = model(images) if model.spec.classes else model.features(images)
    return bool(answer.isfinite().all())


def _take_best(state: TrainState, checkpoints: Checkpoints, console: Console) -> bool:
    """Fill the state from the best checkpoint; if that is lost, report it and keep the last weights."""
    if state.progress.best is None:
        return False
    path = checkpoints.folder / name_of(state.progress.best_step)
    if fault := checkpoints.fault(path):
        say(console, f"the best checkpoint cannot be used, the last weights are kept: {fault}")
        return False
    load_checkpoint(path, state)
    return True


def _recorded(run: RunDir, name: str, step: int) -> dict[str, float] | None:
    """The numbers of a measurement after this step, if there was one."""
    found = [event for event in run.events(name) if event["step"] == step]
    return {key: value for key, value in found[-1].items() if key not in ("event", "time", "step")} if found else None


def provenance(spec: RunSpec, card: DataCard, step: int, not_exact: Sequence[str] = ()) -> dict[str, str]:
    """Where a trained model comes from; it travels with it."""
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
