"""vitlab pretrain, finetune, resume, reproduce."""

from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.text import Text

from vitlab.commands.flags import UNCHANGED, ChangedExecution, changed_fields
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
    size_of,
)
from vitlab.recipe import AUTOMATIC, Execution

Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Changes = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FIELD=VALUE", name="set")]


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
    """Train a model from fresh weights with a row of the paper's table 3. Any field of the recipe is a flag too:
    --schedule.peak 3e-4, --batch 256, --model.layers 4; `vitlab recipes` lists the rows,
    `vitlab recipes NAME` the fields of one.

    Args:
        recipe: A row such as ViT-B/16@imagenet21k, or a model, which gets the row of the nearest data size.
        data: The images, such as folder:photos or digits?split=train; `vitlab data kinds` lists all kinds.
        out: The run folder; a new one under runs/ if left out.
        image: Resolution; the recipe's if left out.
        objective: Learn the labels; or, without labels, what hidden patches look like (--masking.target colours-4x4).
        epochs: How often every image is seen; the recipe's if left out.
        validation: Images to validate on.
        held_out: The share of the training images to validate on instead.
        test: Images to test the finished model on.
        max_pixels: Pixels that an image may have; each format has its own limit if left out.
        teacher: A model of the same classes to learn from beside the labels (--distillation.kind hard or soft).
        seed: Of the weights, the order and the augmentation.
        changes: A field of the recipe, as --set schedule.peak=3e-4.
        yes: Start although the run takes more than a day on this CPU.
    """
    from vitlab.runs.training.start import pretrain as start

    start(
        recipe,
        data,
        out,
        objective=objective,
        image=size_of(image),
        epochs=epochs,
        validation=validation,
        held_out=held_out,
        test=test,
        max_pixels=max_pixels,
        teacher=teacher,
        seed=seed,
        execution=execution,
        yes=yes,
        console=console(),
        changes=pairs(changes),
    )


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
    """Teach a trained model the classes of your own images: new head, positions resized, the paper's table 4. Any
    field of the recipe is a flag too: --schedule.peak 0.003, --batch 64, --frozen backbone; `vitlab recipes` lists the
    recipes, `vitlab recipes NAME` the fields of one, such as quick, the default without an accelerator.

    Args:
        model: Weights of any supported format: a file, a folder, or a name that vitlab download lists.
        data: The images, such as folder:photos with one folder a class; `vitlab data kinds` lists all kinds.
        recipe: A row of table 4 such as cifar10, or quick; chosen by the size of the data if left out, and told.
        out: The run folder; a new one under runs/ if left out.
        image: Resolution; the recipe's if left out.
        epochs: How often every image is seen; the recipe's number of steps if left out.
        validation: Images to validate on.
        held_out: The share of the training images to validate on; the recipe's if left out, 0 for none.
        test: Images to test the finished model on.
        max_pixels: Pixels that an image may have; each format has its own limit if left out.
        teacher: A model of the same classes to learn from beside the labels (--distillation.kind hard or soft).
        seed: Of the order and the augmentation.
        changes: A field of the recipe, as --set schedule.peak=3e-4.
        yes: Start although the run takes more than a day on this CPU.
    """
    from vitlab.runs.training.start import finetune as start

    start(
        model,
        data,
        out,
        recipe=recipe,
        image=size_of(image),
        epochs=epochs,
        validation=validation,
        held_out=held_out,
        test=test,
        max_pixels=max_pixels,
        teacher=teacher,
        seed=seed,
        execution=execution,
        yes=yes,
        console=console(),
        changes=pairs(changes),
    )


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
    """Continue a run that was stopped or killed, from its last checkpoint; it ends as if nothing had happened. How it
    is carried out may change: --micro-batch 8, --workers 2, --recompute, --device cuda. What is left out stays.

    Args:
        run: The run folder.
        data: Where the same images are now, if they have moved.
        validation: Where the same validation images are now, if they have moved.
        test: Where the same test images are now, if they have moved.
        teacher: Where the same teacher is now, if it has moved.
        allow_changed: Continue although the data or run.json has changed; the result says that it is not exact.
        changes: A field of the execution, as --set micro_batch=8.
    """
    from vitlab.runs.training.run import resume as resume_run

    resume_run(
        run,
        data=data,
        validation=validation,
        test=test,
        teacher=teacher,
        allow_changed=allow_changed,
        console=console(),
        changes={**dict(changed_fields(execution)), **pairs(changes)},
    )


def reproduce(run: Folder, out: MaybePath = None, allow_changed: bool = False) -> int:
    """Train a finished run again, same recipe and seed, and compare it step by step.

    Args:
        run: The finished run folder.
        out: Folder for the second run; RUN-again if left out. One that was begun is continued.
        allow_changed: Train although the data has changed since the first run.
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


def pairs(changes: tuple[str, ...]) -> dict[str, str]:
    """The value of every --set, by field."""
    found = {}
    for change in changes:
        field, _, value = change.partition("=")
        if not field or not value:
            raise ValueError(f"--set {field!r} needs a field and a value, such as schedule.peak=3e-4")
        found[field] = value
    return found
