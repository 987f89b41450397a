"""`vitlab.study`: every study at the scale of the tests, plans, resuming after a kill, rivals, studies of one's own."""

import io
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import crashes
import vitlab
from crashes import run_test_study
from vitlab.cli import main
from vitlab.commands import studying
from vitlab.commands.command_line import read_words
from vitlab.data.sources.catalogue import open_source
from vitlab.files.store import write_json
from vitlab.files.strict_json import from_json, to_json
from vitlab.page.run_browser.api import RunBrowser
from vitlab.run_dir import DIVERGED, RESULT
from vitlab.runs.progress import duration
from vitlab.runs.study.by_name import plan_studies, run_studies
from vitlab.runs.study.study import places_table, plan_study, read_rows, study, study_names, without_places
from vitlab.runs.study.trainings import Lab, choose_recipes, chosen_recipe, packed, picking_jobs
from vitlab.spec.recipe import Execution
from vitlab.studies.catalogue import STUDIES
from vitlab.studies.claims import Claim, Row, above
from vitlab.studies.scales import PAPER, TEST
from vitlab.studies.study import Accuracy, Cell, Figure, Speed, Study
from vitlab.studies.study_file import IDENTITY, ROW, STUDY, StudyFile, study_file

CPU = Execution()
SECONDS = 600  # that nothing takes, however busy the machine is


def times(out):
    """When each result was written, by folder."""
    found = [*out.glob(f"trained/*/*/{RESULT}"), *out.glob(f"*/cells/*/*/{ROW}")]
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in found}


def own_study(**changes):
    """A study of one's own in a few lines: does more training help on digits?"""

    def cells(lab):
        for epochs in (1, 2):
            start = lab.pretrained("ViT-B/16", recipe={"times": epochs})
            yield Cell({"length": f"{epochs}"}, Accuracy(), lab.tuned(start, "digits", "ViT-B/16"))

    claims = (Claim("longer is better", "It helps.", "nowhere", (above("top-1 %", {"length": "2"}, {"length": "1"}),)),)
    return replace(Study("length", "Nothing of the paper", "Does it help?", cells, Figure("length"), claims), **changes)


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs_at_the_scale_of_the_tests_and_continues_after_a_kill(name, tmp_path):
    child = crashes.processes.Process(target=run_test_study, args=(name, tmp_path))
    child.start()
    end = time.monotonic() + SECONDS
    while not times(tmp_path) and time.monotonic() < end:
        assert child.is_alive()
        time.sleep(0.005)
    child.kill()
    child.join()
    before = times(tmp_path)
    assert not (tmp_path / name / "table.md").exists(), "it was killed before its end"
    found = run_test_study(name, tmp_path)
    assert before
    assert before.items() <= times(tmp_path).items(), "finished runs are not repeated"

    plan = plan_study(name, tmp_path, scale="test", seeds=1)
    assert [row.levels for row in found.rows] == [dict(cell.levels) for cell in plan.cells]
    for row in found.rows:
        assert row.measure in row.values
        assert row.versions["torch"]
        assert row.versions["processor"]
        assert "/" not in row.data.replace("tiny/", ""), "rows name places, not paths"
    made = {file.name for file in (tmp_path / name).iterdir()}
    assert made >= {"table.md", "table.csv", "table.json", "figure.svg", "figure.png"}
    assert len(found.table.rows) == len(plan.cells)
    assert {one.answer for one in found.verdicts} == {"not run yet"}  # one seed decides nothing
    done = times(tmp_path)
    assert run_test_study(name, tmp_path).rows == found.rows
    assert times(tmp_path) == done, "a finished study repeats nothing"


