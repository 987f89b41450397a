"""The ledger as a table: each measured number beside the expected and the published ones."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitlab.drawing.page import Section, page, safe
from vitlab.files.store import write_text
from vitlab.paper.results import TABLE_2, TABLE_5, TABLE_6, TABLE_9
from vitlab.report.ledger import LEDGER, Entry, read
from vitlab.report.tables import Results, shown
from vitlab.require import check_arguments

COLUMNS = (
    *("model", "weights", "data", "metric", "expected", "from", "got", "off by", "s.e.", "spread", "runs", "n"),
    *("published", "when"),
)
ACCURACY = "top-1 %"  # how the metrics begin that are accuracies
ABOUT = "One row for each measurement of the ledger, beside the expected number and those of the paper."


@dataclass(frozen=True, repr=False)
class Report:
    """The table of a ledger, and remarks on lines that are not entries. A notebook displays the table."""

    table: Results
    remarks: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join([repr(self.table), *self.remarks])

    def _repr_html_(self) -> str:
        return self.table._repr_html_() + "".join(f"<p>{safe(remark)}</p>" for remark in self.remarks)


def read_report(ledger: str | Path = LEDGER, out: str | Path | None = None) -> Report:
    """Read a ledger as a table; with `out`, also write it to that folder as Markdown, HTML, CSV and JSON."""
    check_arguments(read_report, locals())
    entries, remarks = read(Path(ledger))
    found = Report(render(entries), tuple(remarks))
    if out is not None:
        write(Path(out), found.table)
    return found


def render(entries: Sequence[Entry]) -> Results:
    """One row for each measurement, in the order of the ledger."""
    return Results(COLUMNS, tuple(map(_row, entries)))


def write(out: Path, table: Results) -> None:
    """Write the table in every form."""
    table.save(out / "report")
    write_text(out / "report.html", page("Measured results", ABOUT, [_section(table)]))


def _section(table: Results) -> Section:
    """The table as a section of a page, without empty columns."""
    columns = zip(table.columns, *([shown(cell) for cell in row] for row in table.rows), strict=True)
    rows = list(zip(*(column for column in columns if not table.rows or any(column[1:])), strict=True))
    count = len(table.rows)
    text = f"{count:,} measurement{'' if count == 1 else 's'}, in the order of the ledger."
    return Section("The ledger", text, table=rows, wide=True)


def _row(entry: Entry) -> tuple[str | int | float | None, ...]:
    off = None if entry.expected is None else entry.got - entry.expected
    expected = (entry.expected, entry.expected_from, entry.got, off, _standard_error(entry), entry.spread)
    names = (entry.model, entry.weights, entry.data, entry.metric)
    return (*names, *expected, entry.runs, entry.n, _published(entry), entry.when)


def _standard_error(entry: Entry) -> float | None:
    """The sampling error of an accuracy in percent, from the number of samples."""
    if not entry.metric.startswith(ACCURACY) or not entry.n or not 0 <= entry.got <= 100:
        return None
    return math.sqrt(entry.got * (100 - entry.got) / entry.n)


def _published(entry: Entry) -> str:
    """Every published number for this model and task; they differ in pre-training data and run."""
    if not entry.task or not entry.metric.startswith(ACCURACY):
        return ""
    printed = []
    for found in published(entry.model, entry.task):
        deviation = "" if found.std is None else f" ± {found.std:.2f}"
        printed.append(f"{found.mean:.2f}{deviation} ({found.pretraining}, {found.source})")
    return "; ".join(printed)


@dataclass(frozen=True)
class Published:
    """A published accuracy in percent."""

    model: str
    pretraining: str
    task: str
    mean: float
    std: float | None
    source: str


def published(model: str = "", task: str = "", pretraining: str = "") -> list[Published]:
    """All published accuracies, or those of a model, a task or a pre-training data set."""
    wanted = {"model": model, "task": task, "pretraining": pretraining}
    return [one for one in _all() if all(given in ("", getattr(one, name)) for name, given in wanted.items())]


def _all() -> Iterator[Published]:
    for task, scores in TABLE_2.rows:
        for (model, data), score in zip(TABLE_2.columns, scores, strict=True):
            if score is not None:
                yield Published(model, data, task, score.mean, score.std, "table 2")
    for (data, task), values in TABLE_5.rows:
        for model, value in zip(TABLE_5.columns, values, strict=True):
            if value is not None:
                yield Published(model, data, task, value, None, "table 5")
    for (model, epochs), values in TABLE_6.rows:
        for task, value in zip(TABLE_6.columns, values, strict=True):
            if task != "exaFLOPs":
                yield Published(model, "JFT-300M", task, value, None, f"table 6, {epochs} epochs")
    for (model, data), values in TABLE_9.rows:
        for task, value in zip(TABLE_9.columns, values, strict=True):
            yield Published(model, data, "VTAB" if task == "Mean" else task, value, None, "table 9")
