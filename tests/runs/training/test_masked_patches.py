"""Runs of masked patches: from a command to a model that is fine-tuned; stopped, killed and resumed; the picture."""

import io
import json
import os
import random
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file

import crashes
import vitlab
from vitlab.cli import main
from vitlab.data.loading.accounting import Account
from vitlab.data.loading.batches import evaluation_batches
from vitlab.data.sources.catalogue import open_source
from vitlab.data.splits import take
from vitlab.data.transforms.corruption import HIDDEN
from vitlab.drawing.canvas import GAP, SMALLEST
from vitlab.files.strict_json import from_json, read_json, to_json
from vitlab.models.masked import build_masked_model
from vitlab.run_dir import CHECKPOINTS, MODEL, PICTURE, RESULT, RUN, RunDir, RunSpec
from vitlab.runs.training.data import open_run_data
from vitlab.runs.training.objective import corruption_of, prediction_of
from vitlab.runs.training.state import initial_state
from vitlab.runs.training.trainer import train_run
from vitlab.runs.training.validation import draw_predictions, score_predictions
from vitlab.spec import Backbone
from vitlab.spec.recipe import Masking
from vitlab.train.checkpoints.files import name_of

KILLS = 6


def masked_run(target="mean-colour", corrupted=0.5, **options) -> RunSpec:
    """A run of seconds with everything in it that has a state, without labels; patches of 2 x 2, sixteen a picture."""
    spec = crashes.small_run(masking=Masking(target, corrupted, 0.8, 0.1, 0.1), **options)
    return replace(spec, model=replace(spec.model, patch=2, classes=0))


def go_on(path):
    return train_run(RunDir.open(path), Console(file=io.StringIO(), width=1000))


@pytest.fixture(scope="module")
def unbroken(memory):
    path = memory / "masked-unbroken"
    crashes.new_run(path, masked_run())
    assert go_on(path) == 0
    return path


def test_a_finished_run_has_the_vit_alone_the_numbers_and_the_picture(unbroken):
    model = vitlab.load_model(unbroken / MODEL)
    assert type(model).__name__ == "ViT"
    assert (model.spec.classes, model.spec.head, model.class_names) == (0, "linear", None)
    assert model.provenance["objective"] == "masked patches, mean-colour, 0.5 corrupted"
    result = json.loads((unbroken / RESULT).read_text())
    validation = result["validation"]
    assert (validation["count"], validation["patches"]) == (35, 35 * 8)
    assert 0 < validation["loss"] < np.log(512) + 1
    assert 0 <= validation["top1"] <= 1
    assert (unbroken / PICTURE).read_bytes().startswith(b"\x89PNG")


def test_checkpoints_hold_the_mask_the_head_and_their_averages(unbroken):
    last = unbroken / CHECKPOINTS / name_of(crashes.STEPS)
    for group in ("model", "average"):
        tensors = load_file(last / f"{group}.safetensors")
        assert tensors["mask_token"].shape == (16,)
        assert tensors["head.logits.weight"].shape == (512, 16)
    moments = load_file(last / "optimizer.safetensors")
    assert {f"{what}/mask_token" for what in ("exp_avg", "exp_avg_sq")} <= set(moments)


@pytest.mark.parametrize("step", [8, *(pytest.param(step, marks=pytest.mark.slow) for step in (1, crashes.STEPS))])
def test_a_stopped_run_ends_the_same(in_memory, unbroken, monkeypatch, step):
    monkeypatch.setattr(RunDir, "record", RunDir.record)
    path = in_memory / "run"
    crashes.new_run(path, masked_run())
    crashes.on_step(step, os.kill, os.getpid(), signal.SIGTERM)
    assert go_on(path) == 143
    crashes.on_step(step, lambda: None)
    assert go_on(path) == 0
    crashes.assert_same(path, unbroken)


