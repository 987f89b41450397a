"""After the last step: the weights that are kept, their numbers, the model's folder, the result."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from vitlab.data.accounting import Account
from vitlab.data.card import DataCard
from vitlab.models.build import Model
from vitlab.models.masked import MaskedPatchModel
from vitlab.run_dir import EVENTS, MODEL, RESULT, RunDir, RunSpec
from vitlab.runs.books import tell_total
from vitlab.runs.display import describe, say
from vitlab.runs.judging import draw, score_source
from vitlab.runs.material import Material, whole_model
from vitlab.train.checkpoint_files import load_checkpoint, name_of
from vitlab.train.checkpoints import Checkpoints
from vitlab.train.loop import JUDGE
from vitlab.train.state import TrainState
from vitlab.weights.save import save_model
from vitlab.world.group import World
from vitlab.world.parallel import is_cut


def finish(
    run: RunDir,
    spec: RunSpec,
    material: Material,
    state: TrainState,
    checkpoints: Checkpoints,
    console: Console,
    world: World,
) -> None:
    """Save the model that is kept, judge it, and write the result."""
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
    }
    for name, source in ((JUDGE, material.validation), ("test", material.test)):
        if source is not None:
            numbers = world.first(partial(_recorded, run, name, progress.step))
            if numbers is None:
                numbers = score_source(run, spec, name, source, console, world, model)
                run.record(name, {"step": progress.step, **numbers})
            result[name] = {what: value for what, value in numbers.items() if math.isfinite(float(value))}
            say(console, f"{name}: {describe(numbers)}")
    draw(run, spec, material, model)
    if not world.first((run.path / MODEL).exists):
        kept = whole_model(model, spec, world) if is_cut(model) else model
        world.first(lambda: _save(kept, run, spec, material, progress.step))
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


def _save(model: Model | None, run: RunDir, spec: RunSpec, material: Material, step: int) -> None:
    assert model is not None, "the first rank has it"
    if isinstance(model, MaskedPatchModel):
        model = model.without_mask()
    else:
        model.class_names = material.card.class_names or None
    model.provenance = provenance(spec, material.card, step, run.not_exact())
    save_model(model.to("cpu"), run.path / MODEL)


def _take_best(state: TrainState, checkpoints: Checkpoints, console: Console) -> bool:
    """Fill the state from the best checkpoint; one that is lost is told, and the last weights stay."""
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
