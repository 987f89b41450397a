"""Child processes for real: what exceeds its memory or time is killed, what fails says why, nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vitlab.costing import work
from vitlab.costing.child import Task, reports
from vitlab.costing.children import Child, ChildFailed, TooLong, TooMuchMemory
from vitlab.costing.measuring import Measuring
from vitlab.costing.memory import resident
from vitlab.models.build import build_from_spec

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no /proc on this system")
HUGE = 1_000_000  # images of 16 x 16 pixels: 3 GB
LIMIT = 700 * 2**20


def task_of(spec, **how):
    return replace(Task(spec, "inference", "cpu", 1, 2.0, (1, 2)), **how)


def is_alive(pid):
    return bool(resident(pid))  # a zombie holds nothing


@pytest.mark.slow
def test_a_child_that_exceeds_its_memory_is_killed(tiny_spec):
    with Child(task_of(tiny_spec), LIMIT) as child:
        assert [report.batch for report in child.reports(60.0) if report.event == "batch"] == [1, 2]
        child.request(HUGE)
        with pytest.raises(TooMuchMemory):
            list(child.reports(60.0))
        assert child._process.wait() == -signal.SIGKILL
    assert not is_alive(child._process.pid)


@pytest.mark.slow
def test_what_cannot_even_be_reserved_is_too_large_as_well(tiny_spec):
    with Child(task_of(tiny_spec), LIMIT) as child:
        list(child.reports(60.0))
        child.request(10**11)
        with pytest.raises(TooMuchMemory):
            list(child.reports(60.0))


@pytest.mark.slow
def test_the_largest_batch_fits_and_was_found_by_trying(tiny_spec):
    spec = replace(tiny_spec, image=(128, 128), width=96, mlp=384)
    with Measuring(task_of(spec, seconds=600.0, batches=(1, 2, 4)), memory=500 * 2**20) as measuring:
        assert len(list(measuring.time_batches())) == 3
        found = measuring.find_largest()
        assert found.is_tried
        assert found.batch >= 4
        assert measuring._try(4 * found.batch) is None
        assert measuring._child is None


@pytest.mark.slow
def test_a_child_that_takes_too_long_is_ended(tiny_spec):
    with Child(task_of(tiny_spec), None) as child:
        list(child.reports(60.0))
        child.request(HUGE // 10)
        with pytest.raises(TooLong):
            list(child.reports(0.05))
    assert not is_alive(child._process.pid)


@pytest.mark.slow
def test_a_child_that_fails_says_why(tiny_spec):
    featureless = task_of(replace(tiny_spec, classes=0), mode="training")
    with Child(featureless, None) as child, pytest.raises(ChildFailed, match="without classes cannot be trained"):
        list(child.reports(60.0))
    lost = task_of(tiny_spec, device="nowhere")
    with Child(lost, None) as child, pytest.raises(ChildFailed, match=r"exit code 1: .*nowhere"):
        list(child.reports(60.0))


@pytest.mark.slow
def test_a_child_ends_with_its_parent_and_volunteers_to_be_killed_first(tmp_path):
    """Killed outright, so that the parent cannot end its child."""
    code = (
        "from vitlab.costing.child import Task\n"
        "from vitlab.costing.children import Child\n"
        "from vitlab.paper.models import model_spec\n"
        "child = Child(Task(model_spec('ViT-Ti/16', image=32), 'inference', 'cpu', 1, 1.0, (1,)), None)\n"
        "list(child.reports(60.0))\n"
        "print(child._process.pid, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000"
        parent.kill()
        parent.wait()
    for _ in range(600):
        if not is_alive(pid):
            break
        time.sleep(0.1)
    else:
        os.kill(pid, signal.SIGKILL)
        pytest.fail("the child outlived its parent by a minute")


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_reports_of_a_task(tiny_spec, mode):
    """In this process: the same function that a child runs."""
    found = list(reports(task_of(tiny_spec, mode=mode), torch.device("cpu"), [5]))
    assert [report.event for report in found] == ["started", "ready", "batch", "batch", "waiting", "batch", "waiting"]
    assert [report.batch for report in found if report.event == "batch"] == [1, 2, 5]
    assert all(report.seconds > 0 and report.held > 2**20 for report in found if report.event == "batch")
    assert found[1].flops > 1e6
    engine = "plain" if mode == "training" else "torch"
    assert {report.engine for report in found if report.event == "batch"} == {engine}


def test_an_engine_that_converts_computes_before_it_is_ready(tiny_spec, monkeypatch):
    """So that neither the conversion nor the first batch is measured."""
    computed = []

    def step_of(batch):
        return work.Step(lambda: computed.append(batch), "onnxruntime")

    monkeypatch.setattr("vitlab.costing.child.work", lambda *_: step_of)
    found = reports(task_of(tiny_spec, engine="onnxruntime", only_requests=True), torch.device("cpu"), [])
    assert next(report for report in found if report.event == "ready")
    assert computed == [1, 2]


@pytest.mark.slow
def test_the_conversion_of_a_model_takes_none_of_the_time_and_memory_of_its_row(tiny_spec, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="pip install 'vitlab[onnxruntime]'")
    pytest.importorskip("onnxscript", reason="pip install 'vitlab[onnxruntime]'")
    monkeypatch.setenv("VITLAB_ENGINE_CACHE", str(tmp_path))
    task, found = task_of(tiny_spec, engine="onnxruntime", seconds=1.5, batches=(2,)), []
    for _ in ("an empty cache", "a full one"):
        with Measuring(task, None) as measuring:
            (timing,) = measuring.time_batches()
            found.append(timing)
    cold, warm = found
    assert cold.seconds < 20 * warm.seconds
    assert cold.held < warm.held + 60 * 2**20


def test_a_batch_is_trained_as_a_run_would_by_default(tiny_spec, two_threads, monkeypatch):
    model, parts = build_from_spec(replace(tiny_spec, image=(64, 64), width=96, mlp=384)), []
    model.register_forward_pre_hook(lambda _, inputs: parts.append((len(inputs[0]), torch.get_num_threads())))
    monkeypatch.setattr(work, "build_from_spec", lambda spec: model)
    step_of = work.training(model.spec, torch.device("cpu"))
    for batch, engine, computed in ((1, "plain", [(1, 2)]), (20, "2 streams", [(10, 1)] * 2), (2, "plain", [(2, 2)])):
        parts.clear()
        step = step_of(batch)
        step.run()
        assert (step.engine, parts) == (engine, computed)
        assert model.blocks[0].mlp.is_lean == (engine == "2 streams")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