@pytest.mark.slow
def test_more_seeds_add_runs_and_decide_claims(tmp_path):
    first = study(own_study(), tmp_path, scale="test", seeds=1, quiet=True, execution=CPU)
    before = times(tmp_path)
    found = study(own_study(), tmp_path, scale="test", seeds=3, quiet=True, execution=CPU)
    assert {row.seed for row in found.rows} == {0, 1, 2}
    assert [row for row in found.rows if row.seed == 0] == list(first.rows)
    assert before.items() <= times(tmp_path).items()
    (one,) = found.verdicts
    assert one.answer in ("confirmed", "not confirmed", "undecided")
    assert one.judged[0].interval.seeds == 3
    more = study(own_study(), tmp_path, scale="test", seeds=1, first_seed=7, quiet=True, execution=CPU)
    assert {row.seed for row in more.rows} == {0, 1, 2, 7}


@pytest.mark.slow
def test_the_file_of_a_study_describes_its_grid_and_an_older_one_is_completed(tmp_path):
    study(own_study(), tmp_path, scale="test", seeds=1, quiet=True, execution=CPU)
    file, before = tmp_path / "length" / STUDY, times(tmp_path)
    written, plan = json.loads(file.read_text()), plan_study(own_study(), tmp_path, scale="test", seeds=1)
    assert from_json(StudyFile, written) == study_file(own_study(), TEST, plan.cells, (0,))
    assert set(written["trainings"]) == {path.parent.parent.name for path in tmp_path.glob(f"trained/*/*/{RESULT}")}
    file.write_text(json.dumps({name: written[name] for name in IDENTITY}))
    study(own_study(), tmp_path, scale="test", seeds=1, quiet=True, execution=CPU)
    assert times(tmp_path) == before
    assert json.loads(file.read_text()) == written
    study(own_study(), tmp_path, scale="test", seeds=1, first_seed=7, quiet=True, execution=CPU)
    assert json.loads(file.read_text()) == {**written, "seeds": [0, 7]}


@pytest.mark.slow
def test_runs_can_take_place_in_processes_of_their_own(tmp_path):
    alone = study(own_study(), tmp_path / "a", scale="test", seeds=1, quiet=True, execution=CPU)
    several = study("figure9", tmp_path / "b", scale="test", seeds=1, jobs=2, quiet=True, execution=CPU)
    assert len(several.rows) == 3
    assert all(row.values for row in several.rows)
    browser = RunBrowser(tmp_path)
    try:
        listed, shown = browser.list(), browser.studies()["studies"]
    finally:
        browser.close()
    assert listed["total"] == 4 + 3, "the run browser shows every training of every study"
    assert {one["state"] for one in listed["runs"]} == {"finished"}
    assert len(alone.rows) == 2
    assert [(one["name"], one["state"]) for one in shown] == [("a/length", "finished"), ("b/figure9", "finished")]
    assert [one["trainings"] for one in shown] == [{"finished": runs, "total": runs} for runs in (4, 3)]
    for one, found in zip(shown, (alone, several), strict=True):
        assert [cell["mean"] for cell in one["cells"]] == [row.values[row.measure] for row in found.rows]


@pytest.mark.slow
def test_a_run_that_diverged_leaves_its_cell_empty_and_the_others_go_on(tmp_path):
    study(own_study(), tmp_path, scale="test", seeds=1, quiet=True, execution=CPU)
    first = plan_study(own_study(), tmp_path, scale="test", seeds=1).cells[0].training
    folder = tmp_path / "trained" / first.name / "seed-0"
    (folder / RESULT).unlink()
    (folder / DIVERGED).write_text(json.dumps({"diverged": "loss is NaN"}))
    shutil.rmtree(tmp_path / "length" / "cells")
    found = study(own_study(), tmp_path, scale="test", seeds=1, quiet=True, execution=CPU)
    assert [bool(row.values) for row in found.rows] == [False, True]
    assert found.table.rows[0][found.table.columns.index("top-1 %")] is None


