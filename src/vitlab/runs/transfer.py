"""The paper's transfer table: a model fine-tuned on each of its sets several times, mean and deviation."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from vitlab.paper.finetuning import RUNS
from vitlab.paper.models import name_of
from vitlab.paper.recipes import TRANSFER_SLUGS
from vitlab.recipe import Execution
from vitlab.report.ledger import Entry, append, versions
from vitlab.report.published import published
from vitlab.report.tables import Cell, Results
from vitlab.run_dir import RESULT, RUN, RunDir
from vitlab.runs.starting import Asked, create, finetuning_run
from vitlab.runs.training import carry_out
from vitlab.store import replacing
from vitlab.strict_json import read_json, require
from vitlab.weights.load import load_model

COLUMNS = ("data", "top-1 %", "std", "runs", "count", "learning rate", "published")


@dataclass(frozen=True)
class TransferOptions:
    """How the sets are learnt; the recipe of each is its row of table 4."""

    runs: int = RUNS
    image: tuple[int, int] | None = None
    execution: Execution = field(default_factory=lambda: Execution(device="auto"))
    changes: tuple[tuple[str, str], ...] = ()  # of the recipe
    is_wanted: bool = False  # although it takes more than a day on a CPU


@dataclass(frozen=True)
class Transfer:
    """The accuracy on one set over several runs, in percent."""

    task: str
    data: str
    accuracies: tuple[float, ...]
    count: int  # test images, each scored in every run
    learning_rate: float

    @property
    def mean(self) -> float:
        """Over the runs."""
        return statistics.fmean(self.accuracies)

    @property
    def std(self) -> float | None:
        """Of a sample: divided by runs - 1; None for one run."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None


def transfer(
    model: Path, sets: Mapping[str, tuple[str, str]], out: Path, options: TransferOptions, console: Console
) -> tuple[int, list[Transfer]]:
    """Fine-tune on every set (recipe -> training and test data), once for each seed; the exit code and the rows.

    Every run is a folder under `out`: what is finished is not run again, what was stopped continues.
    """
    # Differs from the paper: the learning rate is the recipe's, not picked on a development split.
    require(bool(sets), f"no data was given; give training and test data of any of {', '.join(TRANSFER_SLUGS)}")
    require(options.runs >= 1, f"{options.runs} runs; at least 1 is needed")
    rows = []
    for recipe, (train, test) in sets.items():
        results = []
        for seed in range(options.runs):
            folder = out / recipe / f"seed-{seed}"
            run = _opened(folder, model, recipe, train, test, seed, options, console)
            if code := carry_out(run, console):
                return code, rows
            results.append((run.spec(), _test_result(folder)))
        accuracies = tuple(100 * float(found["top1"]) for _, found in results)
        rate = results[0][0].recipe.schedule.peak
        rows.append(Transfer(TRANSFER_SLUGS[recipe], test, accuracies, int(results[0][1]["count"]), rate))
    table = results_of(rows, name_of(load_model(model).spec))
    console.print(table.terminal())
    console.print(Text("learning rates are those of the recipes, not picked on a development split", style="dim"))
    for suffix, text in (("csv", table.to_csv()), ("md", table.to_markdown()), ("json", table.to_json())):
        with replacing(out / f"transfer.{suffix}") as temporary:
            temporary.write_text(text, encoding="utf-8")
    return 0, rows


def results_of(rows: list[Transfer], model: str) -> Results:
    """The table, with what the paper prints for a model of that name."""
    lines: list[tuple[Cell, ...]] = []
    for row in rows:
        printed = "; ".join(f"{p.mean:.2f} ({p.pretraining}, {p.source})" for p in published(model, row.task))
        lines.append((row.task, row.mean, row.std, len(row.accuracies), row.count, row.learning_rate, printed))
    return Results(COLUMNS, tuple(lines))


def record(rows: list[Transfer], model: Path, ledger: Path, command: str) -> None:
    """Add the rows to the ledger."""
    name, when, made_by = name_of(load_model(model).spec), datetime.now(UTC).isoformat(timespec="seconds"), versions()
    entries = [
        Entry(
            model=name,
            data=row.data,
            metric="top-1 %, fine-tuned",
            got=row.mean,
            n=row.count,
            command=command,
            runs=len(row.accuracies),
            spread=row.std,
            weights=model.name,
            task=row.task,
            when=when,
            versions=made_by,
        )
        for row in rows
    ]
    append(ledger, entries)


def _opened(
    folder: Path, model: Path, recipe: str, train: str, test: str, seed: int, options: TransferOptions, console: Console
) -> RunDir:
    """The run of a seed: a new one, or the one that is there, if it is of the same model and data."""
    asked = Asked(train, options.image, held_out=0.0, test=test, seed=seed, changes=options.changes)
    wanted = finetuning_run(model, recipe, asked, options.execution, console)
    if not (folder / RUN).exists():
        return create(folder, wanted, console, is_wanted=options.is_wanted)
    run = RunDir.open(folder)
    found = run.spec()
    same = replace(found, start="", execution=wanted.execution) == replace(wanted, start="")
    require(same, f"{folder} holds another run: other weights, data or recipe; choose another --out")
    return run


def _test_result(folder: Path) -> dict[str, Any]:
    result = cast(dict[str, Any], read_json(folder / RESULT))
    require(isinstance(result.get("test"), dict), f"{folder / RESULT} has no test numbers")
    return result["test"]
