"""The result of a sweep: a row of a table, and a line of the ledger."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitlab.report.ledger import Entry, append
from vitlab.report.report import published
from vitlab.report.tables import Cell, Results, Tabular

COLUMNS = ("data", "{metric} %", "std", "runs", "count", "recipe", "learning rate", "picked of", "published")


@dataclass(frozen=True)
class Outcome(Tabular):
    """The top-1 accuracy, or the mean average precision, of several runs on one data set, in percent."""

    task: str  # the paper's name of the data set, or empty
    data: str
    accuracies: tuple[float, ...]
    count: int  # test images, each scored in every run
    recipe: str
    learning_rate: float
    point: str
    points: int  # that were tried on development images; 1: nothing was picked
    metric: str = "top-1"  # or mAP, of a multi-label set
    model: str = ""
    weights: str = ""  # name of the run, file or folder

    @property
    def mean(self) -> float:
        """The mean of the runs."""
        return statistics.fmean(self.accuracies)

    @property
    def std(self) -> float | None:
        """The standard deviation of the runs, with n - 1; None for one run."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    @property
    def table(self) -> Results:
        """A table of this one row."""
        return results_of([self])


def results_of(rows: Sequence[Outcome]) -> Results:
    """A table of results, beside what the paper prints for the same model and data."""
    lines: list[tuple[Cell, ...]] = []
    for row in rows:
        found = published(row.model, row.task) if row.task else ()
        printed = "; ".join(f"{p.mean:.2f} ({p.pretraining}, {p.source})" for p in found)
        name, runs = row.task or row.data, len(row.accuracies)
        lines.append((name, row.mean, row.std, runs, row.count, row.recipe, row.learning_rate, row.points, printed))
    metric = " or ".join(dict.fromkeys(row.metric for row in rows))
    return Results(tuple(column.format(metric=metric) for column in COLUMNS), tuple(lines))


def record(rows: Sequence[Outcome], ledger: Path, command: str) -> None:
    """Append the results to the ledger."""
    entries = [
        Entry(
            model=row.model,
            data=row.data,
            metric=f"{row.metric} %, fine-tuned",
            got=row.mean,
            n=row.count,
            command=command,
            runs=len(row.accuracies),
            spread=row.std,
            weights=row.weights,
            task=row.task,
        )
        for row in rows
    ]
    append(ledger, entries)
