"""The commands that fine-tune many times: sweep, transfer."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.text import Text

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
    numbers,
    shown_as,
    size_of,
)
from vitlab.commands.training import Changes, pairs
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
    """Fine-tune as the paper did: try a grid on a development split, retrain the best on everything, test; three times.

    Every run is a folder; stopped or killed, the same command continues. Any field of the recipe is a flag:
    `vitlab recipes NAME` lists them.

    Args:
        model: Weights of any supported format: a file, a folder, or a name that vitlab download lists.
        data: The training images, such as folder:photos?split=train.
        test: The images to report on; they are not looked at before the best is picked.
        recipe: A row of table 4 such as cifar10; chosen by the size of the data if left out, and told.
        rates: The learning rates to try; those of the recipe's row in table 4 if left out.
        grid: A field and the values to try, as --grid batch=64,128; several fields make all combinations.
        search: optuna draws points from --space instead of trying a grid.
        trials: Points that optuna draws.
        space: A field and its range, as --space schedule.peak=log:1e-4:1e-1; also linear, whole, choice:A,B.
        also: Recipes that compete as they are; bit-hyperrule for ResNets.
        seeds: Final runs, with seeds 0, 1, ...
        out: Folder for the runs, the choice and the result.
        jobs: Runs at a time, each in a process of its own; one after the other if left out.
        ray: Run on Ray: local for one on this machine with --jobs workers, or a cluster that sees the same folders.
        image: Resolution; the recipe's if left out.
        epochs: How often every image is seen; the recipe's number of steps if left out.
        validation: Images to pick on, instead of a part of the training images.
        held_out: The share of the training images to pick on; the recipe's if left out.
        teacher: A model of the same classes to learn from beside the labels, at every point.
        changes: A field of the recipe at every point, as --set schedule.total=500.
        ledger: Add the result to this ledger.
        yes: Start although it takes more than a day on this CPU.
    """
    from vitlab.runs.sweep.results import results_of
    from vitlab.runs.sweep.sweep import sweep as run

    outcome = run(
        model,
        data,
        test,
        out,
        recipe=recipe,
        rates=numbers(rates, "--rates"),
        grid=grid,
        trials=trials if search == "optuna" else 0,
        space=space,
        also=also,
        seeds=seeds,
        jobs=jobs,
        ray=ray,
        image=size_of(image),
        epochs=epochs,
        validation=validation,
        held_out=held_out,
        teacher=teacher,
        execution=execution,
        ledger=ledger,
        command=command_line(),
        yes=yes,
        console=console(),
        changes=pairs(changes),
    )
    console().print(results_of([outcome]).terminal())
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
    """Fine-tune a model on the paper's transfer sets, several times each: mean and deviation as in table 2.

    Every run is a folder; interrupted and started again, the command continues. Any field of the recipes is a flag:
    `vitlab recipes NAME` lists them.

    Args:
        model: Weights of any supported format, or a name that vitlab download lists.
        imagenet: Training and test data of ImageNet.
        cifar10: Training and test data, such as cifar10:DIR cifar10:DIR?split=test.
        cifar100: Training and test data of CIFAR-100.
        pets: Training and test data of Oxford-IIIT Pets.
        flowers: Training and test data of Oxford Flowers-102.
        sweep: Pick the learning rate of table 4 on a development split first, as the paper; auto: not on a CPU.
        out: Folder for the runs and the table.
        runs: Fine-tunings of each set, with seeds 0, 1, ...
        jobs: Runs at a time, each in a process of its own; one after the other if left out.
        ray: Run on Ray: local for one on this machine with --jobs workers, or a cluster that sees the same folders.
        image: Resolution; the recipes' if left out.
        changes: A field of the recipes, as --set schedule.peak=0.003.
        ledger: Add the results to this ledger.
        yes: Start although a run takes more than a day on this CPU.
    """
    from vitlab.runs.sweep.transfer import transfer as run

    given = {"imagenet": imagenet, "cifar10": cifar10, "cifar100": cifar100, "pets": pets, "flowers": flowers}
    table = run(
        model,
        {name: pair for name, pair in given.items() if pair is not None},
        out,
        sweep=sweep,
        runs=runs,
        jobs=jobs,
        ray=ray,
        image=size_of(image),
        execution=execution,
        ledger=ledger,
        command=command_line(),
        yes=yes,
        console=console(),
        changes=pairs(changes),
    )
    console().print(table.terminal())


SWEEPING: dict[str, Any] = {"sweep": sweep, "transfer": transfer}
