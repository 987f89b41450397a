"""docs/findings.md from a ledger: the same rows give the same bytes, and what was not run has no number."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from study_rows import SEEDS, synthetic
from vitlab.runs.study.findings import findings, read_ledger
from vitlab.runs.study.presentation import study_panels
from vitlab.runs.study.study import write_ledger
from vitlab.studies.catalogue import STUDIES
from vitlab.studies.scales import TINY


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
    assert "**1-D positions above none: confirmed.**" in page
    assert "**other kinds and places within 2 points of 1-D at the stem: confirmed.**" in page
    assert "**Adam above SGD, on average over two ResNets: not confirmed.**" in page
    assert "| 1d | stem | ViT (L=4, D=64, MLP=256, h=4)/8 | 50" in page
    assert "64.21" in page


def test_trained_models_are_counted_by_their_weights(ledger):
    """8 models of table 8, 8 of table 7, and 3 of figure 9, one of which is table 8's on another processor."""
    before = findings(ledger)["findings.md"].decode()
    assert f"rest on {3 * (8 + 8)} trained models" in before
    assert f"at most {3 * (8 + 8) * 36 / 3600:.1f} hours" in before
    assert "repeat a training" not in before
    write_ledger(ledger, list(synthetic("figure9", {})))
    assert f"rest on {3 * (8 + 8 + 2)} trained models" in findings(ledger)["findings.md"].decode()
    write_ledger(ledger, list(synthetic("figure9", {}, machine="other ")))
    after = findings(ledger)["findings.md"].decode()
    assert f"rest on {3 * (8 + 8 + 3)} trained models" in after
    assert "3 of them repeat a training of another study with the same seed" in " ".join(after.split())


def test_the_page_tells_of_stages_only_if_some_study_has_more_seeds(ledger):
    assert "The runs have stages" not in findings(ledger)["findings.md"].decode()
    write_ledger(ledger, list(synthetic("table8", {}, seeds=6)))
    page = " ".join(findings(ledger)["findings.md"].decode().split())
    assert "The runs have stages: 3 seeds for every study" in page
    assert "left a claim undecided: `table8` (6 seeds in all)." in page


def test_the_summary_has_what_was_tested_and_what_the_paper_says_in_two_columns(ledger):
    lines = findings(ledger)["findings.md"].decode().splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("| tested here | verdict |"))
    summary = [
        line.strip("| ").split(" | ")
        for line in lines[place + 2 :][: sum(len(s.claims_at(TINY)) for s in STUDIES.values())]
    ]
    claims = [claim for study in STUDIES.values() for claim in study.claims_at(TINY)]
    assert [(line[0], line[-2], line[-1]) for line in summary] == [(c.name, c.says, c.source) for c in claims]


def test_the_lead_of_the_resnet_at_every_size_stands_beside_figure_4(tmp_path):
    sentence = STUDIES["figure4"].claims_at(TINY)[0].everywhere
    write_ledger(tmp_path, list(synthetic("figure4", {"R50x2": 10.0})))
    everywhere = findings(tmp_path)["findings.md"].decode()
    assert everywhere.count(sentence) == 2  # in the summary and in the section
    assert "not judged: on 10,000 images +10" in everywhere
    rows = [replace(row, values={row.measure: 90.0 + 0.1 * row.seed}) if row.levels == {"model": "ViT-B/16",
            "images": "50000"} else row for row in synthetic("figure4", {"R50x2": 10.0})]  # fmt: skip
    write_ledger(tmp_path, rows)
    overtaken = findings(tmp_path)["findings.md"].decode()
    assert "**R50x2 above ViT-B/16, pre-trained on 2,000 images: confirmed.**" in overtaken
    assert sentence not in overtaken


def test_stand_ins_that_are_those_of_another_model_are_named(tmp_path):
    for name in ("table2", "figure2", "table7", "table6"):
        write_ledger(tmp_path, list(synthetic(name, {})))
    page = " ".join(findings(tmp_path)["findings.md"].decode().split())
    assert (
        "in `table2` and `figure2`, R152x4 is the stand-in of R50x2; in `figure2`, ViT-L/16 is the stand-in of "
        "ViT-B/16; in `table7`, R152x2 is the stand-in of R50x2." in page
    )
    assert "`figure2` and `selfsup` also fine-tune on CIFAR-10, the pre-training set itself" in page
    assert "(`figure4`, `table8`, `figure8`, `figure9` and `figure13`) is measured on CIFAR-10's own" in page


