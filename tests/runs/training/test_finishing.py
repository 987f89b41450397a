"""What is kept at the end of a run: nothing that is not finite (C9), and nothing that is missing or damaged (A12)."""

import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

import crashes
from vitlab import save_model
from vitlab.cli import main
from vitlab.errors import Diverged
from vitlab.models.build import build_from_spec
from vitlab.run_dir import CHECKPOINTS, MODEL, RESULT, RunDir
from vitlab.runs.training.trainer import train_run
from vitlab.train.checkpoints.files import name_of
from vitlab.train.update import Update

PLAIN = crashes.small_run(patience=0, validate_every=0)


def go_on(path):
    """(exit code, what was said)"""
    said = io.StringIO()
    return train_run(RunDir.open(path), Console(file=said, width=1000)), said.getvalue()


def exploding(step, monkeypatch, factor=1e30):
    """Let the weights grow beyond use in this step, counted from 1, and stay finite."""
    plain = Update.__call__

    def update(self, state, forward, examples):
        done = plain(self, state, forward, examples)
        if state.progress.step + 1 == step:
            with torch.no_grad():
                for module in filter(None, (state.module, state.average)):
                    for parameter in module.parameters():
                        parameter.mul_(factor)
        return done

    monkeypatch.setattr(Update, "__call__", update)


class TestNotFinite:
    @pytest.mark.parametrize("last", [1, 2])
    def test_a_run_whose_last_steps_were_not_finite_keeps_no_model_and_names_the_last_good_checkpoint(
        self, in_memory, monkeypatch, last
    ):
        run = crashes.new_run(in_memory / "run", replace(PLAIN, held_out=0.0))
        exploding(crashes.STEPS - last, monkeypatch)
        steps = {1: "step", 2: "2 steps"}[last]
        good = {1: 22, 2: 20}[last]  # of those saved every other step, the newest before the weights exploded
        for _ in range(2):  # and again when it is resumed
            with pytest.raises(Diverged, match=rf"the last {steps} .*the last good checkpoint is of step {good}\b"):
                go_on(run.path)
            assert not (run.path / MODEL).exists()
            assert not (run.path / RESULT).exists()

    def test_the_command_ends_with_an_error(self, in_memory, monkeypatch, capsys):
        run = crashes.new_run(in_memory / "run", replace(PLAIN, held_out=0.0))
        exploding(crashes.STEPS - 1, monkeypatch)
        assert main(["resume", str(run.path)]) == 3
        assert "the last good checkpoint is of step 22" in " ".join(capsys.readouterr().err.split())

    def test_weights_that_explode_in_the_last_step_are_found_by_their_answers(self, in_memory, monkeypatch):
        run = crashes.new_run(in_memory / "run", replace(PLAIN, held_out=0.0))
        exploding(crashes.STEPS, monkeypatch)
        with pytest.raises(Diverged, match=r"outputs are NaN or infinite.*last good checkpoint is of step 22"):
            go_on(run.path)
        assert not (run.path / MODEL).exists()
        assert not (run.path / RESULT).exists()

    def test_weights_that_are_not_finite_after_the_last_step_name_the_last_good_checkpoint(
        self, in_memory, monkeypatch
    ):
        run = crashes.new_run(in_memory / "run", replace(PLAIN, held_out=0.0))
        exploding(crashes.STEPS, monkeypatch, factor=float("inf"))
        with pytest.raises(FloatingPointError, match=r"has NaN or infinity.*last good checkpoint is of step 22\b"):
            go_on(run.path)
        assert not (run.path / MODEL).exists()

    def test_a_skipped_step_before_the_end_is_no_reason_to_refuse(self, in_memory, monkeypatch):
        run = crashes.new_run(in_memory / "run", replace(PLAIN, held_out=0.0))
        plain = Update.__call__

        def update(self, state, forward, examples):
            if state.progress.step == 20:
                examples = replace(examples, targets=examples.targets * float("nan"))
            return plain(self, state, forward, examples)

        monkeypatch.setattr(Update, "__call__", update)
        assert go_on(run.path)[0] == 0
        assert json.loads((run.path / RESULT).read_text())["skipped"] == 1


