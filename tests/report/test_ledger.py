"""The ledger loses no line and believes no torn one; the report shows names and never obeys them."""

import csv
import io
import json
import subprocess
import sys
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest
from rich.console import Console

from vitlab.cli import main
from vitlab.paper.results import TABLE_5
from vitlab.report.ledger import Entry, append, read, versions
from vitlab.report.report import published, render, write
from vitlab.report.tables import Results, shown


def entry(**changes):
    given = {"model": "ViT-B/16", "data": "cifar10:x?split=test", "metric": "top-1 %", "got": 98.9, "n": 10_000}
    made = {"command": "vitlab evaluate ...", "when": "2026-01-02T03:04:05+00:00", "versions": {"python": "3"}}
    return Entry(**given | made | changes)


def test_entries_come_back_in_order(tmp_path):
    ledger = tmp_path / "results" / "ledger.jsonl"
    first = entry(expected=98.95, expected_from="table 5", spread=0.03, runs=3, versions=versions())
    append(ledger, [first])
    append(ledger, [entry(got=97.0), entry(got=96.0)])
    append(ledger, [])
    assert read(ledger) == ([first, entry(got=97.0), entry(got=96.0)], [])
    append(ledger, [entry(when="", versions={})])
    filled = read(ledger)[0][-1]
    assert filled.versions == versions()
    assert datetime.fromisoformat(filled.when).tzinfo is UTC
    assert set(versions()) == {"python", "vitlab", "torch", "numpy", "pillow"}


