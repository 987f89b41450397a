"""The command `vitlab study`: tables and figures of the paper as grids of runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.text import Text

from vitlab.commands import flags
from vitlab.commands.command_line import Flag
from vitlab.commands.terminal import command_line, console
from vitlab.spec.recipe import UNREPORTED, Execution

if TYPE_CHECKING:
    from vitlab.runs.study.by_name import Plans
    from vitlab.runs.study.study import StudyResult


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
    execution: Execution = UNREPORTED,
) -> None:
    """Run tables and figures of the paper as grids of runs, at a scale of your choice: `vitlab study table8`.

    Each ends in a table and a figure beside the published numbers, and says what they mean for the paper's claims. If
    it was stopped or killed, the same command continues, and finished runs are not repeated.

    Args:
        names: The studies, one after another; --list names them, and all stands for all.
        scale: paper is the exact grid of the paper, small takes a day on a GPU, tiny up to 90 minutes on two cores.
        data: Where data is, by the names that --plan prints: --data cifar10=DIR.
        plan: Only print the runs, their exaFLOPs, the time on this device and the disk they need.
        list: List the studies.
        seeds: Number of runs of every cell.
        first_seed: The first of their seeds; the others follow.
        out: Folder for the runs, tables and figures of all studies; studies share equal trainings in it.
        ledger: Also write every result as a file in this folder.
    """
    how: dict[str, Any] = {"scale": scale, "seeds": seeds, "first_seed": first_seed, "execution": execution}
    if list or not names:
        from vitlab.runs.study.study import list_studies

        console().print(list_studies().terminal())
        return
    if plan:
        from vitlab.runs.study.by_name import plan_studies

        _print_plans(plan_studies(names, out, jobs=jobs or 1, **how))
        return
    from vitlab.runs.study.by_name import run_studies

    how |= {"data": data, "jobs": jobs, "ray": ray, "ledger": ledger, "yes": yes}
    for found in run_studies(names, out, command=command_line(), console=console(), **how):
        _print_study(found, out)


def _print_plans(plans: "Plans") -> None:
    for table in plans.tables:
        console().print(table.terminal())
    for line in plans.lines():
        console().print(Text(line), soft_wrap=True)
    for table in plans.places:
        console().print(table.terminal())


def _print_study(found: "StudyResult", out: Path) -> None:
    console().print(found.table.terminal())
    for line in found.lines():
        console().print(Text(line), soft_wrap=True)
    console().print(Text(f"table and figure are in {out / found.study.name}"), soft_wrap=True)


STUDYING: dict[str, Any] = {"study": study}
