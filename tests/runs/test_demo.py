"""The demo: it trains, compares what it measured, says who won, and never overwrites an earlier run."""

import io
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from rich.console import Console

from vitlab import load_model, save_model
from vitlab.data.sources.catalogue import open_source
from vitlab.data.sources.drawn.letters import LETTERS
from vitlab.models.build import build_from_spec
from vitlab.runs import demo, demo_report
from vitlab.runs.demo_report import ALL

pytest.importorskip("sklearn", reason="the demo's digits need scikit-learn")
pytest.importorskip("matplotlib", reason="the demo's report needs matplotlib")

HELD_OUT = 355  # of 1,797: every fifth of each class


@pytest.fixture
def tiny(monkeypatch):
    """The demo with a fraction of its steps and runs: the story is the same, the numbers are worse."""
    small = {"PRETRAINING_STEPS": 20, "STEPS": 10, "STEPS_WITH_ALL": 60, "SHOTS": (1, ALL), "SEEDS": (0, 1)}
    for name, value in small.items():
        monkeypatch.setattr(demo, name, value)


@pytest.mark.slow
def test_the_demo_tells_the_whole_story(tmp_path, tiny):
    console = Console(record=True, width=300, file=io.StringIO())
    demo.run_demo(tmp_path / "out", console)
    text, out = console.export_text(), tmp_path / "out"
    page = (out / demo.REPORT).read_text()
    for shots in (1, ALL):
        for way in ("pre-trained", "from scratch"):
            found = [100 * accuracy(out / demo.DIGITS / demo.run_name(way, shots, seed)) for seed in (0, 1)]
            cell = f"{statistics.mean(found):.1f} ± {statistics.stdev(found):.1f} %"
            assert cell in text
            assert cell in page
            assert shots == 1 or min(found) > 30  # % of digits; a guess has 10
    fine_tuned = out / demo.DIGITS / "all-pre-trained-0" / "model"
    base, tuned = load_model(out / demo.PRETRAINED / "model"), load_model(fine_tuned)
    assert (base.spec.image, tuned.spec.image) == ((16, 16), (20, 20))
    assert base.class_names == tuple(LETTERS)
    assert tuned.class_names == tuple("0123456789")
    assert f"vitlab predict {fine_tuned}" in text
    assert str(out / demo.REPORT) in text
    assert page.index('class="plot" alt="accuracy against labels per class"') == page.index('class="plot"')
    for title in ("Accuracy against labels", "Which digits", "Attention rollout", "Embedding filters"):
        assert title in page
    assert len(list(out.glob("digit-*.png"))) == demo.SHOWN


@pytest.mark.parametrize("shots", [1, 50, ALL])
def test_both_ways_have_the_same_recipe_and_differ_only_in_their_start(tmp_path, shots):
    tuned = demo.reading(saved_base(tmp_path), shots, seed=2)
    scratch = demo.reading(None, shots, seed=2)
    assert tuned.start
    assert not scratch.start
    assert replace(tuned, start="", start_sha256="") == scratch
    assert tuned.recipe.image == (20, 20)


def test_each_seed_has_labels_of_its_own_and_all_are_tested_on_the_same_digits():
    specs = [demo.reading(None, 5, seed) for seed in demo.SEEDS]
    sources = [open_source(spec.data) for spec in specs]
    drawn = {frozenset(map(source.id, range(len(source)))) for source in sources}
    tested = open_source(specs[0].test)
    assert {spec.test for spec in specs} == {"digits?split=test"}
    assert len(drawn) == len(demo.SEEDS)
    assert all(len(ids) == 50 for ids in drawn)
    assert not any(ids & set(map(tested.id, range(len(tested)))) for ids in drawn)
    assert len(tested) == HELD_OUT


def test_all_labels_are_about_144_per_class():
    source = open_source(demo.reading(None, ALL, 0).data)
    assert round(len(source) / 10) == ALL
    assert [demo_report.shots_name(shots) for shots in demo.SHOTS] == ["1", "5", "10", "50", "all"]


