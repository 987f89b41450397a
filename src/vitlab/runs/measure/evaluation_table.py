"""The results of an evaluation: the table, the files in its folder, and its entries in the ledger."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from vitlab.data.loading.accounting import Account
from vitlab.metrics.answers import Mistake
from vitlab.metrics.multilabel import AnyScores, MultiLabelScores
from vitlab.metrics.scores import Scores
from vitlab.report.ledger import Entry, append, check_ledger, versions
from vitlab.report.tables import Cell, Results
from vitlab.require import require
from vitlab.store import json_writer, replacing

TASKS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}  # tasks of the paper
DETAILS = re.compile(r"(\d{2,})-(classes|confusion)\.csv")
WHAT = ("model", "data", "labels")
SINGLE = ("top-1 %", "top-5 %", "class mean %")
MULTI = ("mAP %", "F1 micro %", "F1 macro %", "threshold")
COUNTS = ("count", "skipped", "bad")


@dataclass(frozen=True)
class Row:
    """One row of the table: a model on a data set, scored against one kind of labels."""

    model: str
    architecture: str
    data: str
    labels: str  # "own": the data's; "ReaL"; "mapped": by a label map
    preprocessing: str
    names: tuple[str, ...]  # of the classes that compete
    scores: AnyScores
    account: Account
    mistakes: tuple[Mistake, ...] = ()  # the worst first; single-label models only

    @property
    def numbers(self) -> dict[str, float]:
        """The headline numbers by name, fractions between 0 and 1: top1, top5, loss, ece, ...; or map, f1_micro, ..."""
        return self.scores.numbers()

    @property
    def classes(self) -> Results:
        """The results of each class."""
        if isinstance(self.scores, MultiLabelScores):
            return _precision_by_class(self, self.scores)
        return _by_class(self, self.scores)

    @property
    def confusion(self) -> Results | None:
        """Pairs of label and prediction with their counts, the most frequent first; None for a multi-label model."""
        return None if isinstance(self.scores, MultiLabelScores) else _confusion(self, self.scores)


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The results of `evaluate`, one row for each model, data set and kind of labels. A notebook displays the table."""

    rows: tuple[Row, ...]

    @property
    def table(self) -> Results:
        """The headline numbers of all rows, in percent."""
        return results(self.rows)

    @property
    def numbers(self) -> dict[str, float]:
        """The headline numbers of the only row, by name; see `Row.numbers`."""
        require(len(self.rows) == 1, f"there are {len(self.rows)} rows; use .rows[number].numbers")
        return self.rows[0].numbers

    def save(self, out: str | Path) -> None:
        """Write the table (CSV, Markdown, JSON), the classes, the confusion matrices and the unreadable images."""
        write(Path(out), self.rows, self.table)

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def results(rows: Sequence[Row]) -> Results:
    """The table of the headline numbers; it has the columns of both tasks if there are models of both."""
    is_multi = [isinstance(row.scores, MultiLabelScores) for row in rows]
    columns = [*WHAT, *(() if all(is_multi) and rows else SINGLE), *(MULTI if any(is_multi) else ()), "loss"]
    columns += [*(() if all(is_multi) and rows else ["ECE %"]), *COUNTS]
    return Results(tuple(columns), tuple(tuple(_cells(row).get(column) for column in columns) for row in rows))


def _cells(row: Row) -> dict[str, Cell]:
    """The cells of a row by column."""
    numbers, bad = row.numbers, len(row.account.quarantined)
    cells: dict[str, Cell] = {"model": row.model, "data": row.data, "labels": row.labels, "loss": numbers["loss"]}
    named = {
        **dict(zip(SINGLE, ("top1", "top5", "class_mean"), strict=True)),
        **dict(zip(MULTI, ("map", "f1_micro", "f1_macro"), strict=False)),
        "ECE %": "ece",
    }
    cells |= {column: 100 * numbers[name] for column, name in named.items() if name in numbers}
    return cells | {"threshold": numbers.get("threshold"), "count": row.scores.count, "bad": bad,
                    "skipped": int(numbers.get("skipped", 0))}  # fmt: skip


def write(out: Path, rows: Sequence[Row], table: Results) -> None:
    """Write the table in all forms and the details of every row; removes those of an earlier, longer table."""
    details = [
        {
            "model": row.model,
            "architecture": row.architecture,
            "data": row.data,
            "labels": row.labels,
            "preprocessing": row.preprocessing,
            "numbers": {name: None if value != value else value for name, value in row.numbers.items()},
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
        _put(out / f"{number:02d}-classes.csv", row.classes.to_csv())
        confusion, path = row.confusion, out / f"{number:02d}-confusion.csv"
        if confusion is None:
            path.unlink(missing_ok=True)  # of an earlier evaluation
        else:
            _put(path, confusion.to_csv())


def _precision_by_class(row: Row, scores: MultiLabelScores) -> Results:
    lines = []
    for number, one in scores.by_class().items():
        shares = [_percent(one[name]) for name in ("ap", "f1", "precision", "recall")]
        lines.append((number, row.names[number], int(one["samples"]), int(one["predicted"]), *shares))
    at = f"at {scores.threshold:g}"
    shown = ("samples", f"predicted {at}", "AP %", f"F1 % {at}", f"precision % {at}", f"recall % {at}")
    columns = ("class", "name", *shown)
    return Results(columns, tuple(lines))


def _percent(share: float) -> float | None:
    return None if share != share else 100 * share


def _by_class(row: Row, scores: Scores) -> Results:
    found = scores.by_class().items()
    lines = ((label, row.names[label], right, count, 100 * right / count) for label, (right, count) in found)
    return Results(("class", "name", "right", "count", "accuracy %"), tuple(lines))


def _confusion(row: Row, scores: Scores) -> Results:
    cells = sorted(scores.confusion.items(), key=lambda cell: (-cell[1], cell[0]))
    lines = ((a, row.names[a], b, row.names[b], count) for (a, b), count in cells)
    return Results(("class", "name", "predicted", "predicted name", "count"), tuple(lines))


def _put(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def record(
    rows: Sequence[Row], ledger: Path, command: str, expected: float | None = None, expected_from: str = ""
) -> None:
    """Add the top-1 accuracy, or the mAP, of every row to the ledger; `expected` needs a single row."""
    check_ledger(ledger, expected, expected_from, len(rows))
    when, made_by = datetime.now(UTC).isoformat(timespec="seconds"), versions()
    entries = [
        Entry(
            model=row.architecture,
            data=row.data,
            metric=_metric(row),
            got=100 * row.numbers["map" if isinstance(row.scores, MultiLabelScores) else "top1"],
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


def _metric(row: Row) -> str:
    name = "mAP %" if isinstance(row.scores, MultiLabelScores) else "top-1 %"
    return name if row.labels == "own" else f"{name}, {row.labels} labels"


def _task(row: Row) -> str:
    task = TASKS.get(row.data.partition(":")[0], "")
    return "ImageNet ReaL" if row.labels == "ReaL" else task if row.labels == "own" else ""
