"""Runs from beginning to end, and their bad moments: signals, full disks, numbers that are none, logs that are gone."""

import io
import json
import os
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

import crashes
from vitlab.cli import main
from vitlab.errors import Diverged
from vitlab.files.store import Locked
from vitlab.run_dir import CHECKPOINTS, EVENTS, MODEL, RESULT, RunDir
from vitlab.runs.training import trainer as training
from vitlab.runs.training.state import initial_state
from vitlab.runs.training.trainer import train_run
from vitlab.spec.recipe import Execution
from vitlab.train.checkpoints.files import name_of
from vitlab.train.update import Examples, Update

SPEC = crashes.small_run()


def go_on(path):
    """(exit code, what was said)"""
    said = io.StringIO()
    return train_run(RunDir.open(path), Console(file=said, width=1000)), said.getvalue()


@pytest.fixture(scope="module")
def unbroken(memory):
    path = memory / "unbroken-here"
    crashes.new_run(path, SPEC)
    assert go_on(path)[0] == 0
    return path


@pytest.fixture(scope="module")
def half(memory):
    """A run that was stopped after step 8; tests take copies."""
    path = memory / "half"
    crashes.new_run(path, SPEC)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDir, "record", RunDir.record)  # put back afterwards
        crashes.on_step(8, os.kill, os.getpid(), signal.SIGTERM)
        assert go_on(path)[0] == 143
    return path


@pytest.fixture
def stopped(half, in_memory):
    return shutil.copytree(half, in_memory / "run")


@pytest.fixture
def patched_record(monkeypatch):
    monkeypatch.setattr(RunDir, "record", RunDir.record)


def test_a_finished_run_has_everything_and_is_left_as_it_is(unbroken):
    result = json.loads((unbroken / RESULT).read_text())
    assert (unbroken / MODEL / "weights.safetensors").is_file()
    assert result["validation"]["count"] == 35
    assert list(RunDir(unbroken).history("step", "loss")) == list(range(1, crashes.STEPS + 1))
    before = crashes.remains(unbroken)
    code, said = go_on(unbroken)
    assert code == 0
    assert "is finished" in said
    assert crashes.remains(unbroken) == before


class TestSignals:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
    @pytest.mark.parametrize("step", [1, 7, 20, crashes.STEPS])
    def test_a_stopped_run_is_saved_at_that_step_and_ends_the_same(
        self, in_memory, unbroken, patched_record, number, code, step
    ):
        path = in_memory / "run"
        crashes.new_run(path, SPEC)
        crashes.on_step(step, os.kill, os.getpid(), number)
        assert go_on(path)[0] == code
        assert crashes.whole_checkpoints(path)[-1] == step
        assert [event["code"] for event in RunDir(path).events("stopped")] == [code]
        crashes.on_step(step, lambda: None)
        code, said = go_on(path)
        assert code == 0
        assert f"continuing after step {step}\n" in said
        crashes.assert_same(path, unbroken)

    def test_usr1_saves_and_goes_on(self, in_memory, unbroken, patched_record):
        path = in_memory / "run"
        crashes.new_run(path, SPEC)
        crashes.on_step(7, os.kill, os.getpid(), signal.SIGUSR1)
        assert go_on(path)[0] == 0
        assert 7 in [event["step"] for event in RunDir(path).events("saved")]
        assert 7 not in [event["step"] for event in RunDir(unbroken).events("saved")]
        crashes.assert_same(path, unbroken)

    @pytest.mark.slow
    def test_usr1_before_the_first_step_ends_nothing(self, in_memory, unbroken):
        path = in_memory / "run"
        crashes.new_run(path, SPEC)
        child = crashes.start(crashes.carry_on, path, crashes.signal_before_training, signal.SIGUSR1)
        assert crashes.code_of(child) == 0
        crashes.assert_same(path, unbroken)

    @pytest.mark.slow
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
    def test_a_second_signal_ends_it_at_once_and_it_resumes(self, stopped, in_memory, unbroken, number, code):
        child = crashes.start(crashes.carry_on, stopped, crashes.on_step, 11, crashes.signal_twice, number, in_memory)
        assert crashes.code_of(child) == code
        assert (in_memory / "once").exists()
        assert not (in_memory / "twice").exists()
        crashes.finish(stopped)
        crashes.assert_same(stopped, unbroken)

    @pytest.mark.slow
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
    def test_under_a_launcher_a_second_signal_is_the_first_again(self, stopped, in_memory, number, code):
        how = (crashes.on_step, 11, crashes.signal_twice_as_a_launcher, number, in_memory)
        assert crashes.code_of(crashes.start(crashes.carry_on, stopped, *how)) == code
        assert (in_memory / "twice").exists()
        assert crashes.whole_checkpoints(stopped)[-1] == 11

    @pytest.mark.slow
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
    def test_a_signal_to_the_whole_group_saves_although_workers_get_it_too(self, in_memory, unbroken, number, code):
        path = in_memory / "run"
        crashes.new_run(path, replace(SPEC, execution=replace(SPEC.execution, workers=1)))
        child = crashes.start(crashes.carry_on, path, crashes.own_group_and_wait, 7)
        assert crashes.wait_for(lambda: crashes.last_step(path) == 7, child)
        os.killpg(child.pid, number)
        assert crashes.code_of(child) == code
        assert crashes.whole_checkpoints(path)[-1] == 7
        crashes.finish(path)
        assert crashes.numbers(path) == crashes.numbers(unbroken)


