"""Images as files, listed with their labels in a CSV or TSV table."""

import csv
import os
import posixpath
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NoReturn

import numpy as np

from vitlab.data.class_names import are_numbers, class_number, in_order
from vitlab.data.source import Labels
from vitlab.data.sources.folders import Files, FilesSource
from vitlab.files.user_files import stream_text
from vitlab.require import require


class CsvSource(FilesSource):
    """A CSV or TSV file with a header: a column of paths below `root` (default: the file's folder) and one of labels.

    With a `separator` ("a;b"), a row may have any number of labels; without one, exactly one. `classes` fixes the class
    names. By default they are the labels found, sorted, or "0" to the largest if all are whole numbers (see
    `class_names.py`). With `numbers="names"`, whole numbers are names like any others.
    """

    def __init__(
        self,
        path: Path,
        root: Path | None = None,
        *,
        column: str = "path",
        label: str = "label",
        separator: str = "",
        numbers: Literal["", "names"] = "",
        classes: Sequence[str] = (),
    ) -> None:
        require(root is None or Path(root).is_dir(), f"root {root} is not a folder; give the folder of the images")
        if not Path(path).exists() and not Path(path).is_symlink():
            raise FileNotFoundError(f"{path} does not exist; give a CSV or TSV file with a header, such as path,label")
        table = _Table(Path(path), column, label, separator)
        self.files = Files(table.file.parent if root is None else Path(root), table.paths())
        require(len(self.files) > 0, f"{table.file.name} has no rows below its header")
        self.class_names, order = _classes(table, classes, numbers)
        self.labels = Labels(order[np.array(table.labels, np.int32)] if len(order) else (), table.ends)
        self.first_not_single = self.labels.first_not_single()


class _Table:
    """The rows of a file: labels are numbered as they appear; `ends` says where each row's labels end."""

    def __init__(self, file: Path, path: str, label: str, separator: str) -> None:
        self.file = file
        self.numbers: dict[str, int] = {}
        self.lines: dict[str, int] = {}  # where each label first occurs
        self.labels, self.ends = array("i"), array("q")
        self._path, self._label, self._separator = path, label, separator

    def paths(self) -> Iterator[bytes]:
        """Yield the path of every row, in order, and collect its labels."""
        seen: set[bytes] = set()
        rows = self._rows()
        header = next(rows, (1, []))[1]
        for column in (self._path, self._label):
            require(column in header, f"{self.file.name} has no column {column!r}; its header is {header!r:.300}")
        at, label_at = header.index(self._path), header.index(self._label)
        for line, row in rows:
            if len(row) != len(header):
                column = header[min(len(row), len(header) - 1)]
                self._refuse(line, column, f"{len(row)} cells, the header {len(header)}")
            name = self._checked_path(line, row[at])
            if name in seen:
                self._refuse(line, self._path, f"{row[at]!r:.200} is also on an earlier line; give each image one row")
            seen.add(name)
            for label in self._labels_of(line, row[label_at]):
                self.labels.append(self.numbers.setdefault(label, len(self.numbers)))
                self.lines.setdefault(label, line)
            self.ends.append(len(self.labels))
            yield name

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (first line, cells) of every row that is not blank."""
        delimiter = "\t" if self.file.suffix.lower() in (".tsv", ".tab") else ","
        reader = csv.reader(stream_text(self.file), delimiter=delimiter, strict=True)
        start = 1
        try:
            for row in reader:
                if row:
                    yield start, row
                start = reader.line_num + 1
        except csv.Error as error:
            raise ValueError(f"{self.file.name}, line {start}: {error}") from None

    def _checked_path(self, line: int, cell: str) -> bytes:
        name = posixpath.normpath(cell)
        if not cell or name == "." or name.startswith("/") or name.split("/")[0] == "..":
            self._refuse(line, self._path, f"{cell!r:.200} is not a path below the data folder; make it relative to it")
        return os.fsencode(name)

    def _labels_of(self, line: int, cell: str) -> list[str]:
        if self._separator:
            return sorted({label.strip() for label in cell.split(self._separator)} - {""})
        if not cell.strip():
            self._refuse(line, self._label, "no label; give one, or set a separator to allow any number of labels")
        return [cell.strip()]

    def places(self) -> dict[str, str]:
        """Return where each label first occurs, in words."""
        return {label: f"{self.file.name}, line {line}, column {self._label!r}" for label, line in self.lines.items()}

    def _refuse(self, line: int, column: str, why: str) -> NoReturn:
        raise ValueError(f"{self.file.name}, line {line}, column {column!r}: {why}")


def _classes(table: _Table, given: Sequence[str], numbers: str) -> tuple[tuple[str, ...], np.ndarray]:
    """The class names of a table, and the class number of each label in the order of first appearance."""
    require(numbers in ("", "names"), f"numbers={numbers!r}; allowed is numbers=names, or leave it out")
    labels = table.numbers
    unknown = [label for label in labels if label not in set(given)] if given else []
    if unknown:
        where = table.places()[unknown[0]]
        raise ValueError(f"{where}: labels {sorted(unknown)!r:.200}, which are not among the classes given")
    if not given and not numbers and are_numbers(table.places()):
        found = [class_number(label) or 0 for label in labels]
        return tuple(map(str, range(max(found, default=-1) + 1))), np.array(found, np.int32)
    names = tuple(given) or in_order(labels)
    place = {name: number for number, name in enumerate(names)}
    return names, np.array([place[label] for label in labels], np.int32)