@pytest.mark.slow
def test_stopped_runs_on_digits_continue_where_they_were(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(demo, "SHOTS", (1,))
    base, folder = saved_base(tmp_path), tmp_path / "digits"

    class Interrupting(io.StringIO):
        def write(self, text):
            if "1 of 4" in text:
                os.kill(os.getpid(), signal.SIGINT)
            return super().write(text)

    with pytest.raises(KeyboardInterrupt):
        demo._train_on_digits(folder, base, Console(file=Interrupting(), width=200))
    finished = {path: path.stat().st_mtime_ns for path in folder.glob("*/result.json")}
    assert 1 <= len(finished) < 4
    found = demo._train_on_digits(folder, base, Console(file=io.StringIO()))
    assert {way: list(of) for way, of in found.items()} == {"pre-trained": [1], "from scratch": [1]}
    assert all(len(of[1]) == 2 for of in found.values())
    assert all(path.stat().st_mtime_ns == when for path, when in finished.items())


def test_the_report_says_who_is_ahead_whoever_it_is():
    low, high = [10.0, 12.0], [50.0, 52.0]

    def found(pretrained, scratch):
        ways = {"pre-trained": pretrained, "from scratch": scratch}
        return {way: dict(zip((1, 5, ALL), of, strict=True)) for way, of in ways.items()}

    won = found([high] * 3, [low] * 3)
    assert "pre-trained model is more accurate at every number of labels" in demo_report.who_is_ahead(won)
    lost = found([low] * 3, [high, high, low])
    assert "Pre-training did not help" in demo_report.who_is_ahead(lost)
    mixed = found([high, low, high], [low, low, low])
    assert "more accurate with 1 and all labels per class, but not with 5" in demo_report.who_is_ahead(mixed)
    assert demo_report.accuracy_rows(lost)[1:3] == [
        ("1", "11.0 ± 1.4 %", "51.0 ± 1.4 %", "-40.0"),
        ("5", "11.0 ± 1.4 %", "51.0 ± 1.4 %", "-40.0"),
    ]


def test_a_second_run_gets_a_folder_of_its_own(tmp_path):
    assert [demo._free(tmp_path / "out").name for _ in range(3)] == ["out", "out-2", "out-3"]


@pytest.mark.slow
def test_a_stopped_demo_says_where_it_wrote_what_is_left_and_how_to_continue(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-m", "vitlab.cli", "demo", "--out", str(out)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    begun = tmp_path / "out-2" / demo.PRETRAINED / "checkpoints"
    while not begun.exists() and started.poll() is None:
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    said, complained = started.communicate(timeout=300)
    # CPython ends by the signal itself, which a shell calls 130 too, if it came inside of exec(), as imports do.
    assert started.returncode in (130, -signal.SIGINT)
    assert said.splitlines()[0] == f"{out} exists; this demo is written to {tmp_path / 'out-2'}"
    left = tmp_path / "out-2" / demo.PRETRAINED
    (line,) = [line for line in complained.splitlines() if "stopped" in line]
    assert f"vitlab resume {left}" in line
    assert "vitlab demo" in line
    assert left.is_dir()


def test_what_is_left_of_a_stopped_demo(tmp_path):
    out = tmp_path / "out"
    assert demo.left_over(out, "vitlab") == "stopped before anything was written"
    first = out / demo.PRETRAINED
    first.mkdir(parents=True)
    line = demo.left_over(out, "vitlab")
    assert f"{out} holds 1-pretrained, unfinished" in line
    assert f"vitlab resume {first} continues it" in line
    (first / "result.json").touch()
    for number in range(3):
        run = out / demo.DIGITS / str(number)
        run.mkdir(parents=True)
        (run / "result.json").touch()
    line = demo.left_over(out, "vitlab")
    assert "holds 1-pretrained and 3 of 30 runs in 2-digits, no report" in line
    assert "resume" not in line


def accuracy(run):
    return json.loads((run / "result.json").read_text())["test"]["top1"]


def saved_base(folder):
    save_model(build_from_spec(demo.SPEC), folder / "base")
    return folder / "base"
