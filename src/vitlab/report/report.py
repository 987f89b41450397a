"""The ledger as a table, each number beside what was expected and what the paper printed."""

import math
from collections.abc import Sequence
from pathlib import Path

from vitlab.drawing.page import Section, page
from vitlab.report.ledger import Entry
from vitlab.report.published import published
from vitlab.report.tables import Results, shown
from vitlab.store import replacing

COLUMNS = (
    *("model", "weights", "data", "metric", "expected", "from", "got", "off by", "s.e.", "spread", "runs", "n"),
    *("published", "when"),
)
ACCURACY = "top-1 %"  # how the metrics begin that are accuracies
ABOUT = "One row for each measurement of the ledger, beside what was expected and what the paper printed."


def render(entries: Sequence[Entry]) -> Results:
    """One row for each measurement, in the order of the ledger."""
    return Results(COLUMNS, tuple(_row(entry) for entry in entries))


def write(out: Path, table: Results) -> None:
    """The table as files of every kind."""
    forms = {
        "report.csv": table.to_csv(),
        "report.md": table.to_markdown(),
        "report.json": table.to_json(),
        "report.html": page("What was measured", ABOUT, [_section(table)]),
    }
    for name, text in forms.items():
        with replacing(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _section(table: Results) -> Section:
    """The whole table, numbers as people read them, without columns that are empty."""
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
    """Of an accuracy in percent, from the number of samples alone: how far off is still nothing to wonder about."""
    if not entry.metric.startswith(ACCURACY) or not entry.n or not 0 <= entry.got <= 100:
        return None
    return math.sqrt(entry.got * (100 - entry.got) / entry.n)


def _published(entry: Entry) -> str:
    """Every number the paper prints for this model and task; they differ by the data of pre-training and the run."""
    if not entry.task or not entry.metric.startswith(ACCURACY):
        return ""
    printed = []
    for found in published(entry.model, entry.task):
        deviation = "" if found.std is None else f" ± {found.std:.2f}"
        printed.append(f"{found.mean:.2f}{deviation} ({found.pretraining}, {found.source})")
    return "; ".join(printed)
