"""The commands that fine-tune many times: sweep, transfer."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.text import Text

from vitlab.commands.flags import Changes, arguments
from vitlab.commands.terminal import (
    Given,
    MaybeNumber,
    MaybePath,
    MaybeWhole,
    Size,
    Spec,
    Words,
    command_line,
    console,
    shown_as,
)
from vitlab.recipe import AUTOMATIC, Execution

Model = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
TrainTest = Annotated[tuple[str, str] | None, shown_as("TRAIN TEST")]
Grid = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FIELD=A,B")]
Space = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FIELD=log:LOW:HIGH")]


def sweep(
    model: Model,
    data: Given,
    test: Given,
    recipe: Words = "",
    rates: Annotated[str, shown_as("A,B")] = "",
    grid: Grid = (),
    search: Literal["grid", "optuna"] = "grid",
    trials: int = 20,
    space: Space = (),
    also: Annotated[tuple[str, ...], shown_as("RECIPE ...")] = (),
    seeds: int = 3,
    out: Path = Path("sweep"),
    jobs: MaybeWhole = None,
    ray: Annotated[str, shown_as("local|ADDRESS")] = "",
    image: Size = "",
    epochs: MaybeWhole = None,
    validation: Spec = "",
    held_out: MaybeNumber = None,
    teacher: MaybePath = None,
    execution: Annotated[Execution, tyro.conf.arg(name="")] = AUTOMATIC,
    changes: Changes = (),
    ledger: MaybePath = None,
    yes: bool = False,
) -> None:
    """Fine-tune as in the paper: try a grid on a development split, retrain the best on all images, test; three times.

    Every run has its own folder. If it was stopped or killed, the same command continues. Every field of the recipe is
    a flag: `vitlab recipes NAME` lists them.

    Args:
        model: Weights in any supported format: a file, a folder, or a name that `vitlab download` lists.
        data: Training images, such as folder:photos?split=train.
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
        jobs: Runs at a time, each in its own process (default: one after the other in this process).
        ray: Run on Ray: local, with --jobs workers here, or the address of a cluster that sees the same folders.
        image: Resolution (default: the recipe's).
        epochs: Passes over the training images (default: the recipe's number of steps).
        validation: Images to pick the best point on (default: a part of the training images).
        held_out: Share of the training images to pick the best point on (default: the recipe's).
        teacher: A model of the same classes to distill from, at every point.
        changes: Another way to set a field of the recipe at every point: --set schedule.total=500.
        ledger: Add the result to this ledger.
        yes: Start even if it takes more than a day on this CPU.
    """
    given = arguments(locals()) | {"command": command_line()}
    from vitlab.runs.sweep.sweep import sweep as run

    outcome = run(**given)
    console().print(outcome.table.terminal())
    console().print(Text(f"{outcome.point}, picked of {outcome.points} points", style="dim"))


def transfer(
    model: Model,
    imagenet: TrainTest = None,
    cifar10: TrainTest = None,
    cifar100: TrainTest = None,
    pets: TrainTest = None,
    flowers: TrainTest = None,
    sweep: Literal["auto", "yes", "no"] = "auto",
    out: Path = Path("transfer"),
    runs: int = 3,
    jobs: MaybeWhole = None,
    ray: Annotated[str, shown_as("local|ADDRESS")] = "",
    image: Size = "",
    execution: Annotated[Execution, tyro.conf.arg(name="")] = AUTOMATIC,
    changes: Changes = (),
    ledger: MaybePath = None,
    yes: bool = False,
) -> None:
    """Fine-tune a model several times on each of the paper's transfer sets: mean and deviation as in table 2.

    Every run has its own folder. If it was interrupted, the same command continues. Every field of the recipes is a
    flag: `vitlab recipes NAME` lists them.

    Args:
        model: Weights in any supported format, or a name that `vitlab download` lists.
        imagenet: Training and test data of ImageNet.
        cifar10: Training and test data, such as cifar10:DIR cifar10:DIR?split=test.
        cifar100: Training and test data of CIFAR-100.
        pets: Training and test data of Oxford-IIIT Pets.
        flowers: Training and test data of Oxford Flowers-102.
        sweep: First pick the learning rate of table 4 on a development split, as in the paper; auto: not on a CPU.
        out: Folder for the runs and the table.
        runs: Number of runs on each set, with seeds 0, 1, ...
        jobs: Runs at a time, each in its own process (default: one after the other in this process).
        ray: Run on Ray: local, with --jobs workers here, or the address of a cluster that sees the same folders.
        image: Resolution (default: the recipes').
        changes: Another way to set a field of the recipes: --set schedule.peak=0.003.
        ledger: Add the results to this ledger.
        yes: Start even if a run takes more than a day on this CPU.
    """
    given = arguments(locals()) | {"command": command_line()}
    from vitlab.runs.sweep.transfer import transfer as run

    sets = {name: pair for name in TRANSFER_SETS if (pair := given.pop(name)) is not None}
    console().print(run(sets=sets, **given).terminal())


TRANSFER_SETS = ("imagenet", "cifar10", "cifar100", "pets", "flowers")
SWEEPING: dict[str, Any] = {"sweep": sweep, "transfer": transfer}
