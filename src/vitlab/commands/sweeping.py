"""The commands that fine-tune many times: sweep, transfer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitlab.commands.terminal import (
    Given,
    MaybeNumber,
    MaybePath,
    MaybeWhole,
    Size,
    Spec,
    Words,
    command_line,
    complain,
    console,
    shown_as,
    size_of,
)
from vitlab.commands.training import AUTOMATIC, Changes, pairs
from vitlab.recipe import Execution

if TYPE_CHECKING:
    from vitlab.jobs.job import Workers

Model = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
TrainTest = Annotated[tuple[str, str] | None, shown_as("TRAIN TEST")]
Grid = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FIELD=A,B")]
Space = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FIELD=log:LOW:HIGH")]
CONTINUE = "stopped and saved; the same command continues"


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
    validation: Spec = "",
    held_out: MaybeNumber = None,
    teacher: MaybePath = None,
    execution: Annotated[Execution, tyro.conf.arg(name="")] = AUTOMATIC,
    changes: Changes = (),
    ledger: MaybePath = None,
    yes: bool = False,
) -> int:
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
        validation: Images to pick on, instead of a part of the training images.
        held_out: The share of the training images to pick on; the recipe's if left out.
        teacher: A model of the same classes to learn from beside the labels, at every point.
        changes: A field of the recipe at every point, as --set schedule.total=500.
        ledger: Add the result to this ledger.
        yes: Start although it takes more than a day on this CPU.
    """
    from vitlab.report.ledger import check_ledger
    from vitlab.runs.sweep.grid import SweepOptions
    from vitlab.runs.sweep.results import record, show
    from vitlab.runs.sweep.sweep import sweep as run

    if search == "optuna" and trials < 1:
        raise ValueError(f"{trials} trials; a search needs at least 1")
    options = SweepOptions(
        recipe=recipe,
        rates=_rates(rates),
        grid=grid,
        space=space,
        trials=trials if search == "optuna" else 0,
        also=also,
        seeds=seeds,
        image=size_of(image),
        validation=validation,
        held_out=held_out,
        teacher=teacher,
        changes=pairs(changes),
        execution=execution,
        workers=_workers(jobs, ray),
        is_wanted=yes,
    )
    check_ledger(ledger)
    code, outcome = run(model, data, test, out, options, console())
    if outcome is None:
        complain(CONTINUE)
        return code
    show(outcome, model, console())
    if ledger is not None:
        record([outcome], model, ledger, command_line())
    return 0


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
) -> int:
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
    from vitlab.report.ledger import check_ledger
    from vitlab.runs.sweep.grid import SweepOptions
    from vitlab.runs.sweep.results import record
    from vitlab.runs.sweep.transfer import TransferOptions
    from vitlab.runs.sweep.transfer import transfer as run

    given = {"imagenet": imagenet, "cifar10": cifar10, "cifar100": cifar100, "pets": pets, "flowers": flowers}
    sets = {name: pair for name, pair in given.items() if pair is not None}
    options = SweepOptions(
        seeds=runs,
        image=size_of(image),
        changes=pairs(changes),
        execution=execution,
        workers=_workers(jobs, ray),
        is_wanted=yes,
    )
    check_ledger(ledger)
    code, rows = run(model, sets, out, TransferOptions(options, sweep), console())
    if code:
        complain(CONTINUE)
    elif ledger is not None:
        record(rows, model, ledger, command_line())
    return code


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(rate) for rate in text.split(",")) if text else ()
    except ValueError:
        raise ValueError(f"--rates {text!r} must be numbers with commas between them, such as 0.001,0.003") from None


def _workers(jobs: int | None, ray: str) -> "Workers":
    from vitlab.jobs.job import Here, Processes, Ray
    from vitlab.jobs.on_ray import require_ray

    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs {jobs}; at least 1 run at a time is needed")
    if ray:
        require_ray()  # before the weights take their time
        return Ray(ray, jobs or RAY_JOBS)
    return Processes(jobs) if jobs is not None and jobs > 1 else Here()


RAY_JOBS = 2  # at a time, where nobody says how many
SWEEPING: dict[str, Any] = {"sweep": sweep, "transfer": transfer}