@pytest.mark.slow
def test_the_best_of_rival_recipes_on_development_images_trains_the_run(tmp_path):
    start = TEST.pretrained("ViT-B/16")
    tuned = TEST.tuned(start, "digits", "ViT-B/16")
    fast = replace(tuned.recipe, schedule=replace(tuned.recipe.schedule, peak=0.03, total=12))
    slow = replace(tuned.recipe, schedule=replace(tuned.recipe.schedule, peak=1e-9))
    rivals = replace(tuned, recipe=slow, rivals=(fast,), development=0.4)
    grid = own_study(cells=lambda lab: [Cell({"a": "1"}, Accuracy(), rivals)], claims=(), figure=Figure("a"))
    found = study(grid, tmp_path, scale="test", seeds=2, quiet=True, execution=CPU)
    lab = Lab(tmp_path, packed(tmp_path, TEST.drawn, Console(quiet=True)), CPU)
    choice = json.loads((tmp_path / "trained" / rivals.name / "choice.json").read_text())
    best = choice["development accuracy"].index(max(choice["development accuracy"]))
    assert choice["best"] == best
    assert chosen_recipe(lab, rivals) == (slow, fast)[best]
    used = json.loads((tmp_path / "trained" / rivals.name / "seed-1" / "run.json").read_text())
    assert used["recipe"]["schedule"]["peak"] == (slow, fast)[best].schedule.peak
    assert used["held_out"] == 0
    assert len(found.rows) == 2
    assert picking_jobs(lab, [(rivals, 0)]) == [], "what is decided is not tried again"
    choose_recipes(lab, [rivals])


