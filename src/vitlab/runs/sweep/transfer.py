"""The paper's transfer table: a sweep over each of its sets; mean and deviation over several runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from rich.console import Console

from vitlab.paper.models import name_of
from vitlab.paper.recipes.finetuning import TRANSFER_SLUGS, finetuning_recipe
from vitlab.paper.recipes.length import Length
from vitlab.require import require
from vitlab.runs.progress import say
from vitlab.runs.sweep.grid import PEAK, SweepOptions
from vitlab.runs.sweep.results import Outcome, results_of, write_table
from vitlab.runs.sweep.sweep import sweep
from vitlab.weights.load import load_model
from vitlab.world.device import pick_device


@dataclass(frozen=True)
class TransferOptions:
    """How the sets are learnt; the recipe of each is its row of table 4.

    `picking` the learning rate on a development split is the paper's way; `auto` does so where there is an accelerator.
    """

    sweep: SweepOptions = field(default_factory=SweepOptions)
    picking: Literal["auto", "yes", "no"] = "auto"


def transfer(
    model: Path, sets: Mapping[str, tuple[str, str]], out: Path, options: TransferOptions, console: Console
) -> tuple[int, list[Outcome]]:
    """Sweep over every set (recipe -> training and test data); the exit code and the rows.

    Every run is a folder under `out`: what is finished is not run again, what was stopped continues.
    """
    require(bool(sets), f"no data was given; give training and test data of any of {', '.join(TRANSFER_SLUGS)}")
    device = pick_device(options.sweep.execution.device).type
    is_picking = options.picking == "yes" or (options.picking == "auto" and device != "cpu")
    # Differs from the paper: `vitlab transfer` on a CPU takes each recipe's learning rate; `--sweep yes` picks it on a
    # development split.
    if not is_picking:
        say(console, "learning rates are those of the recipes, not picked on a development split; --sweep yes picks")
    rows = []
    for recipe, (train, test) in sets.items():
        how = replace(options.sweep, recipe=recipe)
        if not is_picking and PEAK not in dict(how.changes):
            batch = dict(how.changes).get("batch", "")  # one that is no number is refused with the other fields
            length = Length(batch=int(batch) if batch.isdecimal() else None)
            how = replace(how, rates=(finetuning_recipe(recipe, length).schedule.peak,))
        code, row = sweep(model, train, test, out / recipe, how, console, TRANSFER_SLUGS[recipe])
        if row is None:
            return code, rows
        rows.append(row)
    table = results_of(rows, name_of(load_model(model).spec))
    console.print(table.terminal())
    write_table(table, out, "transfer")
    return 0, rows
