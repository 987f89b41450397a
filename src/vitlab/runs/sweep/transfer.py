"""The paper's transfer table: a sweep on each of its data sets, mean and deviation of several runs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich.console import Console

from vitlab.jobs.mapping import workers_of
from vitlab.paper.finetuning import RUNS
from vitlab.paper.recipes.finetuning import TRANSFER_SLUGS, finetuning_recipe
from vitlab.paper.recipes.length import Length
from vitlab.report.ledger import check_ledger
from vitlab.report.tables import Results
from vitlab.require import check_arguments, require
from vitlab.runs.progress import default_console, say
from vitlab.runs.sweep.grid import PEAK, SweepOptions
from vitlab.runs.sweep.results import record, results_of
from vitlab.runs.sweep.sweep import run_sweep
from vitlab.runs.training.request import Request
from vitlab.runs.training.start import split_changes
from vitlab.spec import Image, image_size
from vitlab.spec.changes import NO_CHANGES
from vitlab.spec.recipe import AUTOMATIC, Execution
from vitlab.world.device import pick_device

Picking = Literal["auto", "yes", "no"]


def transfer(
    model: str | Path,
    sets: Mapping[str, tuple[str, str]],
    out: str | Path = "transfer",
    *,
    sweep: Picking = "auto",
    runs: int = RUNS,
    jobs: int | None = None,
    ray: str = "",
    image: Image | None = None,
    execution: Execution = AUTOMATIC,
    ledger: str | Path | None = None,
    command: str = "vitlab.transfer",
    yes: bool = False,
    quiet: bool = False,
    console: Console | None = None,
    changes: Mapping[str, object] = NO_CHANGES,
    **fields: object,
) -> Results:
    """Fine-tune several times on every data set of `sets`: its row of table 4 -> its training and test data.

    With `sweep` the learning rate is first picked on a development split, as in the paper; "auto" does so on an
    accelerator. Every run has a folder under `out`: the same call continues and repeats no finished run.
    """
    check_arguments(transfer, locals())
    require(bool(sets), f"no data was given; give training and test data of any of {', '.join(TRANSFER_SLUGS)}")
    execution, changed = split_changes(execution, {**changes, **fields})
    request = Request("", None if image is None else image_size(image), changes=changed, is_swept=True)
    options = SweepOptions(request, seeds=runs, execution=execution, workers=workers_of(jobs, ray), is_confirmed=yes)
    ledger = None if ledger is None else Path(ledger)
    check_ledger(ledger)
    out, screen = Path(out), default_console(console, quiet=quiet)
    is_picking = sweep == "yes" or (sweep == "auto" and pick_device(execution.device).type != "cpu")
    # Differs from the paper: `vitlab transfer` on a CPU takes each recipe's learning rate; `--sweep yes` picks it on a
    # development split.
    if not is_picking:
        say(screen, "learning rates are those of the recipes, not picked on a development split")
    rows = []
    for recipe, (train, test) in sets.items():
        how = replace(options, recipe=recipe, request=replace(request, data=train, test=test))
        if not is_picking and PEAK not in dict(changed):
            batch = str(dict(changed).get("batch", ""))  # if not a number, an error with the other fields
            length = Length(batch=int(batch) if batch.isdecimal() else None)
            how = replace(how, rates=(finetuning_recipe(recipe, length).schedule.peak,))
        rows.append(run_sweep(model, out / recipe, how, screen, TRANSFER_SLUGS[recipe]))
    table = results_of(rows)
    table.save(out / "transfer")
    if ledger is not None:
        record(rows, ledger, command)
    return table
