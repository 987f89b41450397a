"""Find settings that have no effect in a run.

Only fields that the user set are checked, when the run is created; recipes may set fields they do not need.
"""

from collections.abc import Iterable

from vitlab.run_dir import RunSpec
from vitlab.spec import ViTSpec

RANDAUGMENT, ERASING, DISTILLATION = "augmentation.randaugment.", "augmentation.erasing.", "distillation."


def unread_fields(run: RunSpec, fields: Iterable[str]) -> dict[str, str]:
    """Of the fields that were set, those that the run does not read, and why with what to do."""
    found = {field: _reason(run, field) for field in fields}
    return {field: f"--{field} would be read by nobody: {why}" for field, why in found.items() if why}


def _reason(run: RunSpec, field: str) -> str:
    """Why a field is not read; empty for one that is."""
    recipe, how = run.recipe, run.recipe.augmentation
    if field.startswith(DISTILLATION) and not run.teacher:
        return "distillation needs a model to learn from; give --teacher MODEL (pretrain, finetune and sweep have it)"
    if field == f"{DISTILLATION}temperature" and recipe.distillation.kind == "hard":
        return f"the teacher's best class is the same at any temperature; give --{DISTILLATION}kind soft"
    if field.startswith(RANDAUGMENT) and field != f"{RANDAUGMENT}layers" and not how.randaugment.layers:
        return f"there is no RandAugment; give --{RANDAUGMENT}layers 2"
    if field.startswith(ERASING) and field != f"{ERASING}probability" and not how.erasing.probability:
        return f"nothing is erased; give --{ERASING}probability 0.25"
    if field == "partners" and not recipe.mixes:
        return "no pictures are mixed; give --mixup or --cutmix"
    if field == "schedule.end" and recipe.schedule.decay not in ("linear", "cosine"):
        return f"a {recipe.schedule.decay} decay has no such end; give --schedule.decay linear or cosine"
    if field in ("dropout", "stochastic_depth") and getattr(recipe, field) and not isinstance(run.model, ViTSpec):
        return f"a ResNet has no {field.replace('_', ' ')}; leave it out"
    return ""
