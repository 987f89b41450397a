"""Rows are read from the place that names their study, scale, cell and seed."""

from dataclasses import replace

import pytest

from vitlab.files.store import write_json
from vitlab.files.strict_json import to_json
from vitlab.studies.claims import Row
from vitlab.studies.rows import read_row

ROW = Row("table8", "tiny", {"a": "x/y"}, 7, "top-1 %", {"top-1 %": 50.0})
OWN = {"study": "table8", "scale": "tiny", "cell": "a=x-y", "levels": {"a": "x/y"}, "seed": "7", "measure": "top-1 %"}


def test_a_row_in_its_place_is_read(tmp_path):
    write_json(tmp_path / "row.json", to_json(ROW))
    assert read_row(tmp_path / "row.json", **OWN) == ROW


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"study": "table5"}, "its study is table5, not table8"),
        ({"scale": "small"}, "its scale is small, not tiny"),
        ({"seed": 8}, "its seed is 8, not 7"),
        ({"levels": {"a": "2"}}, "its cell is a=2, not a=x-y"),
        ({"levels": {"b": "x/y"}}, "its cell is b=x-y, not a=x-y"),
        ({"levels": {"a": "x:y"}}, "its levels is"),  # the name of the cell is the same
        ({"measure": "few-shot %"}, "its measure is few-shot %, not top-1 %"),
    ],
)
def test_a_row_that_was_edited_or_misplaced_is_refused(tmp_path, changes, told):
    file = tmp_path / "row.json"
    write_json(file, to_json(replace(ROW, **changes)))
    with pytest.raises(ValueError, match=f"{file} is not the row that belongs there: {told}.*; restore or delete it"):
        read_row(file, **OWN)


@pytest.mark.parametrize("content", ["{", "[]", '{"study": "table8"}'])
def test_a_damaged_row_is_named(tmp_path, content):
    (tmp_path / "row.json").write_text(content)
    with pytest.raises(ValueError, match=f"{tmp_path}/row.json is not the row that belongs there: "):
        read_row(tmp_path / "row.json")