class TestLock:
    @pytest.mark.slow
    def test_a_second_process_is_refused_and_a_killed_one_frees_the_folder(self, in_memory, unbroken, capfd):
        path = in_memory / "run"
        crashes.new_run(path, replace(SPEC, execution=replace(SPEC.execution, workers=1)))
        child = crashes.start(crashes.carry_on, path, crashes.on_step, 7, crashes.sleep_for_ever)
        assert crashes.wait_for(lambda: crashes.last_step(path) == 7, child)
        before = crashes.remains(path), (path / EVENTS).read_bytes()
        with pytest.raises(Locked, match=rf"in use by process {child.pid};"):
            go_on(path)
        assert main(["resume", str(path)]) == 2
        assert f"process {child.pid};" in capfd.readouterr().err
        assert (crashes.remains(path), (path / EVENTS).read_bytes()) == before
        workers = [int(pid) for pid in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()]
        assert workers
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)  # alive, whatever happens to its parent
        child.kill()
        crashes.code_of(child)
        try:
            assert go_on(path)[0] == 0
        finally:
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
        assert crashes.numbers(path) == crashes.numbers(unbroken)


class TestDisk:
    @pytest.mark.slow
    def test_a_quota_is_one_line_and_the_run_goes_on_when_it_is_lifted(self, stopped, in_memory, unbroken):
        before = crashes.whole_checkpoints(stopped)
        said = in_memory / "said"
        child = crashes.start(crashes.resume_by_command, stopped, said, crashes.limit_files, 9_000)
        assert crashes.code_of(child) == 2
        (line,) = said.read_text().splitlines()
        assert "a checkpoint could not be written" in line
        assert "the last good one is of step 8" in line
        assert crashes.whole_checkpoints(stopped) == before
        crashes.finish(stopped)
        assert not [entry for entry in stopped.rglob(".*") if entry.name != ".lock"]
        crashes.assert_same(stopped, unbroken)

    @pytest.mark.slow
    def test_a_full_disk_leaves_the_old_checkpoints_and_more_room_is_enough(self, stopped, in_memory, unbroken):
        disk, out = in_memory / "disk", in_memory / "out"
        disk.mkdir()
        child = crashes.start(crashes.fill_disk_and_recover, stopped, disk, out)
        if (code := crashes.code_of(child)) == 99:
            pytest.skip("a small disk needs a mount namespace, which this user may not make")
        assert code == 0
        assert "No space left on device" in out.with_suffix(".said").read_text()
        assert crashes.remains(out) == crashes.remains(unbroken)

    @pytest.mark.slow
    def test_a_folder_that_cannot_be_written_is_one_line(self, stopped, in_memory):
        before, said = crashes.remains(stopped), in_memory / "said"
        mounts = (f"mount --bind {stopped} {stopped}", f"mount -o remount,bind,ro {stopped}")
        child = crashes.start(crashes.resume_by_command, stopped, said, crashes.own_mounts, *mounts)
        if (code := crashes.code_of(child)) == 99:
            pytest.skip("a read-only folder needs a mount namespace, which this user may not make")
        assert code == 2
        (line,) = said.read_text().splitlines()
        assert "Read-only file system" in line
        assert crashes.remains(stopped) == before

    def test_what_a_dead_process_left_is_removed_at_the_next_start(self, stopped):
        for name in (".model.tmp-77", f"{CHECKPOINTS}/.{name_of(9)}.tmp-77"):
            (stopped / name).mkdir()
            (stopped / name / "weights.safetensors").write_bytes(b"half")
        (stopped / ".result.json.tmp-77").write_text("{")
        with (stopped / EVENTS).open("a") as file:
            file.write('{"event": "st')
        assert go_on(stopped)[0] == 0
        assert not [entry for entry in stopped.rglob(".*") if entry.name != ".lock"]
        assert all(json.loads(line) for line in (stopped / EVENTS).read_text().splitlines())


class TestDamage:
    @pytest.mark.parametrize("name", ["optimizer.safetensors", "average.safetensors", "state.json", "manifest.json"])
    def test_the_checkpoint_before_is_taken_and_the_end_is_the_same(self, stopped, unbroken, name):
        file = stopped / CHECKPOINTS / name_of(8) / name
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        code, said = go_on(stopped)
        assert code == 0
        assert f"damaged, set aside: {name_of(8)}: " in said
        assert "continuing after step 6\n" in said
        shutil.rmtree(stopped / CHECKPOINTS / f"damaged-{name_of(8)}")
        crashes.assert_same(stopped, unbroken)


