"""The paper's protocol of fine-tuning: try a grid on a development split, take the best, retrain on everything, test.

    OUT/sweep.json         what was asked for; something else in the same folder is refused
    OUT/contents.npz       what the images hold, which must not change
    OUT/grid/POINT/        a run folder for each point, trained without the development images and judged on them
    OUT/choice.json        the points, their numbers, the pick and why; points.csv, .md and .json are the table of it
    OUT/final/seed-N/      a run folder for each seed, trained on everything with what was picked, and tested
    OUT/result.json        mean and deviation; .csv and .md beside it

Nothing else is remembered: a sweep that was killed is started again, and what is finished is not run again.
"""

from pathlib import Path

from rich.console import Console

from vitlab.paper.models import name_of
from vitlab.require import require
from vitlab.run_dir import RESULT
from vitlab.runs.progress import say
from vitlab.runs.sweep.grid import SweepOptions
from vitlab.runs.sweep.plan import Stopped, make_plan
from vitlab.runs.sweep.request import SWEEP, remember, remember_contents
from vitlab.runs.sweep.results import Outcome, results_of, write_table
from vitlab.runs.sweep.selection import pick, table_of, write_choice
from vitlab.store import locked, refuse_strange, refuse_unwritable
from vitlab.weights.load import load_model


def sweep(
    model: Path, data: str, test: str, out: Path, options: SweepOptions, console: Console, task: str = ""
) -> tuple[int, Outcome | None]:
    """Pick on a development split, retrain on everything with every seed, test; the exit code and what was found.

    Stopped or killed, the same call continues. `task` is the paper's name of the data, if it is one of its sets.
    """
    require(options.seeds >= 1, f"{options.seeds} seeds; at least 1 is needed to report anything")
    require(bool(test), "a sweep reports on test images; give --test")
    refuse_unwritable(out)
    refuse_strange(out, (SWEEP,))
    plan = make_plan(model, data, test, out, options, console)
    plan.announce()
    with locked(out), plan.crew:
        remember(out, plan.asked())
        remember_contents(out, plan.sets, plan.fingerprints, console)
        try:
            points = plan.judge_all()
            picked, why = pick(points)
            write_table(table_of(points), out, "points")
            write_choice(out, plan.split if plan.is_picking else None, points, picked, why)
            if len(points) > 1:
                console.print(table_of(points).terminal())
            say(console, f"pick    {picked.point.name}: {why}")
            outcome = plan.finish(picked, len(points), task)
        except Stopped as stopped:
            return stopped.code, None
        write_table(results_of([outcome], name_of(load_model(model).spec)), out, Path(RESULT).stem)
        return 0, outcome