@pytest.mark.slow
def test_masked_runs_killed_at_any_moment_end_bit_identical(in_memory):
    spec = masked_run("colours-4x4")
    whole = in_memory / "whole"
    crashes.new_run(whole, spec)
    crashes.finish(whole)
    toll, rng = crashes.Toll(), random.Random(8)
    while toll.deaths < KILLS:
        path = in_memory / f"life-{toll.lives}"
        crashes.live_and_die(path, spec, toll, rng, min(3, KILLS - toll.deaths))
        crashes.assert_same(path, whole)
        assert (path / PICTURE).read_bytes() == (whole / PICTURE).read_bytes()
    assert toll.lost == 0


@pytest.mark.slow
def test_workers_change_nothing(in_memory, unbroken):
    path = in_memory / "run"
    crashes.new_run(path, masked_run(execution=replace(masked_run().execution, workers=2)))
    assert go_on(path) == 0
    assert crashes.numbers(path) == crashes.numbers(unbroken)
    assert (path / PICTURE).read_bytes() == (unbroken / PICTURE).read_bytes()


# -- Numbers and the picture -------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["mean-colour", "colours-4x4", "pixels"])
def test_a_validation_is_the_mean_over_images_for_any_batch(target):
    spec = masked_run(target)
    module, how = initial_state(spec, torch.device("cpu")).module, prediction_of(spec)
    source = take(open_source("digits?split=test"), range(60))
    preprocessing = spec.model.conventions.preprocessing

    how_read = {"size": (8, 8), "preprocessing": preprocessing, "corruption": corruption_of(spec)}
    losses, right = [], []
    with torch.no_grad():
        for batch in evaluation_batches(source, batch=1, **how_read):
            answer = module.eval()(how.prepare(batch.pixels), batch.plans)
            losses.append(how.losses(answer, batch.pixels, batch.plans).item())
            right.append(how.right(answer, batch.pixels, batch.plans).item())
    found = score_predictions(spec, source, module, Account(len(source)), batch=50)
    assert (found["count"], found["patches"]) == (60, 60 * 8)
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert found["top1"] == pytest.approx(np.mean(right), abs=1e-3)


@pytest.mark.parametrize("target", ["mean-colour", "colours-4x4", "pixels"])
def test_the_picture_shows_inputs_corruption_and_predictions(target):
    spec = masked_run(target)
    module, how = initial_state(spec, torch.device("cpu")).module.eval(), prediction_of(spec)
    source = open_source("digits?split=test")
    content = draw_predictions(spec, source, module)
    assert content == draw_predictions(spec, source, module)  # the same bytes
    sheet = np.array(Image.open(io.BytesIO(content)))
    scale = SMALLEST // 8
    assert sheet.shape == (3 * (SMALLEST + GAP) + GAP, 8 * (SMALLEST + GAP) + GAP, 3)
    (batch,) = evaluation_batches(
        take(source, range(8)),
        batch=8,
        size=(8, 8),
        preprocessing=spec.model.conventions.preprocessing,
        corruption=corruption_of(spec),
    )
    with torch.no_grad():
        painted = how.painted(module(how.prepare(batch.pixels), batch.plans)).numpy()
    for number in range(8):
        left = GAP + number * (SMALLEST + GAP)
        own, corrupted, predicted = (
            sheet[top : top + SMALLEST : scale, left : left + SMALLEST : scale]
            for top in (GAP + row * (SMALLEST + GAP) for row in range(3))
        )
        pixels = batch.pixels[number].permute(1, 2, 0).numpy()
        assert np.array_equal(own, pixels)
        sources = dict(zip(*batch.plans[number].tolist(), strict=True))
        for place in range(16):
            at = tuple(slice(2 * where, 2 * where + 2) for where in divmod(place, 4))
            other = sources.get(place, place)
            there = tuple(slice(2 * where, 2 * where + 2) for where in divmod(other, 4))
            assert np.array_equal(corrupted[at], np.full((2, 2, 3), 128) if other == HIDDEN else pixels[there])
            if place in sources:
                patch = painted[number, list(sources).index(place)].transpose(1, 2, 0)
                assert np.array_equal(predicted[at], patch)
            else:
                assert np.array_equal(predicted[at], pixels[at])


