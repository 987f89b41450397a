"""The commands that fine-tune many times: sweep, transfer, vtab."""

from pathlib import Path
from typing import Annotated, Any, Literal

from rich.text import Text

from vitlab.commands import flags
from vitlab.commands.command_line import Flag
from vitlab.commands.terminal import command_line, console
from vitlab.spec.recipe import AUTOMATIC, Execution

TrainTest = Annotated[tuple[str, str] | None, Flag("TRAIN TEST")]


def sweep(
    model: flags.Model,
    data: flags.TrainingData,
    test: flags.Spec,
    recipe: flags.Text = "",
    rates: Annotated[str, Flag("A,B")] = "",
    grid: Annotated[tuple[str, ...], Flag("FIELD=A,B", is_repeated=True)] = (),
    search: Literal["grid", "optuna"] = "grid",
    trials: int = 20,
    space: Annotated[tuple[str, ...], Flag("FIELD=log:LOW:HIGH", is_repeated=True)] = (),
    also: Annotated[tuple[str, ...], Flag("RECIPE ...")] = (),
    seeds: int = 3,
    out: Path = Path("sweep"),
    jobs: flags.Jobs = None,
    ray: flags.Ray = "",
    image: flags.TrainingSize = "",
    epochs: flags.Epochs = None,
    validation: flags.Spec = "",
    held_out: flags.Number = None,
    teacher: flags.Teacher = None,
    changes: flags.RecipeChanges = (),
    ledger: flags.Ledger = None,
    yes: flags.Yes = False,
    execution: Execution = AUTOMATIC,
) -> None:
    """Fine-tune as in the paper: try a grid on a development split, retrain the best on all images, test; three times.

    Every run has its own folder. If it was stopped or killed, the same command continues. Every field of the recipe is
    a flag: `vitlab recipes NAME` lists them.

    Args:
        test: Images to report on; they are not used before the best point is picked.
        recipe: A recipe of table 4 such as cifar10 (default: chosen from the size of the data, and printed).
        rates: Learning rates to try (default: those of the recipe in table 4).
        grid: A field and the values to try: --grid batch=64,128; several fields give all combinations.
        search: Try a grid, or let optuna draw points from --space.
        trials: Number of points that optuna draws.
        space: A field and its range: --space schedule.peak=log:1e-4:1e-1; also linear, whole, choice:A,B.
        also: Further recipes to compare as they are; bit-hyperrule for ResNets.
        seeds: Number of final runs, with seeds 0, 1, ...
        out: Folder for the runs, the choice and the result.
        validation: Images to pick the best point on (default: a part of the training images).
        held_out: Share of the training images to pick the best point on (default: the recipe's).
    """
    given = flags.arguments(locals(), console()) | {"command": command_line()}
    from vitlab.runs.sweep.sweep import sweep as run

    outcome = run(**given)
    console().print(outcome.table.terminal())
    rank = f"the best of {outcome.points} points" if outcome.points > 1 else "the only point"
    console().print(Text(f"{outcome.point}, {rank}", style="dim"))


def transfer(
    model: flags.Model,
    imagenet: TrainTest = None,
    cifar10: TrainTest = None,
    cifar100: TrainTest = None,
    pets: TrainTest = None,
    flowers: TrainTest = None,
    sweep: Literal["auto", "yes", "no"] = "auto",
    out: Path = Path("transfer"),
    runs: int = 3,
    jobs: flags.Jobs = None,
    ray: flags.Ray = "",
    image: flags.TrainingSize = "",
    changes: flags.RecipeChanges = (),
    ledger: flags.Ledger = None,
    yes: flags.Yes = False,
    execution: Execution = AUTOMATIC,
) -> None:
    """Fine-tune a model several times on each of the paper's transfer sets: mean and deviation as in table 2.

    Every run has its own folder. If it was interrupted, the same command continues. Every field of the recipes is a
    flag: `vitlab recipes NAME` lists them.

    Args:
        imagenet: Training and test data of ImageNet.
        cifar10: Training and test data, such as cifar10:DIR cifar10:DIR?split=test.
        cifar100: Training and test data of CIFAR-100.
        pets: Training and test data of Oxford-IIIT Pets, such as pets:DIR pets:DIR?split=test.
        flowers: Training and test data of Oxford Flowers-102, such as flowers:DIR flowers:DIR?split=test.
        sweep: First pick the learning rate of table 4 on a development split, as in the paper; auto: not on a CPU.
        out: Folder for the runs and the table.
        runs: Number of runs on each set, with seeds 0, 1, ...
    """
    given = flags.arguments(locals(), console()) | {"command": command_line()}
    from vitlab.runs.sweep.transfer import transfer as run

    sets = {name: pair for name in TRANSFER_SETS if (pair := given.pop(name)) is not None}
    console().print(run(sets=sets, **given).terminal())


def vtab(
    model: flags.Model,
    root: Path,
    tasks: flags.Tasks = (),
    light: bool = False,
    test_images: Annotated[int | None, Flag("INT")] = None,
    out: Path = Path("vtab"),
    runs: int = 3,
    jobs: flags.Jobs = None,
    ray: flags.Ray = "",
    image: flags.TrainingSize = "",
    engine: flags.Engine = "torch",
    changes: flags.RecipeChanges = (),
    ledger: flags.Ledger = None,
    yes: flags.Yes = False,
    execution: Execution = AUTOMATIC,
) -> int:
    """Measure a model on the 19 tasks of VTAB-1k, fine-tuned on 1000 images each, beside table 9 of the paper.

    Tasks whose files are missing or damaged are reported, and the others run. If it was interrupted, the same command
    continues. Every field of the recipe is a flag: `vitlab recipes vtab` lists them.

    Args:
        root: The folder of the downloads; `vitlab data check vtab DIR` says what it lacks.
        light: Train no weights: ridge regression and a linear probe on features, at the model's own resolution.
        test_images: With --light, test on so many images of each task, drawn at random (default: all).
        out: Folder for the runs, the features and the table.
        runs: Number of runs on each task, with seeds 0, 1, ...
        engine: What computes the features of --light.
    """
    given = flags.arguments(locals(), console()) | {"command": command_line()}
    from vitlab.runs.vtab.measure import vtab as run

    found = run(**given)
    console().print(found.table.terminal())
    return 1 if found.problems else 0


TRANSFER_SETS = ("imagenet", "cifar10", "cifar100", "pets", "flowers")
SWEEPING: dict[str, Any] = {"sweep": sweep, "transfer": transfer, "vtab": vtab}
