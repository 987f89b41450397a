"""The run browser shows a study filling up: its cells, its trainings, and the verdicts on its claims so far."""

import json
import os

import pytest

from run_browsing import made_row, made_run, made_study
from vitlab.files.store import locked, write_json
from vitlab.page.run_browser import folders as run_folders
from vitlab.page.run_browser import studies as run_studies
from vitlab.page.run_browser.api import RunBrowser, routes
from vitlab.studies.catalogue import STUDIES
from vitlab.studies.claims import Claim, Comparison, Term, above
from vitlab.studies.scales import TINY
from vitlab.studies.study import Cell, Figure, Study
from vitlab.studies.study_file import IDENTITY, STUDY

POOLS = STUDIES["figure9"]  # three cells and two claims
POSITIONS = STUDIES["table8"]  # the paper prints its numbers


def own_cells(lab):
    for layers in (1, 2):
        yield Cell({"<b>layers</b>": str(layers)}, lab.few_shot(), lab.pretrained("ViT-B/16", layers=layers))


DEEPER = Claim("deeper is better", "Two beat one.", "", (above("few-shot %", {"<b>layers</b>": "2"}, {}),))
OWN = Study("depth", "nothing of the paper", "Do two layers beat one?", own_cells, Figure("layers"), (DEEPER,))


def only(root):
    """The one study below a folder, as a browser gets it."""
    browser = RunBrowser(root)
    answer = dict(routes(browser))["api/studies"]({})
    assert answer.status == 200
    (study,) = json.loads(answer.body)["studies"]
    return study


def test_a_study_that_has_begun_shows_its_grid_as_pending(tmp_path):
    folder = made_study(tmp_path, POSITIONS)
    study = only(tmp_path)
    assert (study["name"], study["remakes"], study["scale"]) == ("table8", POSITIONS.remakes, "tiny")
    assert (study["state"], study["measured"], study["total"]) == ("stopped", 0, 8 * 3)
    assert study["factors"] == ["positions", "at"]
    assert [cell["levels"] for cell in study["cells"]] == [dict(cell.levels) for cell in POSITIONS.cells(TINY)]
    assert {(cell["mean"], cell["std"], cell["seeds"]) for cell in study["cells"]} == {(None, None, 0)}
    assert study["cells"][0]["published"] == pytest.approx(61.382)
    assert [claim["answer"] for claim in study["claims"]] == ["not run yet"] * 2
    with locked(folder):
        assert only(tmp_path)["state"] == "running"


def test_a_study_half_done_has_means_over_the_seeds_so_far(tmp_path):
    folder = made_study(tmp_path, POOLS)
    for seed, value in enumerate((60.0, 61.0, 62.0)):
        made_row(folder, POOLS, 0, seed, value)
        made_row(folder, POOLS, 1, seed, value - 30)
    made_row(folder, POOLS, 2, 0, 61.0)
    made_row(folder, POOLS, 2, 1, None)
    made_row(folder, POSITIONS, 0, 0, 99.0)  # not a cell of this grid
    study = only(tmp_path)
    assert (study["state"], study["measured"], study["total"], study["seeds"]) == ("stopped", 8, 9, [0, 1, 2])
    numbers = [[cell[name] for name in ("measure", "mean", "std", "seeds", "empty")] for cell in study["cells"]]
    assert numbers == [["few-shot %", 61, 1, 3, 0], ["few-shot %", 31, 1, 3, 0], ["few-shot %", 61, None, 1, 1]]
    first, second = study["claims"]
    assert (first["answer"], second["answer"], second["fewest"]) == ("confirmed", "not run yet", 3)
    (compared,) = first["comparisons"]
    assert [compared[name] for name in ("mean", "low", "high", "seeds")] == [30, 30, 30, 3]
    assert second["comparisons"][0]["seeds"] == 1


