"""The command `vitlab study`: tables and figures of the paper as grids of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.text import Text

from vitlab.commands import flags
from vitlab.commands.command_line import Flag
from vitlab.commands.terminal import command_line, console
from vitlab.recipe import AUTOMATIC, Execution


def study(
    names: Annotated[tuple[str, ...], Flag("[NAME ...]", is_positional=True)] = (),
    scale: Literal["paper", "small", "tiny"] = "tiny",
    data: Annotated[tuple[str, ...], Flag("NAME=PLACE", is_repeated=True)] = (),
    plan: bool = False,
    list: bool = False,
    seeds: int = 3,
    first_seed: int = 0,
    out: Path = Path("studies"),
    ledger: Annotated[Path | None, Flag("DIR")] = None,
    jobs: flags.Jobs = None,
    ray: flags.Ray = "",
    yes: flags.Yes = False,
    execution: Execution = AUTOMATIC,
) -> None:
    """Run tables and figures of the paper as grids of runs, at a scale of your choice: `vitlab study table8`.

    Each ends in a table and a figure beside the published numbers, and says what they mean for the paper's claims. If
    it was stopped or killed, the same command continues, and finished runs are not repeated.

    Args:
        names: The studies, one after another; --list names them, and all stands for all.
        scale: paper is the exact grid of the paper, small takes a day on a GPU, tiny under an hour on two cores.
        data: Where data is, by the names that --plan prints: --data cifar10=DIR.
        plan: Only print the runs, their exaFLOPs, the time on this device and the disk they need.
        list: List the studies.
        seeds: Number of runs of every cell.
        first_seed: The first of their seeds; the others follow.
        out: Folder for the runs, tables and figures of all studies; studies share equal trainings in it.
        ledger: Also write every result as a file in this folder.
    """
    from vitlab.runs.study.study import list_studies, study_names

    if list or not names:
        console().print(list_studies().terminal())
        return
    chosen = study_names(names)
    if plan:
        _print_plans(chosen, out, scale=scale, seeds=seeds, first_seed=first_seed, jobs=jobs or 1, execution=execution)
        return
    from vitlab.runs.study.study import study as run

    how: dict[str, Any] = {
        "scale": scale,
        "data": data,
        "seeds": seeds,
        "first_seed": first_seed,
        "jobs": jobs,
        "ray": ray,
    }
    how |= {"ledger": ledger, "yes": yes, "execution": execution, "command": command_line(), "console": console()}
    for name in chosen:
        found = run(name, out, **how)
        console().print(found.table.terminal())
        for one in found.verdicts:
            few = " (it takes 3 seeds or more)" * (one.answer == "not run yet")
            console().print(Text(f"{one.claim.name}: {one.answer}{few}", style="bold"), soft_wrap=True)
        if found.study.says:
            console().print(Text(f"the paper: {found.study.says}"), soft_wrap=True)
        console().print(Text(f"table and figure are in {out / found.study.name}"), soft_wrap=True)


def _print_plans(names: Sequence[str], out: Path, **how: Any) -> None:
    """Print what every study would run, and what all would together, since they share trainings."""
    from vitlab.runs.study.study import places_table, plan_study

    plans = [plan_study(name, out, **how) for name in names]
    for made in plans:
        if len(plans) == 1:
            console().print(made.table.terminal())
        console().print(Text(f"{made.study.name}: {made.in_words()}"), soft_wrap=True)
    first, *others = plans
    joined = first.together_with(others)
    if others:
        console().print(Text(f"together: {joined.in_words()}", style="bold"), soft_wrap=True)
    if (places := places_table(joined)).rows:
        console().print(places.terminal())


STUDYING: dict[str, Any] = {"study": study}
