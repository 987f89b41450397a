"""A table of results in every form it is read in; names that come from outside are data there, never instructions."""

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table as TerminalTable
from rich.text import Text

Cell = str | int | float | None
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would run, were it the beginning of a name

# Characters that begin markup, a link or another cell in Markdown.
MARKS = {ord(c): f"&#{ord(c)};" for c in "\\`*[]|"} | {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}


@dataclass(frozen=True)
class Results:
    """Rows of cells under columns; a missing value is None."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row does not have {len(self.columns)} cells")

    def terminal(self) -> TerminalTable:
        """For a console; control characters and escapes are shown, not obeyed."""
        table = TerminalTable(box=None, header_style="bold")
        for place, column in enumerate(self.columns):
            is_number = any(isinstance(row[place], int | float) for row in self.rows)
            table.add_column(Text(column), justify="right" if is_number else "left", no_wrap=is_number)
        for row in self.rows:
            cells = zip(self.columns, row, strict=True)
            table.add_row(*(Text(printable(_on_screen(column, cell))) for column, cell in cells))
        return table

    def to_csv(self) -> str:
        """With full precision; a name that a spreadsheet would take for a formula gets a quote in front."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([_spreadsheet(column) for column in self.columns])
        writer.writerows([[_spreadsheet(cell) for cell in row] for row in self.rows])
        return file.getvalue()

    def to_markdown(self) -> str:
        """A pipe table whose cells can hold neither markup nor another cell."""
        lines = [_line(map(_markdown, self.columns)), _line("---" for _ in self.columns)]
        lines += [_line(_markdown(shown(cell)) for cell in row) for row in self.rows]
        return "\n".join(lines) + "\n"

    def to_json(self) -> str:
        """A list of objects with full precision; NaN is null."""
        listed = [{column: _finite(cell) for column, cell in zip(self.columns, row, strict=True)} for row in self.rows]
        return json.dumps(listed, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def shown(cell: Cell) -> str:
    """A cell for people: numbers to four places, small ones to three digits, nothing for what is missing."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, float):
        if 0 < abs(cell) < 0.001:
            return f"{cell:.3g}"
        return f"{cell:.4f}".rstrip("0").rstrip(".")
    return f"{cell:,}" if isinstance(cell, int) else cell


def _on_screen(column: str, cell: Cell) -> str:
    """As `shown`, but percents to two places, which stand under each other; the files have them all."""
    if column.endswith("%") and isinstance(cell, float) and math.isfinite(cell):
        return f"{cell:.2f}"
    return shown(cell)


def printable(text: str) -> str:
    """Text of a stranger without control characters, direction marks or broken bytes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _spreadsheet(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return _finite(cell)
    plain = printable(cell)
    return f"'{plain}" if cell.lstrip(" ").startswith(FORMULA) else plain


def _markdown(text: str) -> str:
    return printable(text).translate(MARKS)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _finite(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell
