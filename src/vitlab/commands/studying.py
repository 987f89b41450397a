"""The command `vitlab study`: tables and figures of the paper as grids of runs."""

from pathlib import Path
from typing import Annotated, Any, Literal

from rich.text import Text

from vitlab.commands import flags
from vitlab.commands.command_line import Flag
from vitlab.commands.terminal import command_line, console
from vitlab.recipe import AUTOMATIC, Execution


def study(
    name: Annotated[str, Flag("[NAME]", is_positional=True)] = "",
    scale: Literal["paper", "small", "tiny"] = "tiny",
    data: Annotated[tuple[str, ...], Flag("NAME=PLACE", is_repeated=True)] = (),
    plan: bool = False,
    listed: Annotated[bool, Flag(name="list")] = False,
    seeds: int = 3,
    first_seed: int = 0,
    out: Path = Path("studies"),
    ledger: Annotated[Path | None, Flag("DIR")] = None,
    jobs: flags.Jobs = None,
    ray: flags.Ray = "",
    yes: flags.Yes = False,
    execution: Execution = AUTOMATIC,
) -> None:
    """Run a table or figure of the paper as a grid of runs, at a scale of your choice: `vitlab study table8`.

    It ends in a table and a figure beside the published numbers, and says what they mean for the paper's claims. If it
    was stopped or killed, the same command continues, and finished runs are not repeated.

    Args:
        name: The study; --list names them all.
        scale: paper is the exact grid of the paper, small takes a day on a GPU, tiny under an hour on two cores.
        data: Where data is, by the names that --plan prints: --data cifar10=DIR.
        plan: Only print the runs, their exaFLOPs, the time on this device and the disk they need.
        listed: List the studies.
        seeds: Number of runs of every cell.
        first_seed: The first of their seeds; the others follow.
        out: Folder for the runs, tables and figures of all studies; studies share equal trainings in it.
        ledger: Also write every result as a file in this folder.
    """
    from vitlab.runs.study.study import list_studies, places_table, plan_study
    from vitlab.runs.study.study import study as run

    if listed or not name:
        console().print(list_studies().terminal())
        return
    if plan:
        made = plan_study(
            name, out, scale=scale, seeds=seeds, first_seed=first_seed, jobs=jobs or 1, execution=execution
        )
        console().print(made.table.terminal())
        console().print(Text(made.in_words()), soft_wrap=True)
        if (places := places_table(made)).rows:
            console().print(places.terminal())
        return
    found = run(
        name, out, scale=scale, data=data, seeds=seeds, first_seed=first_seed, jobs=jobs, ray=ray, ledger=ledger,
        yes=yes, execution=execution, command=command_line(), console=console(),
    )  # fmt: skip
    console().print(found.table.terminal())
    for one in found.verdicts:
        console().print(Text(f"{one.claim.name}: {one.answer}", style="bold"), soft_wrap=True)
    if found.study.says:
        console().print(Text(f"the paper: {found.study.says}"), soft_wrap=True)
    console().print(Text(f"table and figure are in {out / found.study.name}"), soft_wrap=True)


STUDYING: dict[str, Any] = {"study": study}