def test_a_run_that_is_never_validated_draws_its_training_images_at_the_end(tmp_path):
    spec = masked_run("pixels", steps=3, validate_every=0, patience=0, average=None)
    spec = replace(spec, held_out=0.0)
    crashes.new_run(tmp_path / "run", spec)
    assert go_on(tmp_path / "run") == 0
    module = build_masked_model(spec.model, spec.recipe.masking.outputs(2))
    module.load_state_dict(load_file(tmp_path / "run" / CHECKPOINTS / name_of(3) / "model.safetensors"))
    drawn = draw_predictions(spec, open_source("digits?split=test"), module)
    assert (tmp_path / "run" / PICTURE).read_bytes() == drawn


def test_pictures_that_cannot_be_read_are_not_drawn(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    spec = masked_run()
    module = initial_state(spec, torch.device("cpu")).module
    assert draw_predictions(spec, open_source(f"pictures:{tmp_path}"), module) is None


# -- From the command line ---------------------------------------------------------------------------

SMALL = ["--image", "8", "--batch", "16", "--schedule.warmup", "2", "--schedule.peak", "1e-3"]
SMALL_MODEL = ["--model.layers", "1", "--model.width", "16", "--model.heads", "2", "--model.mlp", "24"]


def write_pictures(folder, count=24):
    """Small pictures without labels, one of them in a folder of its own."""
    shapes = open_source(f"shapes?classes=2&images={count}&size=16")
    (folder / "inside").mkdir(parents=True)
    for number in range(count):
        Image.fromarray(shapes.item(number).data).save(folder / ("inside" if number else "") / f"{number}.png")
    return folder


def test_pictures_without_labels_are_learnt_from_and_the_model_is_fine_tuned(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "flat")
    masked = ["pretrain", "ViT-Ti/4", "--objective", "masked-patches", "--data", "pictures:flat", *SMALL, *SMALL_MODEL]
    more = ["--epochs", "6", "--held-out", "0.25", "--masking.corrupted", "0.75", "--out", "masked"]
    assert main([*masked, *more]) == 0
    assert "recipe ViT-B/16@jft300m-masked: the paper's only one for masked patches" in capsys.readouterr().out
    spec = RunDir.open(tmp_path / "masked").spec()
    assert (spec.recipe.masking.corrupted, spec.recipe.schedule.total) == (0.75, 6 * 18 // 16)
    assert json.loads((tmp_path / "masked" / RESULT).read_text())["validation"]["patches"] == 6 * 3
    tuned = [
        "finetune",
        "masked/model",
        "--data",
        "digits?split=train",
        "--test",
        "digits?split=test",
        "--out",
        "tuned",
    ]
    assert main([*tuned, "--schedule.total", "12", "--schedule.warmup", "2", "--image", "12", "--seed", "1"]) == 0
    model = vitlab.load_model(tmp_path / "tuned" / MODEL)
    assert (model.spec.classes, model.spec.image, len(model.class_names)) == (10, (12, 12), 10)
    assert model.provenance["start"] == "model"
    first = RunDir.open(tmp_path / "tuned").spec()
    assert first.model.width == 16
    assert main(["resume", "masked"]) == 0  # it is finished


@pytest.mark.slow
def test_the_row_by_its_name_its_reproduction_and_a_hybrid(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    row = ["pretrain", "ViT-B/16@jft300m-masked", "--data", "digits?split=test", "--masking.target", "pixels"]
    how = ["--image", "32", "--batch", "8", "--schedule.total", "3", "--schedule.warmup", "1"]
    small = ["--model.layers", "1", "--model.width", "48", "--model.mlp", "48"]
    options = ["--precision", "bf16", "--recompute", "--layer-decay", "0.8", "--out", "row"]
    assert main([*row, *how, *small, *options]) == 0
    assert main(["reproduce", "row"]) == 0
    assert "are identical, bit for bit" in " ".join(capsys.readouterr().out.split())
    hybrid = ["pretrain", "R26+ViT-S/32", "--objective", "masked-patches", "--data", "digits?split=test"]
    assert main([*hybrid, *how, "--image", "64", *small, "--out", "hybrid"]) == 0
    assert vitlab.load_model(tmp_path / "hybrid" / MODEL).spec.backbone is not None


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["R50x1", "--objective", "masked-patches"], "needs patch embeddings, which 'bit' models lack"),
        (["ViT-B/16@imagenet", "--objective", "masked-patches"], "'ViT-B/16@imagenet' learns labels"),
        (["ViT-Ti/4", "--objective", "masked-patches", "--masking.corrupted", "0.05"], "0.05 of 4 patches is none"),
        (["ViT-Ti/8", "--objective", "masked-patches", "--masking.corrupted", "1"], "no other patch to swap with"),
        (["ViT-Ti/4", "--objective", "masked-patches", "--mixup", "0.3"], "masked patches have no labels"),
        (["ViT-Ti/4", "--objective", "masked-patches", "--frozen", "stem"], "known are backbone, blocks, class_token"),
        (["ViT-Ti/4", "--masking.corrupted", "0.3"], "give --objective masked-patches"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys, words, complaint):
    monkeypatch.chdir(tmp_path)
    command = ["pretrain", *words, "--data", "digits?split=test", *SMALL, "--schedule.total", "3", "--out", "run"]
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line
    assert not (tmp_path / "run").exists()


def test_an_unknown_objective_is_refused(capsys):
    assert main(["pretrain", "ViT-Ti/4", "--data", "digits", "--objective", "rotation"]) == 2
    assert "masked-patches" in capsys.readouterr().err


def test_classes_are_asked_for_where_labels_are_learnt(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "flat", 3)
    assert main(["pretrain", "ViT-Ti/4", "--data", "pictures:flat", *SMALL, "--schedule.total", "3"]) == 2
    assert "the data has 0 classes; at least 2 are needed" in capsys.readouterr().err


def test_validation_pictures_may_have_other_classes_or_none(tmp_path):
    write_pictures(tmp_path / "flat", 3)
    spec = replace(masked_run(), held_out=0.0, validation=f"pictures:{tmp_path / 'flat'}", test="digits")
    assert len(open_run_data(spec).validation) == 3
    with pytest.raises(ValueError, match="does not fit the training data"):
        open_run_data(replace(spec, recipe=crashes.small_run().recipe))


def test_the_recipe_is_listed(capsys):
    assert main(["recipes", "--json"]) == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out)["pretrain"] if "masked" in row["recipe"]]
    assert (row["recipe"], row["steps"], row["peak"]) == ("ViT-B/16@jft300m-masked", 1_000_000, 2e-4)


def test_a_run_written_before_there_was_masking_still_reads(tmp_path):
    run = crashes.new_run(tmp_path / "run", crashes.small_run())
    old = read_json(tmp_path / "run" / RUN)
    del old["recipe"]["masking"]
    assert from_json(RunSpec, old) == run.spec()


def test_a_start_is_not_silently_ignored():
    with pytest.raises(ValueError, match="learned from fresh weights"):
        initial_state(replace(masked_run(), start="weights"), torch.device("cpu"))


def test_outputs_of_a_hybrid_are_the_pixels_of_its_cells():
    spec = masked_run("pixels")
    model = replace(spec.model, patch=1, backbone=Backbone((1,), root=8), image=(16, 16))
    spec = replace(spec, model=model, recipe=replace(spec.recipe, image=(16, 16)))
    assert corruption_of(spec).patches == 16
    assert prediction_of(spec).side == 4
    assert build_masked_model(model, spec.recipe.masking.outputs(4)).head.logits.weight.shape == (48, 16)
    assert to_json(spec)["recipe"]["masking"]["target"] == "pixels"
