"""Streams of a run: chosen once and recorded, refused where they have no effect, and exact after a stop."""

import io
import os
import signal
from dataclasses import replace

import pytest
import torch
from rich.console import Console

import crashes
import vitlab
from vitlab.errors import InvalidValue
from vitlab.paper.models import model_spec
from vitlab.paper.recipes.finetuning import finetuning_recipe
from vitlab.run_dir import RunDir
from vitlab.runs.training.trainer import train_run
from vitlab.spec.recipe import AUTOMATIC, CHOSEN, SGD, Execution
from vitlab.train import streams

MODEL = model_spec("ViT-Ti/16", image=(224, 224), classes=10)
RECIPE = replace(finetuning_recipe("cifar10"), batch=16)
RUN = crashes.small_run(execution=Execution(save_every=4, micro_batch=10, streams=2), mixup=0.4, dropout=0.0)
RUN = replace(RUN, model=replace(RUN.model, dropout=0.0))
TINY = {"batch": 8, "schedule": {"total": 3, "warmup": 1}, "architecture": {"layers": 1, "width": 24, "mlp": 24}}


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def trained(path, spec=None, threads=2):
    """The exit code of a run that is begun, with a spec, or continued; and what was said."""
    if spec is not None:
        crashes.new_run(path, spec)
    torch.set_num_threads(threads)
    said = io.StringIO()
    return train_run(RunDir.open(path), Console(file=said, width=1000)), said.getvalue()


def tensors(path):
    return {name: sha256 for name, sha256 in crashes.remains(path).items() if name.endswith(".safetensors")}


@pytest.mark.parametrize(("optimizer", "threads"), [(RUN.recipe.optimizer, 2), (RUN.recipe.optimizer, 1), (SGD(), 1)])
def test_a_stopped_run_ends_with_the_bits_of_an_unbroken_one(tmp_path, monkeypatch, optimizer, threads):
    spec = replace(RUN, recipe=replace(RUN.recipe, optimizer=optimizer))
    assert trained(tmp_path / "unbroken", spec)[0] == 0
    monkeypatch.setattr(RunDir, "record", RunDir.record)  # put back afterwards
    crashes.on_step(7, os.kill, os.getpid(), signal.SIGTERM)
    assert trained(tmp_path / "stopped", spec)[0] == 143
    crashes.on_step(7, lambda: None)
    assert trained(tmp_path / "stopped", threads=threads)[0] == 0
    assert crashes.numbers(tmp_path / "stopped") == crashes.numbers(tmp_path / "unbroken")
    assert tensors(tmp_path / "stopped") == tensors(tmp_path / "unbroken")
    if threads == 2:  # the number of threads is part of what a checkpoint records
        crashes.assert_same(tmp_path / "stopped", tmp_path / "unbroken")


def test_continuing_without_the_recorded_streams_is_not_exact(tmp_path, monkeypatch):
    monkeypatch.setattr(RunDir, "record", RunDir.record)
    crashes.on_step(7, os.kill, os.getpid(), signal.SIGTERM)
    assert trained(tmp_path / "run", RUN)[0] == 143
    crashes.on_step(7, lambda: None)
    said = io.StringIO()
    vitlab.open_run(tmp_path / "run").resume(streams=0, console=Console(file=said, width=1000))
    assert "not bit-exact because last layer was short and is whole; streams was 2 and is 0" in said.getvalue()


@pytest.mark.parametrize(
    ("model", "execution", "ranks", "why"),
    [
        (MODEL, Execution(), 2, "streams are for a single rank, and there are 2"),
        (MODEL, Execution(precision="bf16"), 1, "streams do not work with precision='bf16'"),
        (MODEL, Execution(compile=True), 1, "compile="),
        (MODEL, Execution(exact_elastic=True), 1, "exact_elastic="),
        (replace(MODEL, dropout=0.1), Execution(), 1, "dropout and stochastic depth draw random numbers"),
        (replace(MODEL, stochastic_depth=0.1), Execution(), 1, "dropout and stochastic depth draw random numbers"),
    ],
)
def test_streams_do_not_apply_everywhere(model, execution, ranks, why):
    assert streams.unfit(MODEL, Execution()) == ""
    assert why in streams.unfit(model, execution, ranks=ranks)
    assert streams.applied(model, replace(execution, streams=2), ranks=ranks) == 0
    if ranks == 1:
        assert streams.resolved(model, RECIPE, replace(execution, streams=CHOSEN)) == 0
        with pytest.raises(InvalidValue, match="streams has no effect in this run: ") as refused:
            streams.resolved(model, RECIPE, replace(execution, streams=2))
        assert why in str(refused.value)


@pytest.mark.parametrize(
    ("model", "images", "threads", "expected"),
    [
        (MODEL, 16, 2, 2),
        (MODEL, 16, 4, 4),
        (MODEL, 16, 1, 0),  # nothing to compute beside
        (MODEL, 16, 64, 0),  # 64 gradients, and parts without images
        (MODEL, 1, 2, 0),  # a picture is not divided
        (replace(MODEL, image=(32, 32)), 16, 2, 0),  # microseconds per operator
        (model_spec("ViT-L/16", image=(224, 224), classes=10), 16, 2, 0),  # gradients of 2.4 GB
    ],
)
def test_streams_are_chosen_where_they_pay(model, images, threads, expected):
    torch.set_num_threads(threads)
    recipe = replace(RECIPE, batch=images)
    assert streams.resolved(model, recipe, replace(AUTOMATIC, device="cpu")) == expected
    assert (
        streams.resolved(model, replace(RECIPE, batch=512), Execution(streams=CHOSEN, micro_batch=images)) == expected
    )


def test_a_run_records_and_announces_its_streams(tmp_path):
    said = io.StringIO()
    how = {"image": 32, "console": Console(file=said, width=1000), "changes": TINY | {"dropout": 0.0}, "report": False}
    run = vitlab.pretrain("ViT-Ti/16", "digits?split=test", tmp_path / "run", streams=2, **how)
    assert run.spec.execution.streams == 2
    assert "streams 2: parts of a batch are computed at the same time" in said.getvalue()
    assert vitlab.pretrain("ViT-Ti/16", "digits?split=test", tmp_path / "auto", **how).spec.execution.streams == 0


def test_asking_for_streams_with_dropout_is_an_error(tmp_path):
    with pytest.raises(InvalidValue, match="streams has no effect in this run: dropout"):
        vitlab.pretrain("ViT-Ti/16", "digits?split=test", tmp_path / "run", streams=2, changes=TINY | {"dropout": 0.1})
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_record_of_streams_has_none():
    assert Execution().streams == 0
    assert AUTOMATIC.streams == CHOSEN
