"""What an evaluation leaves behind: its table, the files beside it, and its lines in the ledger."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from vitlab.data.accounting import Account
from vitlab.evaluate.scores import Scores
from vitlab.report.ledger import Entry, append, check_ledger, versions
from vitlab.report.tables import Results
from vitlab.store import json_writer, replacing

TASKS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}  # kinds of data that are a task
DETAILS = re.compile(r"(\d{2,})-(classes|confusion)\.csv")
COLUMNS = ("model", "data", "labels", "top-1 %", "top-5 %", "class mean %", "loss", "ECE %", "count", "skipped", "bad")


@dataclass(frozen=True)
class Row:
    """One line of the table: a model on a set, by one kind of labels."""

    model: str
    architecture: str
    data: str
    labels: str  # own: the data's; ReaL; mapped: by a label map
    preprocessing: str
    names: tuple[str, ...]  # of the classes that compete
    scores: Scores
    account: Account


def results(rows: Sequence[Row]) -> Results:
    """The table."""
    lines = []
    for row in rows:
        scores = row.scores
        percents = [100 * value for value in (scores.accuracy, scores.top5_accuracy, scores.mean_class_accuracy)]
        counts = (scores.count, scores.skipped, len(row.account.quarantined))
        rest = (scores.mean_loss, 100 * scores.calibration_error, *counts)
        lines.append((row.model, row.data, row.labels, *percents, *rest))
    return Results(COLUMNS, tuple(lines))


def write(out: Path, rows: Sequence[Row], table: Results) -> None:
    """The table in its forms, and the details of every row; those of an earlier, longer table are removed."""
    details = [
        {
            "model": row.model,
            "architecture": row.architecture,
            "data": row.data,
            "labels": row.labels,
            "preprocessing": row.preprocessing,
            "numbers": {name: None if value != value else value for name, value in row.scores.numbers().items()},
            "account": row.account.to_json(),
        }
        for row in rows
    ]
    bad = [
        {"model": row.model, "data": row.data, **asdict(sample)}
        for row in rows
        for sample in row.account.quarantined.values()
    ]
    _put(out / "results.csv", table.to_csv())
    _put(out / "results.md", table.to_markdown())
    with replacing(out / "results.json") as temporary:
        json_writer(details)(temporary)
    with replacing(out / "quarantine.json") as temporary:
        json_writer(bad)(temporary)
    for file in out.iterdir():
        if (match := DETAILS.fullmatch(file.name)) and int(match[1]) > len(rows):
            file.unlink()
    for number, row in enumerate(rows, 1):
        _put(out / f"{number:02d}-classes.csv", _by_class(row).to_csv())
        _put(out / f"{number:02d}-confusion.csv", _confusion(row).to_csv())


def _by_class(row: Row) -> Results:
    found = row.scores.by_class().items()
    lines = ((label, row.names[label], right, count, 100 * right / count) for label, (right, count) in found)
    return Results(("class", "name", "right", "count", "accuracy %"), tuple(lines))


def _confusion(row: Row) -> Results:
    cells = sorted(row.scores.confusion.items(), key=lambda cell: (-cell[1], cell[0]))
    lines = ((a, row.names[a], b, row.names[b], count) for (a, b), count in cells)
    return Results(("class", "name", "predicted", "predicted name", "count"), tuple(lines))


def _put(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def record(
    rows: Sequence[Row], ledger: Path, command: str, expected: float | None = None, expected_from: str = ""
) -> None:
    """Add the top-1 accuracy of every row to the ledger; `expected` is for one row alone."""
    check_ledger(ledger, expected, expected_from, len(rows))
    when, made_by = datetime.now(UTC).isoformat(timespec="seconds"), versions()
    entries = [
        Entry(
            model=row.architecture,
            data=row.data,
            metric="top-1 %" if row.labels == "own" else f"top-1 %, {row.labels} labels",
            got=100 * row.scores.accuracy,
            n=row.scores.count,
            command=command,
            expected=expected,
            expected_from=expected_from,
            weights=Path(row.model).name,
            task=_task(row),
            when=when,
            versions=made_by,
        )
        for row in rows
        if row.scores.count
    ]
    append(ledger, entries)


def _task(row: Row) -> str:
    task = TASKS.get(row.data.partition(":")[0], "")
    return "ImageNet ReaL" if row.labels == "ReaL" else task if row.labels == "own" else ""
