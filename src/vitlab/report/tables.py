"""Tables of results for terminal, notebook, CSV, Markdown and JSON; untrusted names stay text in all of them."""

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from vitlab.drawing.page import html_table
from vitlab.errors import printable
from vitlab.files.store import write_text

Cell = str | int | float | None
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a cell that begins with one of these is a formula in a spreadsheet

# Characters that start markup, a link or a new cell in Markdown.
MARKS = str.maketrans(
    {"\\": "&#92;", "`": "&#96;", "*": "&#42;", "[": "&#91;", "]": "&#93;", "|": "&#124;"}
    | {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
)


class Tabular:
    """Prints its `table` as text, and displays it in a notebook."""

    @property
    def table(self) -> "Results":
        """The contents as a table."""
        raise NotImplementedError

    def __str__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


@dataclass(frozen=True, repr=False)
class Results:
    """A table: rows of cells under named columns, None for a missing value. A notebook displays it."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row does not have {len(self.columns)} cells")

    def __repr__(self) -> str:
        """The table as plain text."""
        screen = Console(file=io.StringIO(), width=1000, color_system=None)
        with screen.capture() as capture:
            screen.print(self.terminal())
        return "\n".join(line.rstrip() for line in capture.get().splitlines())

    def _repr_html_(self) -> str:
        return html_table(self.text())

    def text(self) -> list[list[str]]:
        """The heading and the rows as text for people."""
        cells = ([shown(cell, c) for c, cell in zip(self.columns, row, strict=True)] for row in self.rows)
        return [list(self.columns), *cells]

    def terminal(self) -> TerminalTable:
        """The table for a console; control characters and escape sequences are printed as text."""
        table = TerminalTable(box=None, header_style="bold")
        for place, column in enumerate(self.columns):
            is_number = any(isinstance(row[place], int | float) for row in self.rows)
            table.add_column(Text(column), justify="right" if is_number else "left", no_wrap=is_number)
        for cells in self.text()[1:]:
            table.add_row(*(Text(printable(cell)) for cell in cells))
        return table

    def save(self, path: Path) -> None:
        """Write the table as JSON, CSV and Markdown to files that differ in their suffix."""
        for suffix, text in ((".json", self.to_json()), (".csv", self.to_csv()), (".md", self.to_markdown())):
            write_text(path.with_name(path.name + suffix), text)

    def to_csv(self) -> str:
        """CSV with full precision; a name that looks like a formula gets a leading quote."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([spreadsheet(column) for column in self.columns])
        writer.writerows([[spreadsheet(cell) for cell in row] for row in self.rows])
        return file.getvalue()

    def to_markdown(self) -> str:
        """A Markdown table whose cells are escaped."""
        lines = [_line(map(_markdown, self.columns)), _line("---" for _ in self.columns)]
        lines += [_line(_markdown(shown(cell)) for cell in row) for row in self.rows]
        return "\n".join(lines) + "\n"

    def to_json(self) -> str:
        """A JSON list of objects with full precision; NaN becomes null."""
        listed = [{column: _finite(cell) for column, cell in zip(self.columns, row, strict=True)} for row in self.rows]
        return json.dumps(listed, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def shown(cell: Cell, column: str = "") -> str:
    """A cell as text: four decimals, three significant digits for small numbers, nothing for a missing value.

    Under a column of percentages it has two decimals, so that they line up.
    """
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, float):
        if column.endswith("%") and math.isfinite(cell):
            return f"{cell:.2f}"
        if 0 < abs(cell) < 0.001:
            return f"{cell:.3g}"
        return f"{cell:.4f}".rstrip("0").rstrip(".")
    return f"{cell:,}" if isinstance(cell, int) else cell


def spreadsheet(cell: Cell) -> Cell:
    """A cell of a CSV file: escapes for what cannot be printed, and a leading quote for what looks like a formula."""
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