def test_rows_that_appear_are_noticed_and_a_full_study_is_finished(tmp_path):
    folder, browser = made_study(tmp_path, POOLS, seeds=[0]), RunBrowser(tmp_path)
    seen = []
    for cell in range(3):
        made_row(folder, POOLS, cell, 0, 50.0)
        (study,) = browser.studies()["studies"]
        seen.append((study["state"], study["measured"], study["total"]))
    assert seen == [("stopped", 1, 3), ("stopped", 2, 3), ("finished", 3, 3)]
    made_row(folder, POOLS, 0, 0, 70.0)
    made_row(folder, POOLS, 0, 7, 80.0)  # of another call
    (study,) = browser.studies()["studies"]
    assert (study["cells"][0]["mean"], study["measured"], study["total"]) == (75.0, 4, 6)


def test_trainings_are_counted_by_their_results(tmp_path):
    made_study(tmp_path, OWN, seeds=[0, 1])
    names = [cell.training.name for cell in own_cells(TINY)]
    browser = RunBrowser(tmp_path)
    assert browser.studies()["studies"][0]["trainings"] == {"finished": 0, "total": 4}
    for name, seed, end in ((names[0], 0, "result.json"), (names[1], 0, "diverged.json"), (names[1], 1, "")):
        run = made_run(tmp_path / "trained" / name / f"seed-{seed}")
        (run.path / (end or "other")).write_text("{}")
    made_run(tmp_path / "trained" / "of-another-study" / "seed-0").path.joinpath("result.json").write_text("{}")
    assert browser.studies()["studies"][0]["trainings"] == {"finished": 2, "total": 4}
    assert only(tmp_path / "depth")["trainings"] is None  # they are not below this folder


def test_a_study_of_ones_own_is_described_by_its_file(tmp_path):
    folder = made_study(tmp_path, OWN)
    for seed in range(3):
        made_row(folder, OWN, 0, seed, 50.0)
        made_row(folder, OWN, 1, seed, 60.0 + seed)
    study = only(tmp_path)
    assert (study["name"], study["remakes"], study["state"]) == ("depth", "nothing of the paper", "finished")
    assert (study["factors"], study["cells"][1]["mean"]) == (["<b>layers</b>"], 61)
    assert [(claim["name"], claim["answer"]) for claim in study["claims"]] == [("deeper is better", "confirmed")]


@pytest.mark.parametrize("study", [POOLS, OWN])
def test_a_study_whose_file_is_older_is_shown_as_far_as_it_is_known(tmp_path, study):
    folder = made_study(tmp_path, study)
    written = json.loads((folder / STUDY).read_text())
    write_json(folder / STUDY, {name: written[name] for name in IDENTITY})
    assert only(tmp_path)["state"] == "stopped"
    made_row(folder, study, 0, 0, 50.0)
    run = made_run(tmp_path / "trained" / next(iter(study.cells(TINY))).training.name / "seed-0")
    (run.path / "result.json").write_text("{}")
    shown = only(tmp_path)
    assert (shown["measured"], shown["total"], shown["cells"][0]["mean"]) == (1, None, 50)
    assert shown["trainings"] == ({"finished": 1, "total": None} if study is POOLS else None)
    assert shown["factors"] == (["pool", "learning rate"] if study is POOLS else ["cell"])
    assert len(shown["claims"]) == (2 if study is POOLS else 0)


# -- What is not believed ------------------------------------------------------------------------------

ROW = {"study": "figure9", "scale": "tiny", "levels": {}, "seed": 0, "measure": "few-shot %", "values": {}}


@pytest.mark.parametrize(
    "content", ["{", "[]", "null", "[" * 50_000, "\0", json.dumps(ROW), "huge", "number", "elsewhere"]
)
def test_a_damaged_row_spoils_only_itself(tmp_path, content):
    folder = made_study(tmp_path, POOLS)
    made_row(folder, POOLS, 1, 0, 50.0)
    file = made_row(folder, POOLS, 0, 0, 1e300)
    if content == "huge":
        with file.open("wb") as stream:
            stream.truncate(2**31)
    elif content == "elsewhere":
        file.rename(tmp_path / "row")
        file.symlink_to(tmp_path / "row")
    elif content != "number":
        file.write_text(content)
    study = only(tmp_path)
    assert (study["measured"], study["cells"][0]["mean"], study["cells"][1]["mean"]) == (1, None, 50)
    if content != "elsewhere":
        (remark,) = study["remarks"]
        assert remark.startswith("pool=class,learning-rate=0.0008, seed-0: ")
        assert str(tmp_path) not in remark


