"""vitlab pretrain, finetune, resume, reproduce."""

import contextlib
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
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
    complain,
    console,
    size_of,
)
from vitlab.interrupts import raise_when_interrupted
from vitlab.recipe import Execution

if TYPE_CHECKING:
    from vitlab.data.fingerprint import DataCard
    from vitlab.run_dir import RunSpec

Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Changes = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FIELD=VALUE", name="set")]
AUTOMATIC = Execution(device="auto", report=True)


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
) -> int:
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
    from vitlab.data.sources.catalogue import with_max_pixels
    from vitlab.runs.training.request import Asked, pretraining_run

    data, validation, test = (with_max_pixels(spec, max_pixels) for spec in (data, validation, test))
    asked = Asked(data, size_of(image), validation, held_out, test, seed, pairs(changes), teacher)
    names = recipe.partition("@")[0], _kind(data)

    def make(card: "DataCard", screen: Console) -> "RunSpec":
        return pretraining_run(recipe, card, asked, execution, epochs, screen, objective)

    return _start(out, names, data, execution, make, yes)


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
) -> int:
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
    from vitlab.data.sources.catalogue import with_max_pixels
    from vitlab.runs.training.request import Asked, finetuning_run

    data, validation, test = (with_max_pixels(spec, max_pixels) for spec in (data, validation, test))
    asked = Asked(data, size_of(image), validation, held_out, test, seed, pairs(changes), teacher)
    names = model.stem, _kind(data)

    def make(card: "DataCard", screen: Console) -> "RunSpec":
        return finetuning_run(model, recipe, card, asked, execution, screen, epochs)

    return _start(out, names, data, execution, make, yes)


def resume(
    run: Folder,
    data: Spec = "",
    validation: Spec = "",
    test: Spec = "",
    teacher: MaybePath = None,
    allow_changed: bool = False,
    execution: ChangedExecution = UNCHANGED,
    changes: Changes = (),
) -> int:
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
    from vitlab.runs.training.launch import resume_together
    from vitlab.runs.training.trainer import Places
    from vitlab.weights.load import located

    changed = (*changed_fields(execution), *pairs(changes))
    moved = "" if teacher is None else str(located(teacher).resolve())
    places = Places(data, validation, test, moved)
    with _named(run, "resume"):
        return _ended(*resume_together(run, console(), places=places, changes=changed, allow_changed=allow_changed))


def reproduce(run: Folder, out: MaybePath = None, allow_changed: bool = False) -> int:
    """Train a finished run again, same recipe and seed, and compare it step by step.

    Args:
        run: The finished run folder.
        out: Folder for the second run; RUN-again if left out. One that was begun is continued.
        allow_changed: Train although the data has changed since the first run.
    """
    from vitlab.runs.training.reproduce import reproduce as again

    with _named(run, "reproduce"):
        code, found = again(run, out or run.with_name(f"{run.name}-again"), console(), allow_changed=allow_changed)
    if found is None:
        return code
    said = "the same" if found.same_bits else "not the same"
    console().print(
        f"{found.same_losses:,} of {found.steps:,} losses are the same, the largest difference is "
        f"{found.largest_difference:g}; the last weights and optimizer are bit for bit {said}",
        highlight=False,
    )
    if found.changed and not found.same_bits:
        console().print(Text(f"they may differ because {'; '.join(found.changed)}"))
    return 0 if found.same_bits and found.same_losses == found.steps else 1


TRAINING_COMMANDS = {
    "recipes": recipes,
    "pretrain": pretrain,
    "finetune": finetune,
    "resume": resume,
    "reproduce": reproduce,
}


def _start(
    out: Path | None,
    names: tuple[str, str],
    data: str,
    execution: Execution,
    make: Callable[["DataCard", Console], "RunSpec"],
    is_wanted: bool,
) -> int:
    from vitlab.run_dir import RUN
    from vitlab.runs.training.launch import begin_together

    made = []

    def note(card: "DataCard", screen: Console) -> "RunSpec":
        made.append(make(card, screen))
        raise_when_interrupted()  # the next is the run's folder
        return made[0]

    try:
        return _ended(*begin_together(out, names, data, execution, note, console(), is_wanted=is_wanted))
    except KeyboardInterrupt:
        if not made or (out is not None and not (out / RUN).is_file()):
            raise
        how = "if a run is named above, vitlab resume continues it" if out is None else f"vitlab resume {out} continues"
        raise KeyboardInterrupt(f"stopped; {how}") from None


@contextlib.contextmanager
def _named(run: Path, command: str) -> Iterator[None]:
    """What opens data and teacher does not know the folder: its advice gets the folder's name and the command's."""
    try:
        yield
    except ValueError as error:
        told = str(error).replace("vitlab resume RUN ", f"vitlab {command} {shlex.quote(str(run))} ")
        error.args = (told,)
        raise


def _ended(code: int, path: Path | None) -> int:
    """Tell how to go on with a run that was stopped; its folder is given on one rank only."""
    if code and path:
        complain(f"stopped and saved; continue with: vitlab resume {path}")
    return code


def pairs(changes: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """(field, value) of every --set."""
    found = [tuple(change.partition("=")[::2]) for change in changes]
    for field, value in found:
        if not field or not value:
            raise ValueError(f"--set {field!r} needs a field and a value, such as schedule.peak=3e-4")
    return tuple((field, value) for field, value in found)


def _kind(data: str) -> str:
    """The last word of what names the data, for a folder's name."""
    return data.partition("?")[0].rstrip("/").rpartition("/")[2].rpartition(":")[2]
