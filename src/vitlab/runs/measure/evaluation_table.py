"""The results of an evaluation: the table, the files in its folder, and its entries in the ledger."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from vitlab.data.loading.accounting import Account
from vitlab.engines.agreement import Agreement
from vitlab.files.store import write_json, write_text
from vitlab.files.strict_json import to_json
from vitlab.metrics.multilabel import AnyScores, MultiLabelScores
from vitlab.metrics.scores import Scores
from vitlab.report.answers import RESULTS, Mistake, MistakeList, NamedMistake, mistakes_file
from vitlab.report.ledger import Entry, append, check_ledger
from vitlab.report.tables import Cell, Results, Tabular
from vitlab.require import require

TASKS = {  # of the paper, by the kind of data, or of labels
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet",
    "ReaL": "ImageNet ReaL",
}
DETAILS = re.compile(r"(\d{2,})-(classes\.csv|confusion\.csv|mistakes\.json)")
WHAT = ("model", "data", "labels", "engine")
SINGLE = {"top-1 %": "top1", "top-5 %": "top5", "class mean %": "class_mean"}
MULTI = {"mAP %": "map", "F1 micro %": "f1_micro", "F1 macro %": "f1_macro", "threshold": ""}
LOSS = ("loss", "ECE %")
COUNTS = ("count", "skipped", "bad")
ABOUT = ("model", "architecture", "data", "labels", "preprocessing", "engine")  # in the JSON file


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
    engine: str = "plain"  # that computed the logits
    agreement: Agreement | None = None  # of an engine that does not give the plain model's logits

    @property
    def numbers(self) -> dict[str, float]:
        """The headline numbers by name, fractions between 0 and 1: top1, top5, loss, ece, ...; or map, f1_micro, ..."""
        return self.scores.numbers()

    def to_json(self) -> dict[str, object]:
        """The headline numbers and the account, as JSON values."""
        named = {name: getattr(self, name) for name in ABOUT}
        numbers = {name: None if value != value else value for name, value in self.numbers.items()}
        agreement = None if self.agreement is None else asdict(self.agreement)
        return {**named, "agreement": agreement, "numbers": numbers, "account": self.account.to_json()}

    @property
    def classes(self) -> Results:
        """The results of each class."""
        scores, rows = self.scores, []
        if isinstance(scores, Scores):
            rows = [(c, self.names[c], right, n, 100 * right / n) for c, (right, n) in scores.by_class().items()]
            return Results(("class", "name", "right", "count", "accuracy %"), tuple(rows))
        for number, one in scores.by_class().items():
            shares = [_percent(one[name]) for name in ("ap", "f1", "precision", "recall")]
            rows.append((number, self.names[number], int(one["samples"]), int(one["predicted"]), *shares))
        at = f"at {scores.threshold:g}"
        shown = ("samples", f"predicted {at}", "AP %", f"F1 % {at}", f"precision % {at}", f"recall % {at}")
        return Results(("class", "name", *shown), tuple(rows))

    @property
    def named_mistakes(self) -> MistakeList:
        """The worst mistakes with the names of their classes."""
        found = (
            NamedMistake(one.number, one.id, self.names[one.label], self.names[one.answer], one.probability, one.loss)
            for one in self.mistakes
        )
        return MistakeList(self.data, tuple(found))

    @property
    def confusion(self) -> Results | None:
        """Pairs of label and prediction with their counts, the most frequent first; None for a multi-label model."""
        if isinstance(self.scores, MultiLabelScores):
            return None
        cells = sorted(self.scores.confusion.items(), key=lambda cell: (-cell[1], cell[0]))
        lines = ((a, self.names[a], b, self.names[b], count) for (a, b), count in cells)
        return Results(("class", "name", "predicted", "predicted name", "count"), tuple(lines))


@dataclass(frozen=True, repr=False)
class Evaluation(Tabular):
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
        """Write the table (CSV, Markdown, JSON), classes, confusion matrices, worst mistakes and unreadable images.

        The details of an earlier, longer table in the same folder are removed.
        """
        out, rows = Path(out), self.rows
        write_text(out / "results.csv", self.table.to_csv())
        write_text(out / "results.md", self.table.to_markdown())
        write_json(out / RESULTS, [row.to_json() for row in rows])
        bad = [(row, sample) for row in rows for sample in row.account.quarantined.values()]
        named = [{"model": row.model, "data": row.data, **asdict(sample)} for row, sample in bad]
        write_json(out / "quarantine.json", named)
        details = {f"{number:02d}-classes.csv": row.classes for number, row in enumerate(rows, 1)}
        details |= {f"{number:02d}-confusion.csv": row.confusion for number, row in enumerate(rows, 1) if row.confusion}
        for name, table in details.items():
            write_text(out / name, table.to_csv())
        mistakes = {mistakes_file(number): row.named_mistakes for number, row in enumerate(rows, 1) if row.mistakes}
        for name, found in mistakes.items():
            write_json(out / name, to_json(found))
        for file in out.iterdir():
            if DETAILS.fullmatch(file.name) and file.name not in {*details, *mistakes}:
                file.unlink()

    __repr__ = Tabular.__str__


def results(rows: Sequence[Row]) -> Results:
    """The table of the headline numbers, in percent; it has the columns of both tasks if there are models of both."""
    is_multi = {isinstance(row.scores, MultiLabelScores) for row in rows}
    single, multi = is_multi != {True}, True in is_multi
    columns = [*WHAT, *(SINGLE if single else ()), *(MULTI if multi else ()), *(LOSS if single else LOSS[:1]), *COUNTS]
    return Results(tuple(columns), tuple(tuple(_cells(row).get(column) for column in columns) for row in rows))


def _cells(row: Row) -> dict[str, Cell]:
    """The cells of a row by column."""
    numbers, shares = row.numbers, {**SINGLE, **MULTI, "ECE %": "ece"}
    cells: dict[str, Cell] = {column: getattr(row, column) for column in WHAT}
    cells |= {column: 100 * numbers[name] for column, name in shares.items() if name in numbers}
    cells |= {"loss": numbers["loss"], "threshold": numbers.get("threshold"), "count": row.scores.count}
    return cells | {"skipped": int(numbers.get("skipped", 0)), "bad": len(row.account.quarantined)}


def _percent(share: float) -> float | None:
    return None if share != share else 100 * share


def record(
    rows: Sequence[Row], ledger: Path, command: str, expected: float | None = None, expected_from: str = ""
) -> None:
    """Add the top-1 accuracy, or the mAP, of every row to the ledger; `expected` needs a single row."""
    check_ledger(ledger, expected, expected_from, len(rows))
    entries = []
    for row in rows:
        name, number = ("mAP %", "map") if isinstance(row.scores, MultiLabelScores) else ("top-1 %", "top1")
        is_own = row.labels == "own"
        entry = Entry(
            model=row.architecture,
            data=row.data,
            metric=name if is_own else f"{name}, {row.labels} labels",
            got=100 * row.numbers[number],
            n=row.scores.count,
            command=command,
            expected=expected,
            expected_from=expected_from,
            weights=Path(row.model).name,
            engine=row.engine,
            task=TASKS.get(row.data.partition(":")[0], "") if is_own else TASKS.get(row.labels, ""),
        )
        entries += [entry] if row.scores.count else []
    append(ledger, entries)
