"""A run stops when its training loss has settled: the rule, and that a resumed run stops at the same step."""

import json
import shutil
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import crashes
from vitlab.run_dir import RunDir
from vitlab.runs.training.trainer import train_run
from vitlab.spec.recipe import Execution
from vitlab.train.checkpoints.files import name_of, steps_in
from vitlab.train.state import Progress, Settling, progress_from


def settled_at(losses, window, warmup=0):
    """The step after which the rule stops, or None."""
    settling = Settling()
    for step, loss in enumerate(losses, 1):
        settling.add(loss, window, is_warming=step <= warmup)
        if settling.has_settled:
            return step
    return None


@pytest.mark.parametrize(
    ("losses", "window", "step"),
    [
        ([1.0, 0.5, 0.5, 0.5, 0.5], 1, 5),  # the second lowers it, the next three do not
        ([2.0, 0.5, 0.485, 0.481, 0.481, 0.1], 1, 5),  # 1 % of the first is 0.02
        ([2.0, 0.5, 0.485, 0.479, 0.475, 0.47], 1, None),  # slow steps add up
        ([1.0, 3.0, 0.2, 0.6, 0.4, 0.4, 0.3, 0.5, 0.4, 0.4], 2, 10),  # means 2, 0.4, 0.4, 0.4, 0.4
        ([1.0, 0.9, 0.95, 0.95, 0.8, 0.85, 0.85, 0.85], 1, 8),  # two in a row are not three
        ([1.0, float("nan"), 0.5, float("inf"), 0.5, 0.5, 0.5], 1, 7),  # skipped steps do not count
        ([1.0, 0.5, 0.25, 0.12, 0.06, 0.03], 1, None),
    ],
)
def test_three_windows_that_do_not_lower_the_mean_by_a_hundredth_of_the_first_settle_it(losses, window, step):
    assert settled_at(losses, window) == step


def test_nothing_settles_in_the_warm_up():
    assert settled_at([1.0] * 10, 1, warmup=6) == 9


def test_progress_that_was_saved_before_there_was_settling_is_read():
    saved = asdict(Progress(step=7, settling=Settling(0.5, 2, 1.0, 0.7, 1)))
    assert progress_from(saved) == Progress(step=7, settling=Settling(0.5, 2, 1.0, 0.7, 1))
    del saved["settling"]
    assert progress_from(saved) == Progress(step=7)
    del saved["step"]
    with pytest.raises(ValueError, match="the saved progress has"):
        progress_from(saved)


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """A run that stopped by itself, with a checkpoint of every step, and what it said.

    Without a learning rate to speak of the loss settles as soon as chance allows.
    """
    spec = crashes.small_run(steps=60, validate_every=0, patience=0, execution=Execution(save_every=1, keep=60))
    schedule = replace(spec.recipe.schedule, peak=1e-9, end=0.0)
    spec = replace(spec, recipe=replace(spec.recipe, schedule=schedule, settle_window=3))
    run = crashes.new_run(tmp_path_factory.mktemp("settled") / "run", spec)
    console = Console(file=StringIO(), width=1000)
    assert train_run(run, console) == 0
    return run, console.file.getvalue()


def test_a_settled_run_stops_says_so_and_ends_with_a_result(settled):
    run, said = settled
    losses = run.history("step", "loss")
    stopped = settled_at(losses.values(), 3, warmup=4)
    assert stopped == len(losses) < 60
    assert f"step {stopped} of 60: the training loss has settled at" in said
    assert json.loads((run.path / "result.json").read_text())["step"] == stopped
    assert (run.path / "model").is_dir()


@pytest.mark.parametrize("kept", [1, 5, 9, -1])
def test_a_run_resumed_from_any_step_stops_at_the_same_step_with_the_same_bits(settled, kept, tmp_path):
    whole, _ = settled
    steps = steps_in(whole.path / "checkpoints")
    again = RunDir(Path(shutil.copytree(whole.path, tmp_path / "again")))
    (again.path / "result.json").unlink()
    shutil.rmtree(again.path / "model")
    for step in steps[steps.index(steps[kept]) + 1 :]:
        shutil.rmtree(again.path / "checkpoints" / name_of(step))
    assert train_run(again, Console(quiet=True)) == 0
    assert steps_in(again.path / "checkpoints")[-1] == steps[-1]
    first, second = (load_file(run.path / "model" / "weights.safetensors") for run in (whole, again))
    assert all(torch.equal(first[name], second[name]) for name in first)