@pytest.fixture(scope="module")
def done(memory):
    """A finished run with early stopping, so that its best weights are kept; tests take copies."""
    path = memory / "done"
    crashes.new_run(path, crashes.small_run())
    assert go_on(path)[0] == 0
    return path


@pytest.fixture
def finished(done, in_memory):
    return shutil.copytree(done, in_memory / "run")


def break_model(path, how):
    weights = path / MODEL / "weights.safetensors"
    if how == "missing":
        shutil.rmtree(path / MODEL)
    elif how == "half":
        weights.unlink()
    elif how == "flipped":
        held = weights.read_bytes()
        weights.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))
    else:  # whole, with a sound manifest of its own
        shutil.rmtree(path / MODEL)
        save_model(build_from_spec(RunDir(path).spec().model, seed=5), path / MODEL)


class TestLostModel:
    @pytest.mark.parametrize("how", ["missing", "half", "flipped", "another"])
    def test_a_missing_or_damaged_model_is_made_again_from_the_checkpoint_and_it_is_said(self, finished, done, how):
        break_model(finished, how)
        code, said = go_on(finished)
        assert code == 0
        assert "is finished, but its model cannot be used" in said
        assert "the model was written again from the checkpoint of step" in said
        after, before = crashes.remains(finished), crashes.remains(done)
        assert {name: sha for name, sha in after.items() if not name.startswith("damaged-")} == before
        assert (finished / "damaged-model").exists() == (how != "missing")
        assert [event["step"] for event in RunDir(finished).events("rebuilt")]

    def test_it_needs_no_data(self, in_memory):
        np.savez(in_memory / "a.npz", images=np.zeros((12, 8, 8), np.uint8), labels=np.arange(12) % 10)
        run = crashes.new_run(in_memory / "run", replace(PLAIN, data=f"npz:{in_memory / 'a.npz'}", held_out=0.0))
        assert go_on(run.path)[0] == 0
        before = crashes.remains(run.path)
        (in_memory / "a.npz").unlink()
        shutil.rmtree(run.path / MODEL)
        assert go_on(run.path)[0] == 0
        assert crashes.remains(run.path) == before

    def test_without_the_last_checkpoint_training_goes_on_from_the_one_before_to_the_same_model(self, in_memory):
        run = crashes.new_run(in_memory / "run", PLAIN)
        assert go_on(run.path)[0] == 0
        before = crashes.remains(run.path)
        shutil.rmtree(run.path / MODEL)
        shutil.rmtree(run.path / CHECKPOINTS / name_of(crashes.STEPS))
        code, said = go_on(run.path)
        assert code == 0
        assert f"training continues after step {crashes.STEPS - 2}" in said
        after = crashes.remains(run.path)
        assert {name: sha for name, sha in after.items() if not name.startswith("damaged-")} == before

    def test_without_any_checkpoint_an_error_says_what_is_missing(self, finished):
        shutil.rmtree(finished / MODEL)
        shutil.rmtree(finished / CHECKPOINTS)
        with pytest.raises(ValueError, match=r"has lost its model and its checkpoints; restore model or checkpoints"):
            go_on(finished)
        assert (finished / RESULT).exists()

    def test_a_damaged_result_is_made_again(self, finished, done):
        (finished / RESULT).write_text("{")
        code, said = go_on(finished)
        assert code == 0
        assert "result.json is damaged and was set aside" in said
        assert (finished / RESULT).read_bytes() == (done / RESULT).read_bytes()

    def test_a_run_whose_checkpoints_are_all_gone_does_not_begin_anew_in_silence(self, finished):
        (finished / RESULT).unlink()
        shutil.rmtree(finished / CHECKPOINTS)
        with pytest.raises(ValueError, match="has no checkpoint, but the run had saved some"):
            go_on(finished)
