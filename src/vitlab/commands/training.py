"""vitlab pretrain, finetune, resume, reproduce."""

from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.text import Text

from vitlab.commands.flags import UNCHANGED, ChangedExecution, Changes, arguments, changed_fields, pairs
from vitlab.commands.recipes import recipes
from vitlab.commands.terminal import (
    Given,
    MaybeNumber,
    MaybePath,
    MaybeWhole,
    Size,
    Spec,
    Words,
    console,
)
from vitlab.recipe import AUTOMATIC, Execution

Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


def pretrain(
    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL[@DATA]")],
    data: Given,
    out: MaybePath = None,
    image: Size = "",
    objective: Literal["labels", "masked-patches"] = "labels",
    epochs: MaybeWhole = None,
    validation: Spec = "",
    held_out: MaybeNumber = None,
    test: Spec = "",
    max_pixels: MaybeWhole = None,
    teacher: MaybePath = None,
    seed: int = 0,
    execution: Annotated[Execution, tyro.conf.arg(name="")] = AUTOMATIC,
    changes: Changes = (),
    yes: bool = False,
) -> None:
    """Train a model from scratch with a recipe of the paper's table 3. Every field of the recipe is a flag, such as
    --schedule.peak 3e-4, --batch 256 or --model.layers 4; `vitlab recipes` lists the recipes, `vitlab recipes NAME`
    the fields of one.

    Args:
        recipe: A recipe such as ViT-B/16@imagenet21k, or a model: it gets the recipe of the nearest data size.
        data: Training images, such as folder:photos or digits?split=train; `vitlab data kinds` lists all kinds.
        out: Run folder (default: a new one under runs/).
        image: Resolution (default: the recipe's).
        objective: Learn the labels or, without labels, predict masked patches (--masking.target colours-4x4).
        epochs: Passes over the training images (default: the recipe's).
        validation: Images to validate on.
        held_out: Share of the training images to hold out for validation.
        test: Images to test the trained model on.
        max_pixels: Largest number of pixels of an image (default: a limit per format).
        teacher: A model of the same classes to distill from (--distillation.kind hard or soft).
        seed: Seed of the initial weights, the order of images and the augmentation.
        changes: Another way to set a field of the recipe: --set schedule.peak=3e-4.
        yes: Start even if the run takes more than a day on this CPU.
    """
    given = arguments(locals())
    from vitlab.runs.training.start import pretrain as start

    start(**given)


def finetune(
    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    data: Given,
    recipe: Words = "",
    out: MaybePath = None,
    image: Size = "",
    epochs: MaybeWhole = None,
    validation: Spec = "",
    held_out: MaybeNumber = None,
    test: Spec = "",
    max_pixels: MaybeWhole = None,
    teacher: MaybePath = None,
    seed: int = 0,
    execution: Annotated[Execution, tyro.conf.arg(name="")] = AUTOMATIC,
    changes: Changes = (),
    yes: bool = False,
) -> None:
    """Fine-tune a trained model on your own images, as in the paper's table 4: new head, resized position embeddings.
    Every field of the recipe is a flag, such as --schedule.peak 0.003, --batch 64 or --frozen backbone;
    `vitlab recipes` lists the recipes, `vitlab recipes NAME` the fields of one, such as quick, the default on a CPU.

    Args:
        model: Weights in any supported format: a file, a folder, or a name that `vitlab download` lists.
        data: Training images, such as folder:photos with one folder per class; `vitlab data kinds` lists all kinds.
        recipe: A recipe of table 4 such as cifar10, or quick (default: chosen from the size of the data, and printed).
        out: Run folder (default: a new one under runs/).
        image: Resolution (default: the recipe's).
        epochs: Passes over the training images (default: the recipe's number of steps).
        validation: Images to validate on.
        held_out: Share of the training images to hold out for validation; 0 for none (default: the recipe's).
        test: Images to test the trained model on.
        max_pixels: Largest number of pixels of an image (default: a limit per format).
        teacher: A model of the same classes to distill from (--distillation.kind hard or soft).
        seed: Seed of the order of images and the augmentation.
        changes: Another way to set a field of the recipe: --set schedule.peak=3e-4.
        yes: Start even if the run takes more than a day on this CPU.
    """
    given = arguments(locals())
    from vitlab.runs.training.start import finetune as start

    start(**given)


def resume(
    run: Folder,
    data: Spec = "",
    validation: Spec = "",
    test: Spec = "",
    teacher: MaybePath = None,
    allow_changed: bool = False,
    execution: ChangedExecution = UNCHANGED,
    changes: Changes = (),
) -> None:
    """Continue a run that was stopped or killed from its last checkpoint; it ends as if never interrupted. Flags that
    do not change what is learnt may be changed, such as --micro-batch 8, --workers 2, --recompute or --device cuda.

    Args:
        run: Run folder.
        data: New place of the training images, if they have moved.
        validation: New place of the validation images, if they have moved.
        test: New place of the test images, if they have moved.
        teacher: New place of the teacher, if it has moved.
        allow_changed: Continue even if the data or run.json has changed; the result is then marked as not exact.
        changes: Another way to set one of these flags: --set micro_batch=8.
    """
    from vitlab.runs.training.run import open_run

    open_run(run).resume(
        data=data,
        validation=validation,
        test=test,
        teacher=teacher,
        allow_changed=allow_changed,
        console=console(),
        changes={**dict(changed_fields(execution)), **pairs(changes)},
    )


def reproduce(run: Folder, out: MaybePath = None, allow_changed: bool = False) -> int:
    """Train a finished run again with the same recipe and seed, and compare the two step by step.

    Args:
        run: Folder of the finished run.
        out: Folder of the second run (default: RUN-again); an unfinished one is continued.
        allow_changed: Train even if the data has changed since the first run.
    """
    from vitlab.runs.training.reproduce import reproduce as train_again

    found = train_again(run, out, allow_changed=allow_changed, console=console())
    console().print(Text(found.summary()))
    return 0 if found.is_same else 1


TRAINING_COMMANDS = {
    "recipes": recipes,
    "pretrain": pretrain,
    "finetune": finetune,
    "resume": resume,
    "reproduce": reproduce,
}
