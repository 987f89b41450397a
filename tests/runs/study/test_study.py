"""`vitlab.study`: every study at the scale of the tests, plans, resuming after a kill, rivals, studies of one's own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import vitlab
from vitlab.cli import main
from vitlab.data.sources.catalogue import open_source
from vitlab.page.run_browser.api import RunBrowser
from vitlab.recipe import Execution
from vitlab.run_dir import DIVERGED, RESULT
from vitlab.runs.study.measuring import ROW
from vitlab.runs.study.study import places_table, plan_study, study, study_names, without_places
from vitlab.runs.study.trainings import Lab, choose_recipes, chosen_recipe, packed, picking_jobs
from vitlab.studies.catalogue import STUDIES
from vitlab.studies.claims import Claim, above
from vitlab.studies.scales import PAPER, TEST
from vitlab.studies.study import Accuracy, Cell, Figure, Study

CPU = Execution()
SECONDS = 600  # that nothing takes, however busy the machine is


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """One folder for all studies: they share their trainings."""
    return tmp_path_factory.mktemp("studies")


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
def test_every_study_runs_at_the_scale_of_the_tests(name, out):
    found = study(name, out, scale="test", seeds=1, quiet=True, execution=CPU)
    plan = plan_study(name, out, scale="test", seeds=1)
    assert [row.levels for row in found.rows] == [dict(cell.levels) for cell in plan.cells]
    for row in found.rows:
        assert row.measure in row.values
        assert row.versions["torch"]
        assert "/" not in row.data.replace("tiny/", ""), "rows name places, not paths"
    folder = out / name
    assert {file.name for file in folder.iterdir()} >= {
        "table.md",
        "table.csv",
        "table.json",
        "figure.svg",
        "figure.png",
    }
    assert len(found.table.rows) == len(plan.cells)
    assert {one.answer for one in found.verdicts} == {"not run yet"}  # one seed decides nothing
    before = times(out)
    again = study(name, out, scale="test", seeds=1, quiet=True, execution=CPU)
    assert again.rows == found.rows
    assert times(out) == before, "a finished study repeats nothing"


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
def test_a_killed_study_continues_without_repeating_finished_runs(tmp_path):
    script = (
        "import sys, torch\n"
        "from vitlab.runs.study.study import study\n"
        "from vitlab.recipe import Execution\n"
        "torch.set_num_threads(1)\n"
        f"study('table7', {str(tmp_path)!r}, scale='test', seeds=1, quiet=True, execution=Execution())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        end = time.monotonic() + SECONDS
        while not any(tmp_path.glob(f"trained/*pets*/*/{RESULT}")) and time.monotonic() < end:
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    before = times(tmp_path)
    assert 5 <= len([one for one in before if one.endswith(RESULT)]) < 8, "four pre-trainings and some fine-tunings"
    found = study("table7", tmp_path, scale="test", seeds=1, quiet=True, execution=CPU)
    assert len(found.rows) == 4
    assert before.items() <= times(tmp_path).items()


@pytest.mark.slow
def test_runs_can_take_place_in_processes_of_their_own(tmp_path):
    alone = study(own_study(), tmp_path / "a", scale="test", seeds=1, quiet=True, execution=CPU)
    several = study("figure9", tmp_path / "b", scale="test", seeds=1, jobs=2, quiet=True, execution=CPU)
    assert len(several.rows) == 3
    assert all(row.values for row in several.rows)
    browser = RunBrowser(tmp_path)
    try:
        listed = browser.list()
    finally:
        browser.close()
    assert listed["total"] == 4 + 3, "the run browser shows every training of every study"
    assert {one["state"] for one in listed["runs"]} == {"finished"}
    assert len(alone.rows) == 2


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
    assert found.table.rows[0][1] is None


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
    assert "needs data that it cannot draw: cifar10=" in capsys.readouterr().err


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


def test_the_plan_says_what_data_is_needed():
    plan = plan_study("figure2", scale="tiny")
    names = [name for name, _ in places_table(plan).rows]
    assert names == ["cifar10", "dsprites", "fashion-mnist"]
    assert all(words for _, words in places_table(plan).rows)


def test_a_study_says_what_is_wrong_before_anything_starts(tmp_path):
    with pytest.raises(ValueError, match="cifar10=the folder of CIFAR-10"):
        study("table8", tmp_path, scale="tiny", quiet=True)
    with pytest.raises(ValueError, match="no data is named mnist here; known are cifar10"):
        study("table8", tmp_path, scale="tiny", data={"mnist": "x", "cifar10": "y"}, quiet=True)
    with pytest.raises(ValueError, match="such as cifar10=data/cifar10"):
        study("table8", tmp_path, scale="tiny", data=["cifar10"], quiet=True)
    with pytest.raises(ValueError, match="at least 1"):
        study("table8", tmp_path, scale="tiny", seeds=0, quiet=True)
    assert not list(tmp_path.iterdir())


def test_a_folder_holds_one_grid(tmp_path):
    (tmp_path / "table8").mkdir()
    (tmp_path / "table8" / "study.json").write_text(json.dumps({"study": "table8", "scale": "paper"}))
    with pytest.raises(ValueError, match="holds another study: its cells, format, scale, version differ"):
        study("table8", tmp_path, scale="test", seeds=1, quiet=True, execution=CPU)


def test_a_second_question_mark_of_a_data_spec_joins_the_options():
    lab = Lab(Path("o"), {"jft300m": "shards:jft?split=train", "cifar10": "data"}, CPU)
    assert lab.expanded("{jft300m}?subset=9") == "shards:jft?split=train&subset=9"
    assert lab.expanded("cifar10:{cifar10}?split=test") == "cifar10:data?split=test"
    assert PAPER.upstream["JFT-300M"].data == "{jft300m}"


def test_rows_name_places_instead_of_paths():
    command = "vitlab study table8 --data cifar10=/data/cifar --data 'fashion-mnist=/my data/f' --jobs 2"
    found = without_places(command, {"cifar10": "/data/cifar", "fashion-mnist": "/my data/f"})
    assert found == "vitlab study table8 --data cifar10=CIFAR10 --data fashion-mnist=FASHION-MNIST --jobs 2"


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
