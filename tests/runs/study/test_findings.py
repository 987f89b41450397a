"""docs/findings.md from a ledger: the same rows give the same bytes, and what was not run has no number."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vitlab.runs.study.findings import findings, read_ledger
from vitlab.runs.study.study import write_ledger
from vitlab.studies.catalogue import STUDIES
from vitlab.studies.claims import Row
from vitlab.studies.scales import TINY

SEEDS = 3


def synthetic(name, bonus):
    """Rows of a study with made-up values: those of the levels in `bonus` are higher; seeds differ a little."""
    for cell in STUDIES[name].cells(TINY):
        extra = sum(points for level, points in bonus.items() if level in cell.levels.values())
        for seed in range(SEEDS):
            value = 50.0 + extra + 0.1 * seed * (1 + len(cell.name) % 3)
            yield Row(name, "tiny", dict(cell.levels), seed, cell.measurement.value, {cell.measurement.value: value},
                      exaflops=1e-6, published=cell.published, command=f"vitlab study {name}")  # fmt: skip


@pytest.fixture
def ledger(tmp_path):
    """A ledger of two studies."""
    write_ledger(tmp_path, list(synthetic("table8", {"none": -10.0})))
    write_ledger(tmp_path, list(synthetic("table7", {"SGD": 5.0})))
    return tmp_path


def test_the_same_rows_give_the_same_bytes_whatever_the_order_of_files(ledger, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    for file in sorted(ledger.rglob("*.json"), reverse=True):
        copy = other / file.relative_to(ledger)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    assert findings(ledger) == findings(other)
    assert set(findings(ledger)) == {
        *("findings.md", "figures/findings.svg", "figures/study-table8.svg", "figures/study-table7.svg"),
    }


def test_verdicts_follow_from_the_rows(ledger):
    page = findings(ledger)["findings.md"].decode()
    assert "**position embeddings are needed: confirmed.**" in page
    assert "**the kind of position embedding hardly matters: confirmed.**" in page
    assert "**Adam above SGD for ResNets: not confirmed.**" in page
    assert "| 1d | stem | 50" in page
    assert "64.206" in page


def test_shared_trainings_are_counted_once(ledger):
    """8 pre-trainings of table 8; of table 7, 4 pre-trainings and 8 fine-tunings; 3 seeds of each."""
    page = findings(ledger)["findings.md"].decode()
    assert f"These results took {3 * (8 + 4 + 8)} trainings and " in page


def test_what_was_not_run_says_so_and_has_no_number(tmp_path):
    made = findings(tmp_path)
    assert list(made) == ["findings.md"]
    page = made["findings.md"].decode()
    claims = [claim for study in STUDIES.values() for claim in study.claims]
    assert f"Of {len(claims)} claims: {len(claims)} not run yet." in page
    assert page.count("Not run yet: the ledger has no rows of this study.") == len(STUDIES)
    for claim in claims:
        assert f"**{claim.name}: not run yet.**" in page
        for comparison in claim.comparisons:
            assert f"- {comparison}, not run yet" in page


def test_a_changed_value_changes_the_page(ledger):
    before = findings(ledger)
    file = sorted((ledger / "tiny" / "table8").glob("positions=1d,at=stem*"))[0]
    row = json.loads(file.read_text())
    row["values"]["few-shot %"] += 1
    file.write_text(json.dumps(row))
    after = findings(ledger)
    assert after["findings.md"] != before["findings.md"]
    assert after["figures/study-table8.svg"] != before["figures/study-table8.svg"]


def test_a_row_under_the_name_of_another_is_refused(ledger):
    first, second = sorted((ledger / "tiny" / "table8").glob("*.json"))[:2]
    second.write_bytes(first.read_bytes())
    with pytest.raises(ValueError, match="files are named after their rows"):
        read_ledger(ledger, "tiny")


def test_undecided_claims_say_how_many_seeds_are_missing(tmp_path):
    rows = list(synthetic("table7", {}))
    noisy = []
    for row in rows:
        moved = (row.seed - 0.8) * (2 if "SGD" in row.levels.values() else 1)
        noisy.append(replace(row, values={row.measure: row.values[row.measure] + moved}))
    write_ledger(tmp_path, noisy)
    page = findings(tmp_path)["findings.md"].decode()
    assert "**Adam above SGD for ResNets: undecided.**" in page
    assert "would decide it at the same mean and deviation" in page


def test_rows_are_written_once_per_run_with_their_command_and_seed(ledger):
    files = sorted((ledger / "tiny" / "table7").glob("*.json"))
    row = json.loads(files[0].read_text())
    assert len(files) == len(list(STUDIES["table7"].cells(TINY))) * SEEDS
    assert {"study", "scale", "levels", "seed", "values", "command", "versions"} <= set(row)
    assert Path(files[0]).name.endswith(",seed=0.json")