@pytest.mark.parametrize(
    ("field", "value"), [("study", "table8"), ("scale", "small"), ("seed", 7), ("levels", {"pool": "none"})]
)
def test_a_row_of_another_place_is_not_shown(tmp_path, field, value):
    file = made_row(made_study(tmp_path, POOLS), POOLS, 0, 0, 50.0)
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    study = only(tmp_path)
    assert study["measured"] == 0
    (remark,) = study["remarks"]
    assert f"its {'cell' if field == 'levels' else field} is" in remark


LARGE = {"name": "", "says": "", "source": "", "comparisons": [{"value": "", "expects": "above", "threshold": 1e300}]}
LARGE["comparisons"][0]["terms"] = [{"weight": 1, "levels": []}]


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "{}", "[" * 50_000, {"format": "other"}, {"scale": 3}, {"claims": [LARGE]}, {"grid": []}, {"more": 1}],
)
def test_a_damaged_study_is_listed_with_its_reason(tmp_path, content):
    folder = made_study(tmp_path, POOLS)
    written = json.loads((folder / STUDY).read_text())
    (folder / STUDY).write_text(content if isinstance(content, str) else json.dumps({**written, **content}))
    made_row(folder, POOLS, 1, 0, 50.0)
    made_study(tmp_path / "other", POOLS)
    bad, good = RunBrowser(tmp_path).studies()["studies"]
    assert (bad["name"], bad["state"], bad["cells"]) == ("figure9", "unreadable", [])
    assert bad["why"]
    assert good["total"] == 9
    write_json(folder / STUDY, written)
    assert RunBrowser(tmp_path).studies()["studies"][0]["measured"] == 1


def test_claims_of_any_number_of_cells_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(run_studies, "MOST_TERMS", 3)
    compared = Comparison(tuple(Term(weight, ()) for weight in (1.0, 1.0, -1.0, -1.0)), "top-1 %", "above", 0.0)
    claims = (Claim("", "", "", (compared,)),)
    made_study(tmp_path, Study("own", "", "", own_cells, Figure("layers"), claims))
    assert "at most 3" in only(tmp_path)["why"]


# -- What it costs -------------------------------------------------------------------------------------


def test_files_that_have_not_changed_are_not_read_again(tmp_path, monkeypatch):
    folder = made_study(tmp_path, POOLS, seeds=range(40))
    for seed in range(40):
        for cell in range(3):
            made_row(folder, POOLS, cell, seed, 50.0 + seed)
    monkeypatch.setattr(run_folders, "RECENT", -1.0)  # as if the folders had not just been made
    browser = RunBrowser(tmp_path)
    before = browser.studies()
    opened, plain = [], os.open
    monkeypatch.setattr(
        os, "open", lambda path, *given, **more: opened.append(str(path)) or plain(path, *given, **more)
    )
    monkeypatch.setattr(os, "scandir", lambda path: pytest.fail(f"{path} is read again"))
    monkeypatch.setattr(run_studies, "verdict", lambda *given: pytest.fail("a verdict is computed again"))
    assert browser.studies() == before
    assert [path for path in opened if path.endswith(".json")] == []
    monkeypatch.undo()
    changed = made_row(folder, POOLS, 2, 39, 10.0)
    monkeypatch.setattr(
        os, "open", lambda path, *given, **more: opened.append(str(path)) or plain(path, *given, **more)
    )
    assert browser.studies() != before
    assert [path for path in opened if path.endswith(".json")] == [str(changed)]