def test_a_torn_line_is_passed_over_and_spoils_no_other(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    append(ledger, [entry(got=1.0), entry(got=2.0)])
    ledger.write_bytes(ledger.read_bytes()[:-9])  # as a full disk leaves it
    before = ledger.read_bytes()
    append(ledger, [entry(got=3.0)])
    assert ledger.read_bytes().startswith(before + b"\n")
    entries, remarks = read(ledger)
    assert [one.got for one in entries] == [1.0, 3.0]
    assert len(remarks) == 1
    assert "line 2" in remarks[0]
    ledger.write_bytes(b'{"got": NaN}\n[]\n\xff\n' + before)
    assert len(read(ledger)[1]) == 4


def test_a_report_without_a_ledger_says_how_one_is_made(tmp_path, capsys):
    assert main(["report", "--ledger", str(tmp_path / "none.jsonl")]) == 2
    said = capsys.readouterr().err
    assert "none.jsonl does not exist; vitlab evaluate and vitlab transfer append to it with --ledger" in said
    assert main(["report", "--ledger", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_many_writers_at_once_lose_nothing(tmp_path):
    code = (
        "import sys; from pathlib import Path; from vitlab.report.ledger import Entry, append\n"
        "for i in range(50): append(Path(sys.argv[1]), [Entry('m' * 3000, sys.argv[2], 'top-1 %', float(i), 1, 'c')])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "ledger.jsonl")]
    writers = [subprocess.Popen([*command, name]) for name in "abc"]
    assert [writer.wait(timeout=600) for writer in writers] == [0, 0, 0]
    entries, remarks = read(tmp_path / "ledger.jsonl")
    assert remarks == []
    for name in "abc":
        assert [one.got for one in entries if one.data == name] == list(map(float, range(50)))


@pytest.mark.parametrize("changes", [{"n": -1}, {"runs": 0}, {"expected": 1.0}, {"got": "1"}, {"got": None}])
def test_an_entry_that_says_nothing_is_refused(changes):
    with pytest.raises(ValueError):
        entry(**changes)


def test_the_report_stands_beside_the_published_numbers():
    table = render([entry(task="CIFAR-10", expected=98.95, expected_from="table 5"), entry(data="folder:x")])
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["off by"] == pytest.approx(-0.05)
    assert row["s.e."] == pytest.approx(100 * (0.989 * 0.011 / 10_000) ** 0.5)
    printed = TABLE_5[("ImageNet-21k", "CIFAR-10"), "ViT-B/16"]
    assert f"{printed:.2f} (ImageNet-21k, table 5)" in row["published"]
    assert "(JFT-300M, table 6, 7 epochs)" in row["published"]
    assert table.rows[1][table.columns.index("published")] == ""


def test_every_printed_accuracy_of_tables_2_5_6_and_9_is_found_with_its_deviation():
    assert len(published()) == (7 * 5 - 5) + (18 * 5 - 6) + 18 * 6 + 3 * 20  # less the cells that are left empty
    (best,) = published("ViT-H/14", "ImageNet", "JFT-300M")[:1]
    assert (best.mean, best.std, best.source) == (88.55, 0.04, "table 2")
    assert published("no model") == []


NASTY = [
    "=HYPERLINK(0)",
    "+1",
    "-2+3",
    "@SUM(A1)",
    "  =1",
    "\t=1",
    "<script>alert(1)</script>",
    "a|b | c",
    "[x](http://y) `code` **b**",
    "\x1b[31mred\x1b]0;title\x07",
    "line\nbreak\r\n",
    "\u202eright to left",
    'quote"and,comma',
    "broken\udcff",
    "&amp; &#60;",
]


class Cells(HTMLParser):
    """The text of every cell, as a browser reads it, and the tags."""

    def __init__(self):
        super().__init__()
        self.found, self.tags = [], set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        assert {name for name, _ in attributes} <= {"lang", "charset", "http-equiv", "content", "name", "class"}
        if tag == "td":
            self.found.append("")

    def handle_data(self, data):
        if self.found:
            self.found[-1] += data


def test_a_small_number_is_not_shown_as_zero():
    assert [shown(cell) for cell in (0.00015625, -2e-6, 0.0, 0.0123, 85.714285)] == [
        *("0.000156", "-2e-06", "0", "0.0123", "85.7143")
    ]


def test_names_are_text_in_every_form(tmp_path):
    table = Results(("name", "number"), tuple((name, 1.5) for name in NASTY))
    write(tmp_path, table)
    html = (tmp_path / "report.html").read_text()
    for form in (table.to_csv(), table.to_markdown(), html, table.to_json()):
        form.encode()  # no broken bytes
        assert not [c for c in form if not c.isprintable() and c != "\n"]
    rows = list(csv.reader(io.StringIO(table.to_csv())))
    assert len(rows) == len(NASTY) + 1
    assert not [row for row in rows if row[0].lstrip()[:1] in ("=", "+", "-", "@", "\t")]
    assert [row[0].lstrip("'") for row in rows[1:5]] == NASTY[:4]
    assert {row[1] for row in rows[1:]} == {"1.5"}
    lines = table.to_markdown().splitlines()
    assert len(lines) == len(NASTY) + 2
    assert all(line.count("|") == 3 and "<" not in line and "[" not in line and "`" not in line for line in lines)
    page = Cells()
    page.feed(html)
    of_the_page = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "section"}
    assert page.tags <= {"table", "tr", "th", "td"} | of_the_page
    assert page.found[0] == NASTY[0]
    assert page.found[12] == NASTY[6]
    assert [row["name"] for row in json.loads(table.to_json())] == NASTY
    console = Console(record=True, width=300, file=io.StringIO(), force_terminal=True)
    console.print(table.terminal())
    text = console.export_text()
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\\x1b[31mred" in text


def test_numbers_keep_their_precision_in_files_and_nan_is_no_json():
    table = Results(("a", "b", "c"), ((1 / 3, float("nan"), None), (1_234_567, 2.5, "x")))
    assert json.loads(table.to_json())[0] == {"a": 1 / 3, "b": None, "c": None}
    assert table.to_csv().splitlines()[1] == f"{1 / 3!r},,"
    assert "| 0.3333 |  |  |" in table.to_markdown()
    assert "1,234,567" in table.to_markdown()
    with pytest.raises(ValueError, match="3 cells"):
        Results(("a", "b", "c"), ((1, 2),))


def test_the_report_is_written_in_four_forms(tmp_path):
    write(tmp_path / "report", render([entry(data="<b>")]))
    assert {file.name for file in (tmp_path / "report").iterdir()} == {
        f"report.{suffix}" for suffix in ("csv", "md", "json", "html")
    }
    page = (tmp_path / "report" / "report.html").read_text()
    assert "&lt;b&gt;" in page
    assert "Content-Security-Policy" in page  # the page of every other report
    assert "<h1>Measured results</h1>" in page
