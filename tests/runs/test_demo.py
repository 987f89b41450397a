"""The newcomer's minutes: it learns, compares what it measured, and never writes over an earlier run."""

import io
import json
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from vitlab import load_model
from vitlab.runs import demo

pytest.importorskip("sklearn", reason="the demo's digits need scikit-learn")
pytest.importorskip("matplotlib", reason="the demo's report needs matplotlib")

HELD_OUT = 355  # of 1,797: every fifth of each class


@pytest.mark.slow
def test_the_demo_tells_the_whole_story(tmp_path, monkeypatch):
    """With a fraction of its steps: the story is the same, the numbers are worse."""
    monkeypatch.setattr(demo, "PRETRAINING_STEPS", 20)
    monkeypatch.setattr(demo, "STEPS", 40)
    console = Console(record=True, width=300, file=io.StringIO())
    demo.run_demo(tmp_path / "out", console)
    text, out = console.export_text(), tmp_path / "out"
    results = {name: json.loads((out / name / "result.json").read_text()) for name in (demo.FINE_TUNED, demo.SCRATCH)}
    for result in results.values():
        right = round(result["test"]["top1"] * HELD_OUT)
        assert right > 0.3 * HELD_OUT  # a guess is right for a tenth
        assert f"{right} of {HELD_OUT}" in text
    base, tuned = load_model(out / demo.PRETRAINED / "model"), load_model(out / demo.FINE_TUNED / "model")
    assert (base.spec.image, tuned.spec.image) == ((16, 16), (24, 24))
    assert tuned.class_names == tuple("0123456789")
    assert f"vitlab predict {out / demo.FINE_TUNED / 'model'}" in text
    assert str(out / demo.REPORT) in text
    page = (out / demo.REPORT).read_text()
    for result in results.values():
        assert f"{round(result['test']['top1'] * HELD_OUT)} of {HELD_OUT}" in page
    for title in ("What it looks at", "What a patch is turned into", "What it knows about the plane", "Which digits"):
        assert title in page
    assert len(list(out.glob("digit-*.png"))) == demo.SHOWN


def test_both_ways_have_the_same_recipe_and_differ_in_their_start_alone(tmp_path):
    from vitlab.models.build import build_from_spec
    from vitlab.weights.save import save_model

    save_model(build_from_spec(demo.SPEC), tmp_path / "base")
    tuned, scratch = demo.reading(tmp_path / "base"), demo.reading()
    assert tuned.recipe == scratch.recipe
    assert tuned.model == scratch.model
    assert (tuned.data, tuned.test, tuned.seed) == (scratch.data, scratch.test, scratch.seed)
    assert tuned.start
    assert not scratch.start


def test_a_second_run_gets_a_folder_of_its_own(tmp_path):
    assert [demo._free(tmp_path / "out").name for _ in range(3)] == ["out", "out-2", "out-3"]


@pytest.mark.slow
def test_a_stopped_demo_says_where_it_wrote_what_is_left_and_how_to_go_on(tmp_path):
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
    assert demo.left_over(tmp_path / "out", "vitlab") == "stopped before anything was written"
    first, second = tmp_path / "out" / demo.PRETRAINED, tmp_path / "out" / demo.FINE_TUNED
    for path, is_finished in ((first, True), (second, False)):
        path.mkdir(parents=True)
        (path / ("result.json" if is_finished else "run.json")).touch()
    line = demo.left_over(tmp_path / "out", "vitlab")
    assert f"{tmp_path / 'out'} holds 1-pretrained, and 2-fine-tuned unfinished" in line
    assert f"vitlab resume {second} goes on with it" in line
    (second / "result.json").touch()
    line = demo.left_over(tmp_path / "out", "vitlab")
    assert "holds 1-pretrained, 2-fine-tuned, but no report" in line
    assert "resume" not in line
