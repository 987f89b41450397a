"""A run that an earlier version made and was killed in ends as that version would have ended it."""

import json
import shutil
from pathlib import Path

import pytest

import vitlab

HERE = Path(__file__).parent  # the run was killed in its 17th of 40 steps, after the checkpoint of step 15


def test_a_run_of_an_earlier_version_ends_with_its_losses(tmp_path):
    shutil.copytree(HERE / "stopped_run", tmp_path / "run")
    expected = json.loads((HERE / "stopped_run_expected.json").read_text())
    run = vitlab.open_run(tmp_path / "run").resume(quiet=True)
    losses = run.history.column("step", "loss")
    assert len(losses) == 40
    assert {step: losses[int(step)] for step in expected["losses"]} == pytest.approx(expected["losses"], rel=1e-6)
    for name in ("validation", "test"):
        assert run.result[name] == pytest.approx(expected[name], rel=1e-6)
