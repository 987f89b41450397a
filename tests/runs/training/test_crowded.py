"""A run beside busy programs says so once, with the cure, in its events too; what it learns is the same."""

import io
import itertools
from functools import partial

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import crashes
from agreement import randomised
from vitlab import save_model
from vitlab.models.build import build_from_spec
from vitlab.process.busy import Crowding, Place, Reading
from vitlab.run_dir import RunDir
from vitlab.runs.measure import evaluate
from vitlab.runs.training import trainer as training
from vitlab.runs.training.trainer import train_run
from vitlab.spec import ViTSpec

TWO = Place(processors=2, quota=2.0, threads=2)


def busy_machine():
    """Arguments of `Crowding`: every reading is 20 seconds later, of which 30 were others' and 10 our own."""
    numbers = itertools.count()
    clock = itertools.count(0, 20)
    return {
        "environment": {},
        "here": TWO,
        "look": lambda: Reading(20.0 * (n := next(numbers)), 10.0 * n, 40.0 * n),
        "clock": lambda: next(clock) + 20.0,
    }


def trained(path, spec):
    crashes.new_run(path, spec)
    said = io.StringIO()
    assert train_run(RunDir.open(path), Console(file=said, width=1000)) == 0
    return said.getvalue()


def test_a_training_beside_busy_programs_says_so_once_and_learns_the_same(in_memory, monkeypatch):
    spec = crashes.small_run()
    assert "other programs" not in trained(in_memory / "alone", spec)
    monkeypatch.setattr(training, "Crowding", partial(Crowding, **busy_machine()))
    said = trained(in_memory / "beside", spec)
    why = "other programs use 1.5 of 2 processors"
    assert said.count(why) == 1
    assert f"OMP_WAIT_POLICY=PASSIVE vitlab resume {in_memory / 'beside'}" in said
    (event,) = RunDir(in_memory / "beside").events("crowded")
    assert (event["step"], event["why"]) == (1, why)
    assert not list(RunDir(in_memory / "alone").events("crowded"))
    crashes.assert_same(in_memory / "beside", in_memory / "alone")


def test_an_evaluation_of_a_plain_model_beside_busy_programs_says_so_once(tmp_path, monkeypatch):
    for name in ("ape", "bee"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        noise = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
        for number in range(20):
            Image.fromarray(noise).save(tmp_path / "photos" / name / f"{number}.png")
    spec = ViTSpec(patch=4, layers=1, width=8, mlp=8, heads=2, image=(8, 8), classes=2, head="linear")
    model = randomised(build_from_spec(spec))
    model.class_names = ("ape", "bee")
    save_model(model, tmp_path / "model")
    monkeypatch.setattr(evaluate, "Crowding", partial(Crowding, **busy_machine()))
    said = {"plain": io.StringIO(), "torch": io.StringIO()}
    for engine, file in said.items():
        evaluate.evaluate(
            [tmp_path / "model"],
            [f"folder:{tmp_path / 'photos'}"],
            tmp_path / "out",
            batch=1,
            engine=engine,
            console=Console(file=file, width=1000),
        )
    assert said["plain"].getvalue().count("other programs use 1.5 of 2 processors") == 1
    assert "OMP_WAIT_POLICY=PASSIVE before the command" in said["plain"].getvalue()
    assert "other programs" not in said["torch"].getvalue()  # whose threads do not wait for each other


@pytest.mark.parametrize("helpers", [2, 4])
def test_workers_of_a_run_are_not_called_other_programs(helpers):
    assert Crowding(helpers, **busy_machine()).notice() == ""
