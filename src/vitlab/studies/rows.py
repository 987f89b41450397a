"""The files of rows: each belongs to its place, which names its study, scale, cell and seed."""

from pathlib import Path

from vitlab.files.strict_json import from_json, parse_json
from vitlab.files.user_files import read_regular
from vitlab.require import require
from vitlab.studies.claims import Row
from vitlab.studies.study import cell_name

LARGEST_ROW = 2**20  # bytes


def read_row(file: Path, **wanted: object) -> Row:
    """The row of a file; raises a ValueError that names the file if it is damaged, or is not what is `wanted`."""
    try:
        row = from_json(Row, parse_json(read_regular(file, LARGEST_ROW), file.name), file.name)
        check_row(row, **wanted)
    except ValueError as error:
        raise ValueError(f"{file} is not the row that belongs there: {error}; restore or delete it") from None
    return row


def check_row(row: Row, **wanted: object) -> None:
    """Raise a ValueError unless fields of the row are as `wanted`; `cell` is its name, and `seed` is text."""
    found = {**vars(row), "cell": cell_name(row.levels), "seed": str(row.seed)}
    for name, value in wanted.items():
        require(found[name] == value, f"its {name} is {found[name]!s:.80}, not {value!s:.80}")