def test_speed_is_repeated_and_says_where_the_largest_batch_is_missing(tmp_path):
    rows = list(synthetic("figure12", {}))
    write_ledger(tmp_path, rows)
    without = findings(tmp_path)
    assert "| images/s | std | repeats |" in without["findings.md"].decode()
    assert "No row has a largest batch" in without["findings.md"].decode()
    write_ledger(tmp_path, [replace(row, values={**row.values, "largest batch": 64.0}) for row in rows])
    found = findings(tmp_path)
    assert "No row has a largest batch" not in found["findings.md"].decode()
    assert "| repeats | largest batch |" in found["findings.md"].decode()
    panels = study_panels(STUDIES["figure12"], read_ledger(tmp_path, "tiny")["figure12"])
    assert [panel.y for panel in panels] == ["images/s", "largest batch"]


def test_what_was_not_run_says_so_and_has_no_number(tmp_path):
    made = findings(tmp_path)
    assert list(made) == ["findings.md"]
    page = made["findings.md"].decode()
    claims = [claim for study in STUDIES.values() for claim in study.claims_at(TINY)]
    assert f"Of {len(claims)} claims: {len(claims)} not run yet." in page
    assert f"There are {sum(len(claim.comparisons) for claim in claims)} comparisons" in page
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


def test_figure_7_draws_the_distance_of_every_layer(tmp_path):
    drawn, distances = set(), (40.0, 45.0, 50.0)
    for changed in range(4):  # no layer, or this one
        layers = {f"distance, layer {n}": far + 9 * (n == changed) for n, far in enumerate(distances, 1)}
        rows = [replace(row, values={**row.values, **layers}) for row in synthetic("figure7", {})]
        write_ledger(tmp_path, rows)
        drawn.add(findings(tmp_path)["figures/study-figure7.svg"])
    assert len(drawn) == 4


def test_a_row_under_the_name_of_another_is_refused(ledger):
    first, second = sorted((ledger / "tiny" / "table8").glob("*.json"))[:2]
    second.write_bytes(first.read_bytes())
    with pytest.raises(ValueError, match="its seed is 0, not 1; restore or delete it"):
        read_ledger(ledger, "tiny")


def test_a_folder_of_an_unknown_study_is_refused(ledger):
    (ledger / "tiny" / "table99").mkdir()
    with pytest.raises(ValueError, match=r"holds table99; known studies are table2, .*"):
        read_ledger(ledger, "tiny")


def test_a_row_of_no_cell_is_refused(ledger):
    (row,) = [row for row in synthetic("table8", {}, seeds=1) if row.levels == {"positions": "none", "at": "stem"}]
    write_ledger(ledger, [replace(row, levels={"positions": "3d", "at": "stem"})])
    with pytest.raises(ValueError, match=r"positions=3d,at=stem,seed=0.json is of no cell"):
        read_ledger(ledger, "tiny")


@pytest.mark.parametrize("damage", [b"", b'{"study": "table8"}', b"{", b"[]", b'{"study": 8}'])
def test_a_damaged_row_is_an_error_that_names_its_file(ledger, damage):
    file = sorted((ledger / "tiny" / "table8").glob("*.json"))[0]
    file.write_bytes(damage)
    with pytest.raises(ValueError, match=re.escape(str(file))):
        read_ledger(ledger, "tiny")


def test_undecided_claims_say_how_many_seeds_are_missing(tmp_path):
    rows = list(synthetic("table7", {}))
    noisy = []
    for row in rows:
        moved = (row.seed - 0.8) * (2 if "SGD" in row.levels.values() else 1)
        noisy.append(replace(row, values={row.measure: row.values[row.measure] + moved}))
    write_ledger(tmp_path, noisy)
    page = findings(tmp_path)["findings.md"].decode()
    assert "**Adam above SGD, on average over two ResNets: undecided.**" in page
    assert "would decide it at the same mean and deviation" in page


def test_rows_are_written_once_per_run_with_their_command_and_seed(ledger):
    files = sorted((ledger / "tiny" / "table7").glob("*.json"))
    row = json.loads(files[0].read_text())
    assert len(files) == len(list(STUDIES["table7"].cells(TINY))) * SEEDS
    assert {"study", "scale", "levels", "seed", "values", "command", "versions"} <= set(row)
    assert Path(files[0]).name.endswith(",seed=0.json")
