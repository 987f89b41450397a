"""vitlab pretrain, finetune, resume, reproduce."""

from pathlib import Path
from typing import Annotated, Literal

from rich.text import Text

from vitlab.commands import flags
from vitlab.commands.command_line import Flag
from vitlab.commands.recipes import recipes
from vitlab.commands.terminal import console
from vitlab.spec.changes import NO_CHANGES
from vitlab.spec.recipe import AUTOMATIC, Execution

Folder = Annotated[Path, Flag("RUN", "Run folder.", is_positional=True)]
Out = Annotated[Path | None, Flag("PATH", "Run folder (default: a new one under runs/).")]
Validation = Annotated[str, Flag("SPEC", "Images to validate on.")]
_HELD_OUT = "Share of the training images to hold out for validation (default: none; in fine-tuning, the recipe's)."
HeldOut = Annotated[float | None, Flag("FLOAT", _HELD_OUT)]
Test = Annotated[str, Flag("SPEC", "Images to test the trained model on.")]
Seed = Annotated[int, Flag("INT", "Seed of the initial weights, the order of the images and the augmentation.")]


def pretrain(
    recipe: Annotated[str, Flag("MODEL[@DATA]", is_positional=True)],
    data: flags.TrainingData,
    out: Out = None,
    image: flags.TrainingSize = "",
    objective: Literal["labels", "masked-patches"] = "labels",
    epochs: flags.Epochs = None,
    validation: Validation = "",
    held_out: HeldOut = None,
    test: Test = "",
    max_pixels: flags.MaxPixels = None,
    decode: flags.Decode = "exact",
    teacher: flags.Teacher = None,
    seed: Seed = 0,
    changes: flags.RecipeChanges = (),
    yes: flags.Yes = False,
    execution: Execution = AUTOMATIC,
) -> None:
    """Train a model from scratch with a recipe of the paper's table 3. Every field of the recipe is a flag, such as
    --schedule.peak 3e-4, --batch 256 or --model.layers 4; `vitlab recipes` lists the recipes, `vitlab recipes NAME`
    the fields of one.

    Args:
        recipe: A recipe such as ViT-B/16@imagenet21k, or a model: it gets the recipe of the nearest data size.
        objective: Learn the labels or, without labels, predict masked patches (--masking.target colours-4x4).
    """
    given = flags.arguments(locals(), console())
    from vitlab.runs.training.start import pretrain as start

    start(**given)


def finetune(
    model: flags.Model,
    data: flags.TrainingData,
    recipe: flags.Text = "",
    out: Out = None,
    image: flags.TrainingSize = "",
    merge: flags.Merge = None,
    attention: flags.Attention = None,
    epochs: flags.Epochs = None,
    validation: Validation = "",
    held_out: HeldOut = None,
    test: Test = "",
    max_pixels: flags.MaxPixels = None,
    decode: flags.Decode = "exact",
    teacher: flags.Teacher = None,
    seed: Seed = 0,
    changes: flags.RecipeChanges = (),
    yes: flags.Yes = False,
    execution: Execution = AUTOMATIC,
) -> None:
    """Fine-tune a trained model on your own images, as in the paper's table 4: new head, resized position embeddings.
    Every field of the recipe is a flag, such as --schedule.peak 0.003, --batch 64 or --frozen backbone;
    `vitlab recipes` lists the recipes, `vitlab recipes NAME` the fields of one, such as quick, the default on a CPU.

    Args:
        recipe: A recipe of table 4 such as cifar10, or quick (default: chosen from the size of the data, and printed).
    """
    given = flags.arguments(locals(), console())
    from vitlab.runs.training.start import finetune as start

    start(**given)


def resume(
    run: Folder,
    data: flags.Spec = "",
    validation: flags.Spec = "",
    test: flags.Spec = "",
    teacher: flags.MaybePath = None,
    allow_changed: bool = False,
    changes: flags.Changes = (),
    execution: flags.ChangedExecution = NO_CHANGES,
) -> None:
    """Continue a run that was stopped or killed from its last checkpoint; it ends as if never interrupted. Flags that
    do not change the result may be changed, such as --micro-batch 8, --workers 2, --recompute or --device cuda.

    Args:
        data: New place of the training images, if they have moved.
        validation: New place of the validation images, if they have moved.
        test: New place of the test images, if they have moved.
        teacher: New place of the teacher, if it has moved.
        allow_changed: Continue even if the data or run.json has changed; the result is then marked as not exact.
        changes: Another way to set one of these flags: --set micro_batch=8.
    """
    given = flags.arguments(locals(), console())
    given["changes"] |= given.pop("execution")
    from vitlab.runs.training.run import open_run

    open_run(given.pop("run")).resume(**given)


def reproduce(run: Folder, out: flags.MaybePath = None, allow_changed: bool = False) -> int:
    """Train a finished run again with the same recipe and seed, and compare the two step by step.

    Args:
        run: Folder of the finished run.
        out: Folder of the second run (default: RUN-again); an unfinished one is continued.
        allow_changed: Train even if the data has changed since the first run.
    """
    from vitlab.runs.training.run import reproduce as train_again

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