@pytest.mark.slow
def test_the_command_prints_table_verdicts_and_places_and_writes_the_ledger(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = study("figure9", "studies", scale="test", seeds=1, ledger="ledger", quiet=True, execution=CPU)
    files = sorted(path.relative_to("ledger").as_posix() for path in Path("ledger").rglob("*.json"))
    assert files[0] == "test/figure9/pool=class,learning-rate=0.0008,seed=0.json"
    assert len(files) == len(found.rows) == 3
    assert main(["study", "--list"]) == 0
    assert "Table 8: position embeddings" in capsys.readouterr().out
    assert main(["study", "figure9", "--scale", "tiny", "--seeds", "1"]) == 2
    assert "needs the data cifar10 (" in capsys.readouterr().err


@pytest.mark.slow
def test_a_speed_is_measured_alone_and_left_out_while_a_larger_batch_may_be_faster(tmp_path):
    speed = Speed(TEST.model("R50x1", 10), seconds=1e-6)
    grid = own_study(cells=lambda lab: [Cell({"a": "1"}, speed)], claims=(), figure=Figure("a"))
    screen = Console(record=True, width=200, file=io.StringIO())
    found = study(grid, tmp_path, scale="test", seeds=1, jobs=2, console=screen, execution=CPU)
    text = screen.export_text()
    assert text.count("measuring again with") == 2, "said on the console of the study, since no worker measures"
    assert "a=1: 4e-06 s do not suffice to find the fastest batch; no speed is recorded" in text
    assert [row.values for row in found.rows] == [{}]
    assert found.table.rows[0][found.table.columns.index("repeats")] == 0


def test_the_command_runs_the_seeds_that_are_asked_for_and_writes_the_ledger(tmp_path, capsys):
    out, ledger = tmp_path / "out", tmp_path / "ledger"
    words = ["figure7", "--seeds", "2", "--first-seed", "3", "--out", str(out), "--ledger", str(ledger)]
    given = read_words("vitlab study", studying.study, words)
    studying.study(**given | {"scale": "test"})  # which the command line does not offer
    folders = {path.name for path in out.glob("figure7/cells/*/*")}
    assert folders == {path.name for path in out.glob("trained/*/*")} == {"seed-3", "seed-4"}
    names = {path.parent.name for path in out.glob("figure7/cells/*/*")}
    wanted = {f"test/figure7/{name},seed={seed}.json" for name in names for seed in (3, 4)}
    assert {path.relative_to(ledger).as_posix() for path in ledger.rglob("*.json")} == wanted
    printed = capsys.readouterr().out
    assert f"table and figure are in {out / 'figure7'}" in printed
    assert "not run yet (2 seeds have a value in every cell; it takes 3)" in printed


# -- The data of earlier runs ---------------------------------------------------------------------------


@pytest.fixture
def on_own_data(tmp_path, monkeypatch):
    """A study of one training on the data `mine`, as a function of its place; two data sets are one.npz and two.npz."""
    monkeypatch.chdir(tmp_path)
    drawn = {name: f"shapes?classes=4&images=48&size=32&seed={seed}" for seed, name in enumerate(("one", "two"))}
    packed(tmp_path, drawn, Console(quiet=True))
    upstream = {**TEST.upstream, "JFT-300M": replace(TEST.upstream["JFT-300M"], data="npz:{mine}")}
    scale = replace(TEST, upstream=upstream, places={"mine": "an npz file"})
    grid = own_study(
        cells=lambda lab: [Cell({"a": "1"}, lab.few_shot(), lab.pretrained("ViT-B/16"))], claims=(), figure=Figure("a")
    )

    def run(place, seeds=1):
        return study(grid, tmp_path / "out", scale=scale, data={"mine": place}, seeds=seeds, quiet=True, execution=CPU)

    return run


def test_the_same_data_in_another_spelling_or_place_continues_a_study(tmp_path, on_own_data):
    on_own_data("data/one.npz")
    before = times(tmp_path / "out")
    on_own_data("data/../data/one.npz")
    (tmp_path / "moved").mkdir()
    (tmp_path / "data" / "one.npz").rename(tmp_path / "moved" / "one.npz")
    on_own_data(f"{tmp_path}/moved/one.npz")
    assert times(tmp_path / "out") == before
    assert {row.seed for row in on_own_data("moved/one.npz", seeds=2).rows} == {0, 1}
    (run,) = (tmp_path / "out").glob("trained/*/seed-0/run.json")
    assert json.loads(run.read_text())["data"] == f"npz:{tmp_path}/data/one.npz"
    both = (
        r"seed-0 was trained on other data: 1 of 1 files .* data was npz:\S+/data/one.npz and is npz:\S+/data/two.npz"
    )
    with pytest.raises(ValueError, match=both):
        on_own_data("data/two.npz", seeds=2)


def test_a_run_that_was_stopped_continues_on_data_that_has_moved(tmp_path, on_own_data):
    whole = on_own_data("data/one.npz")
    (run,) = (tmp_path / "out").glob("trained/*/seed-0")
    (run / RESULT).unlink()
    shutil.rmtree(tmp_path / "out" / "length" / "cells")
    (tmp_path / "data" / "one.npz").rename(tmp_path / "moved.npz")
    (row,) = on_own_data("moved.npz").rows
    assert row.weights == whole.rows[0].weights


def test_a_new_seed_on_data_that_changed_in_its_place_is_refused(tmp_path, on_own_data):
    on_own_data("data/one.npz")
    (tmp_path / "data" / "two.npz").replace(tmp_path / "data" / "one.npz")
    with pytest.raises(
        ValueError, match=r"seed-0 was trained on other data: .*one.npz.*; give the data of the earlier"
    ):
        on_own_data("data/one.npz", seeds=2)
    assert json.loads((tmp_path / "out" / "length" / STUDY).read_text())["seeds"] == [0]
    assert not list((tmp_path / "out").glob("trained/*/seed-1"))
    assert len(on_own_data("data/one.npz").rows) == 1, "a finished study needs no data"


@pytest.mark.parametrize("change", [{"seed": 7}, {"levels": {"b": "1"}}, {"scale": "tiny"}, {"measure": "x"}])
def test_a_row_that_was_edited_is_not_part_of_the_result(tmp_path, change):
    grid = own_study(cells=lambda lab: [Cell({"a": "1"}, lab.few_shot(), lab.pretrained("ViT-B/16"))], claims=())
    plan = plan_study(replace(grid, figure=Figure("a")), tmp_path, scale="test")
    file, row = tmp_path / "cells/a=1/seed-0" / ROW, Row("length", "test", {"a": "1"}, 0, "few-shot %", {})
    write_json(file, to_json(row))
    assert read_rows(tmp_path, plan) == [row]
    write_json(file, to_json(replace(row, **change)))
    with pytest.raises(ValueError, match=f"{file} is not the row that belongs there: its "):
        read_rows(tmp_path, plan)


# -- Plans and mistakes ----------------------------------------------------------------------------------


def test_the_plan_of_the_papers_grid_needs_no_data_and_counts_its_exaflops(tmp_path, capsys):
    plan = plan_study("table7", tmp_path / "none", scale="paper")
    starts = {cell.training.chain[0] for cell in plan.cells}
    tuned = {cell.training for cell in plan.cells}
    runs = 3 * (len(starts) + len(tuned)) + sum(1 + len(one.rivals) for one in tuned)
    assert plan.runs == runs
    wanted = 3 * sum(one.exaflops for one in starts | tuned) + sum(one.picking_exaflops for one in tuned)
    assert plan.exaflops == pytest.approx(wanted)
    assert plan.disk > 3 * 4 * sum(one.disk / 4 for one in starts)
    assert not (tmp_path / "none").exists()
    assert "exaFLOPs" in plan.in_words()


def test_more_jobs_shorten_the_time_of_trainings_and_not_of_speeds():
    alone, two = (plan_study("figure12", scale="tiny", seeds=1, jobs=jobs) for jobs in (1, 2))
    assert alone.seconds == two.seconds > 0
    assert alone.table.rows == two.table.rows


def test_the_plan_says_what_data_is_needed():
    plan = plan_study("figure2", scale="tiny")
    names = [name for name, _ in places_table(plan).rows]
    assert names == ["cifar10", "dsprites", "fashion-mnist"]
    assert all(words for _, words in places_table(plan).rows)


def test_a_study_says_what_is_wrong_before_anything_starts(tmp_path):
    with pytest.raises(ValueError, match=r"table8 needs the data cifar10 \(the folder of CIFAR-10"):
        study("table8", tmp_path, scale="tiny", quiet=True)
    with pytest.raises(ValueError, match="no data is named mnist here; known are cifar10"):
        study("table8", tmp_path, scale="tiny", data={"mnist": "x", "cifar10": "y"}, quiet=True)
    with pytest.raises(ValueError, match="such as cifar10=data/cifar10"):
        study("table8", tmp_path, scale="tiny", data=["cifar10"], quiet=True)
    with pytest.raises(ValueError, match="at least 1"):
        study("table8", tmp_path, scale="tiny", seeds=0, quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ledger", ["/proc/led", "file", "file/below", "s3://bucket/led"])
def test_a_ledger_that_cannot_be_written_is_found_before_anything_starts(tmp_path, monkeypatch, ledger):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises((OSError, ValueError), match=r"choose another folder|only local folders"):
        study("figure9", tmp_path / "out", scale="test", ledger=ledger, quiet=True, execution=CPU)
    assert not (tmp_path / "out").exists()


def test_a_folder_holds_one_grid(tmp_path):
    (tmp_path / "table8").mkdir()
    (tmp_path / "table8" / "study.json").write_text(json.dumps({"study": "table8", "scale": "paper"}))
    with pytest.raises(ValueError, match="holds another study: its cells, format, scale, version differ"):
        study("table8", tmp_path, scale="test", seeds=1, quiet=True, execution=CPU)


def test_a_study_continues_whatever_claims_its_folder_has(tmp_path):
    """Claims may be corrected after the runs; only the grid must stay the same."""
    study(own_study(), tmp_path, scale="test", seeds=1, quiet=True, execution=CPU)
    file = tmp_path / own_study().name / STUDY
    asked = json.loads(file.read_text())
    asked["claims"] = [{"name": "not a claim", "comparisons": [{"terms": [{"levels": [["layers", 2]]}]}]}]
    file.write_text(json.dumps(asked))
    study(own_study(), tmp_path, scale="test", seeds=1, quiet=True, execution=CPU)
    assert from_json(StudyFile, json.loads(file.read_text())).claims == own_study().claims


def test_a_claim_about_an_unknown_factor_is_refused_before_anything_is_trained(tmp_path):
    wrong = replace(own_study(), claims=(Claim("c", "", "", (above("top-1 %", {"depth": "2"}, {"depth": "1"}),)),))
    with pytest.raises(ValueError, match="names depth; the factors of the cells are length"):
        study(wrong, tmp_path, scale="test", quiet=True, execution=CPU)
    assert not list(tmp_path.iterdir())


def test_a_second_question_mark_of_a_data_spec_joins_the_options():
    lab = Lab(Path("o"), {"jft300m": "shards:jft?split=train", "cifar10": "data"}, CPU)
    assert lab.expanded("{jft300m}?subset=9") == "shards:jft?split=train&subset=9"
    assert lab.expanded("cifar10:{cifar10}?split=test") == "cifar10:data?split=test"
    assert PAPER.upstream["JFT-300M"].data == "{jft300m}"


def test_rows_name_places_instead_of_paths():
    command = "vitlab study table8 --data cifar10=/data/cifar --data 'fashion-mnist=/my data/f' --jobs 2"
    found = without_places(command, {"cifar10": "/data/cifar", "fashion-mnist": "/my data/f"})
    assert found == "vitlab study table8 --data cifar10=CIFAR10 --data fashion-mnist=FASHION-MNIST --jobs 2"
    written = "vitlab study figure12 --out /my/studies --ledger results/studies"
    assert without_places(written, {}) == "vitlab study figure12 --out OUT --ledger results/studies"


def test_all_stands_for_every_study_and_several_share_their_trainings():
    assert study_names(["all"]) == list(STUDIES)
    assert study_names(["figure5", "table6", "table8"]) == ["table6", "table8"]
    plans = [plan_study(name, scale="test", seeds=2) for name in ("table8", "figure9")]
    joined = plans[0].together_with(plans[1:])
    assert joined.runs == sum(plan.runs for plan in plans) - 2, "ViT-B/16 is trained once per seed for both"
    assert len(joined.cells) == sum(len(plan.cells) for plan in plans)


def test_data_is_packed_once_with_its_labels_and_class_names(tmp_path):
    spec = "shapes?classes=3&images=9&size=16"
    places = packed(tmp_path, {"drawn": spec}, Console(quiet=True))
    file = tmp_path / "data" / "drawn.npz"
    assert places == {"drawn": f"npz:{file}"}
    before, drawn, stored = file.stat().st_mtime_ns, open_source(spec), open_source(places["drawn"])
    packed(tmp_path, {"drawn": spec}, Console(quiet=True))
    assert file.stat().st_mtime_ns == before
    assert stored.class_names == drawn.class_names
    for number in range(9):
        assert stored.label(number) == drawn.label(number)
        assert (stored.item(number).data == drawn.item(number).data).all()


def test_studies_are_listed_from_python():
    assert [row[0] for row in vitlab.list_studies().rows] == list(STUDIES)


def test_the_plan_of_all_studies_is_one_plan(tmp_path):
    plans = plan_studies(["all"], tmp_path, scale="tiny", seeds=1)
    assert len(plans.together.cells) == sum(len(one.cells) for one in plans.plans)
    names = {name for table in plans.places for name, _ in table.rows}
    assert names == {"cifar10", "dsprites", "fashion-mnist"}
    assert plans.together.runs < sum(one.runs for one in plans.plans), "equal trainings are shared"
    *single, last = plans.lines()
    assert len(single) == len(STUDIES)
    assert last.startswith("together: ")


def test_the_data_of_all_studies_is_checked_before_the_first_one_starts(tmp_path):
    with pytest.raises(ValueError, match="needs the data fashion-mnist"):
        list(run_studies(["figure7", "table2"], tmp_path, data={"cifar10": "x"}, seeds=1, quiet=True))
    assert not list(tmp_path.iterdir())


def test_a_setting_that_a_study_decides_itself_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a study keeps one checkpoint of each run"):
        study("figure9", tmp_path, scale="test", seeds=1, quiet=True, execution=replace(CPU, keep=5))


@pytest.mark.parametrize("is_wanted", [True, False])
def test_trainings_write_reports_if_asked(tmp_path, is_wanted):
    study("figure7", tmp_path, scale="test", seeds=1, quiet=True, execution=replace(CPU, report=is_wanted))
    assert [path.name for path in tmp_path.glob("trained/*/*/*.html")] == ["report.html"] * is_wanted


@pytest.mark.parametrize("name", ["../x", "a/b", "", "trained", "data", "x" * 101])
def test_a_study_has_the_name_of_a_folder_of_its_own(tmp_path, name):
    with pytest.raises(ValueError, match="named"):
        plan_study(own_study(name=name), tmp_path, scale="test")


def test_mistakes_in_a_study_of_ones_own_are_found_before_it_runs(tmp_path):
    def planned(cells, figure="a"):
        return plan_study(own_study(cells=cells, claims=(), figure=Figure(figure)), tmp_path, scale="test")

    start = TEST.pretrained("ViT-B/16")
    fine = Cell({"a": "1"}, TEST.few_shot(), start)
    with pytest.raises(ValueError, match="the figure uses depth, but the cells have a"):
        planned(lambda lab: [fine], figure="depth")
    with pytest.raises(ValueError, match="no task is named 'cats' at this scale; known are digits"):
        planned(lambda lab: [Cell({"a": "1"}, Accuracy(), lab.tuned(start, "cats", "ViT-B/16"))])
    with pytest.raises(ValueError, match="the paper has no recipe for ViT-Q/16"):
        planned(lambda lab: [Cell({"a": "1"}, lab.few_shot(), lab.pretrained("ViT-Q/16"))])
    with pytest.raises(ValueError, match="has no layer; it has patch, layers"):
        planned(lambda lab: [Cell({"a": "1"}, lab.few_shot(), lab.pretrained("ViT-B/16", layer=2))])
    with pytest.raises(ValueError, match="Accuracy needs a training with test images"):
        planned(lambda lab: [Cell({"a": "1"}, Accuracy(), start)])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cells": [1]}, r"cells of the study length is \[1\]; expected a function that takes a Scale"),
        ({"cells": lambda lab: None}, "cells of the study length returned None; expected Cells: yield each"),
        ({"cells": lambda lab: [lab.pretrained("ViT-B/16")]}, "yielded Training.*; expected a Cell, such as"),
        ({"figure": None}, "figure of the study length is None; expected a Figure"),
    ],
)
def test_a_study_of_other_types_is_refused(tmp_path, changes, told):
    with pytest.raises(ValueError, match=told):
        plan_study(own_study(**changes), tmp_path, scale="test")


@pytest.mark.parametrize("data", [3, None, [3], {"cifar10"}])
def test_data_of_other_types_is_refused(tmp_path, data):
    with pytest.raises(ValueError, match=r"data is .*; expected places by name, such as {'cifar10': DIR}"):
        study("table8", tmp_path, data=data, quiet=True)


def test_missing_data_is_named_as_it_is_given_in_python_and_on_the_command_line(tmp_path, capsys):
    with pytest.raises(ValueError, match=r"; give cifar10=PLACE and fashion-mnist=PLACE with data=$"):
        study("table5", tmp_path, quiet=True)
    assert main(["study", "table5", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("; give cifar10=PLACE and fashion-mnist=PLACE with --data\n")


def test_long_times_are_told_in_years():
    assert [duration(seconds) for seconds in (59, 3600 * 3, 86_400 * 40, 3.2e8, 1.9e13)] == [
        "59 s",
        "3.0 h",
        "40.0 days",
        "10.1 years",
        "600,000 years",
    ]