class TestEnvironment:
    def test_another_environment_is_told(self, stopped, monkeypatch):
        monkeypatch.setattr(torch, "__version__", "2.0.0")
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
        code, said = go_on(stopped)
        assert code == 0
        (line,) = [line for line in said.splitlines() if "bit-exact" in line]
        assert line.startswith("not bit-exact because threads was 1 and is 2; torch was 2.")
        assert line.endswith("and is 2.0.0")

    def test_the_same_environment_is_not_mentioned(self, stopped):
        assert "bit-exact" not in go_on(stopped)[1]


def poison(monkeypatch, steps):
    """Targets that are no numbers, in the updates of these steps."""
    examples = training.Training._examples

    def poisoned(session):
        for number, batch in enumerate(examples(session), start=session.state.progress.step + 1):
            yield replace(batch, targets=batch.targets * float("nan")) if number in steps else batch

    monkeypatch.setattr(training.Training, "_examples", poisoned)


class TestNotANumber:
    def test_the_step_is_skipped_shown_and_counted(self, in_memory, monkeypatch):
        path = in_memory / "run"
        crashes.new_run(path, SPEC)
        poison(monkeypatch, {3, 4, 9})
        code, said = go_on(path)
        assert code == 0
        events = {event["step"]: event for event in RunDir(path).events("step")}
        assert [step for step, event in events.items() if event["skipped"]] == [3, 4, 9]
        assert events[3]["loss"] == events[9]["loss"] == "nan"
        assert "step 9: loss nan, gradient norm nan: skipped" in said
        assert json.loads((path / RESULT).read_text())["step"] <= crashes.STEPS

    def test_a_skipped_update_changes_nothing(self):
        state = initial_state(SPEC, torch.device("cpu"))
        update = Update(SPEC.recipe, SPEC.execution, seed=0, prepare=lambda pixels: pixels)
        good = Examples(torch.rand(12, 3, 8, 8), torch.eye(10)[torch.arange(12) % 10])
        for _ in range(5):  # past the warm-up's rate of 0
            state.progress.step += 1
            assert not update(state, state.module, good).skipped
        before = {(g, n): t.clone() for g, group in state.groups().items() for n, t in group.items()}
        assert update(state, state.module, replace(good, targets=good.targets * float("nan"))).skipped
        assert all(torch.equal(t, before[g, n]) for g, group in state.groups().items() for n, t in group.items())
        assert not update(state, state.module, good).skipped
        assert not all(torch.equal(t, before[g, n]) for g, group in state.groups().items() for n, t in group.items())

    def test_three_in_a_row_stop_the_run_with_code_3_and_what_to_do(self, stopped, monkeypatch, capsys):
        poison(monkeypatch, {10, 11, 12})
        assert main(["resume", str(stopped)]) == 3
        (line,) = capsys.readouterr().err.splitlines()
        assert "3 steps in a row were not finite; lower the learning rate" in line
        assert crashes.whole_checkpoints(stopped)[-1] == 10
        assert not any(t.name == "checkpoint writer" for t in threading.enumerate())

    def test_two_in_a_row_before_a_stop_and_one_after_it_are_three(self, stopped, monkeypatch, patched_record):
        poison(monkeypatch, {9, 10, 11})
        crashes.on_step(10, os.kill, os.getpid(), signal.SIGTERM)
        assert go_on(stopped)[0] == 143
        with pytest.raises(Diverged):
            go_on(stopped)


class TestLogs:
    @pytest.mark.slow
    def test_a_closed_output_does_not_stop_a_training(self, stopped, in_memory, unbroken):
        child = crashes.start(crashes.resume_by_command, stopped, in_memory / "said", crashes.close_output)
        assert crashes.code_of(child) == 0
        crashes.assert_same(stopped, unbroken)

    def test_events_that_cannot_be_written_are_counted_and_nothing_else(self, in_memory, unbroken):
        path = in_memory / "run"
        crashes.new_run(path, SPEC)
        (path / EVENTS).symlink_to("/dev/full")
        code, said = go_on(path)
        assert code == 0
        assert f"events could not be written to {path / EVENTS}" in said
        assert crashes.remains(path) == crashes.remains(unbroken)


@pytest.mark.slow
def test_a_resumed_run_needs_no_more_memory_than_a_fresh_one(tmp_path):
    model = replace(SPEC.model, layers=6, width=448, mlp=1792, heads=7)
    spec = replace(
        crashes.small_run(steps=4, average=None, validate_every=0, patience=0, execution=Execution(save_every=2)),
        model=model,
        held_out=0.0,
    )
    fresh, again = tmp_path / "fresh", tmp_path / "again"
    peaks = []
    for path in (fresh, again):
        crashes.new_run(path, spec)
    child = crashes.start(crashes.carry_on, again, crashes.on_step, 2, crashes.signal_twice, signal.SIGTERM, tmp_path)
    assert crashes.code_of(child) == 143
    for path in (fresh, again):
        child = crashes.start(crashes.measure_memory, path, path / "peak")
        assert crashes.code_of(child) == 0
        peaks.append(int((path / "peak").read_text()))
    parameters = 14_500_000 * 4 // 1024
    assert peaks[0] > 4 * parameters  # the model is what is measured
    assert peaks[1] <= 1.15 * peaks[0], f"{peaks} KB"
