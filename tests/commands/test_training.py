"""vitlab recipes, pretrain, finetune, resume and reproduce as a user types them."""

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest
from rich.console import Console

import crashes
from vitlab.cli import main
from vitlab.commands.command_line import read_words
from vitlab.commands.training import finetune, pretrain, resume
from vitlab.data.fingerprint import describe as describe_data
from vitlab.data.sources.catalogue import open_source
from vitlab.runs.training.request import Request, pretraining_spec
from vitlab.spec.recipe import AUTOMATIC, Execution

QUIET = Console(quiet=True)
SMALL = [
    *("pretrain", "ViT-Ti/4", "--data", "digits?split=test", "--image", "8", "--batch", "32"),
    *("--schedule.total", "6", "--schedule.warmup", "2", "--augmentation.crop", "none"),
    *("--model.layers", "1", "--model.width", "16", "--model.heads", "2", "--model.mlp", "16"),
]


def refusal(capsys, *arguments):
    assert main(list(arguments)) == 2
    told = capsys.readouterr().err
    assert told.startswith("vitlab: ")
    assert "Traceback" not in told
    return " ".join(told.split())


def test_recipes_as_table_and_as_json(capsys):
    assert main(["recipes"]) == 0
    table = capsys.readouterr().out
    assert main(["recipes", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    rows = {row["recipe"]: row for row in listed["pretrain"]}
    assert rows["ViT-L/16@jft300m-14ep"]["steps"] == 1_035_644
    assert "1,035,644" in table
    # 6 FLOPs a multiply-accumulate: forward and twice back; 17.6 GMACs and 21,843 classes at 224
    assert rows["ViT-B/16@imagenet21k"]["exaflops"] == pytest.approx(6 * 17.58e9 * 309_698 * 4096 / 1e18, rel=0.01)
    assert {row["recipe"] for row in listed["finetune"]} >= {"cifar10", "imagenet-518", "bit-large"}


def test_fields_of_the_recipe_are_flags():
    words = ["m", "--schedule.peak", "3e-4", "--layer-decay=0.75", "--data", "digits", "--seed", "3", "--keep", "4"]
    assert read_words("vitlab finetune", finetune, words) == {
        "model": Path("m"),
        "data": "digits",
        "seed": 3,
        "changes": ("schedule.peak=3e-4", "layer_decay=0.75"),
        "execution": dataclasses.replace(AUTOMATIC, keep=4),
    }
    with pytest.raises(ValueError, match="batch needs a value"):
        read_words("vitlab pretrain", pretrain, ["ViT-B/16", "--batch"])
    with pytest.raises(ValueError, match=r"vitlab resume has no flag --schedule\.peak"):
        read_words("vitlab resume", resume, ["r", "--schedule.peak", "3e-4"])


def test_resuming_changes_the_fields_that_are_given_and_switches_either_way():
    words = ["r", "--no-compile", "--recompute", "--workers", "2", "--exact-elastic"]
    changed = {"compile": False, "recompute": True, "workers": 2, "exact_elastic": True}
    assert read_words("vitlab resume", resume, words) == {"run": Path("r"), "execution": changed}
    assert read_words("vitlab resume", resume, ["r", "--recompute", "false"])["execution"] == {"recompute": False}
    assert read_words("vitlab resume", resume, ["--recompute", "r"])["execution"] == {"recompute": True}
    assert read_words("vitlab resume", resume, ["r"]) == {"run": Path("r")}


@pytest.mark.slow
def test_pretraining_resuming_and_reproducing(tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*SMALL, "--out", str(out), "--test", "digits?split=test"]) == 0
    assert "355 images to train on" in capsys.readouterr().out
    assert main(["resume", str(out), "--micro-batch", "8"]) == 0
    assert main(["reproduce", str(out)]) == 0
    told = capsys.readouterr().out
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "data.json").write_text("years of work")
    assert main(["reproduce", str(out), "--out", str(tmp_path / "thesis")]) == 2
    assert (tmp_path / "thesis" / "data.json").read_text() == "years of work"
    assert "6 of 6 losses are equal (largest difference 0)" in told
    assert "are identical, bit for bit" in told
    assert (tmp_path / "run-again" / "model" / "weights.safetensors").read_bytes() == (
        out / "model" / "weights.safetensors"
    ).read_bytes()


@pytest.mark.slow
def test_a_reproduction_that_differs_is_told(tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*SMALL, "--out", str(out)]) == 0
    events = (out / "events.jsonl").read_text().replace('"loss": 1', '"loss": 2')
    (out / "events.jsonl").write_text(events)
    assert main(["reproduce", str(out), "--out", str(tmp_path / "twin")]) == 1
    assert "6 of 6 losses are equal" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (["--schedule.peek", "1"], "schedule has the fields peak, total, warmup, decay, end, boundaries"),
        (["--schedule.peek", "1"], "did you mean --schedule.peak?"),
        (["--model.layer", "1"], "--model.layer does not exist; ViTSpec has the fields"),
        (["--model.layer", "1"], "did you mean --model.layers?"),
        (["--batch", "lots"], "--batch is 'lots'; expected a whole number, 1 or more"),
        (["--batch", "-5"], "--batch is '-5'; expected a whole number, 1 or more"),
        (["--schedule.warmup", "-5"], "--schedule.warmup is '-5'; expected a whole number, 0 or more"),
        (["--schedule.peak", "abc"], "--schedule.peak is 'abc'; expected a number"),
        (["--optimizer.clip", "abc"], "--optimizer.clip is 'abc'; expected a number"),
        (["--label-smoothing", "none"], "--label-smoothing is None; expected a number"),
        (["--shards", "1.5"], "--shards is 1.5; expected a whole number"),
        (["--augmentation.flip", "perhaps"], "--augmentation.flip is 'perhaps'; expected true or false"),
        (["--schedule.decay", "steep"], "--schedule.decay is 'steep'; allowed are 'linear', 'cosine'"),
        (["--model.layers", "many"], "--model.layers is 'many'; expected a whole number"),
        (["--image", "9"], "image 9x9 is not a whole number of 4x4 patches"),
        (["--device", "tpu"], "no device is named 'tpu'; known are auto, cpu, cuda, mps"),
        (["--held-out", "2"], "--held-out is 2.0; expected a share of the training images"),
        (["--validation", "digits", "--held-out", "0.1"], "not both"),
        (["--frozen", "stem"], "no part of the model is named 'stem'"),
        (["--model.width", "15"], "width 15 is not a multiple of 2 heads"),
        (["--data", "digit"], "did you mean 'digits'?"),
        (["--keep", "0"], "keep 0 must be at least 1"),
        (["--set", "batch"], "--set is 'batch'; expected FIELD=VALUE"),
        (["--validate-every", "2"], "need images to validate on: give --validation or --held-out"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_exists(tmp_path, capsys, change, complaint):
    assert complaint in refusal(capsys, *SMALL, "--out", str(tmp_path / "run"), *change)
    assert not (tmp_path / "run").exists()  # the corrected command gets the folder


def test_the_resolution_in_the_name_of_a_model_is_that_of_the_run(tmp_path, capsys):
    words = ["--data", "digits", "--batch", "4000", "--epochs", "1", "--out", str(tmp_path / "run")]
    told = refusal(capsys, "pretrain", "vit_tiny_patch16_244", *words, "--epochs", "9")
    assert "image 244x244 is not a whole number of 16x16 patches; the nearest sizes are 240x240 or 256x256" in told
    spec = pretraining_spec(
        "vit_tiny_patch16_384", describe_data(open_source("digits"), "digits"), Request("digits"), AUTOMATIC, QUIET
    )
    assert spec.model.image == spec.recipe.image == (384, 384)


def test_epochs_are_one_or_more(tmp_path, capsys):
    assert main(["pretrain", "ViT-Ti/4", "--data", "digits", "--epochs", "0", "--out", str(tmp_path / "run")]) == 2
    assert "--epochs is 0; expected a whole number, 1 or more" in capsys.readouterr().err


def test_a_run_folder_may_be_called_like_a_switch(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["resume", "compile"]) == 2
    assert "compile does not exist" in capsys.readouterr().err


def test_a_teacher_that_has_moved_may_be_released_weights(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("VITLAB_CACHE", str(tmp_path))
    crashes.new_run(tmp_path / "run", crashes.small_run())
    assert main(["resume", str(tmp_path / "run"), "--teacher", "augreg-Ti_16-i1k-224"]) == 2
    assert "vitlab download augreg-Ti_16-i1k-224" in capsys.readouterr().err


def test_other_mistakes(tmp_path, capsys):
    assert "holds no run: there is no run.json" in refusal(capsys, "resume", str(tmp_path))
    assert "no recipe of pre-training is named 'ViT-B/16@mars'" in refusal(
        capsys, "pretrain", "ViT-B/16@mars", "--data", "digits"
    )
    assert "x.npz" in refusal(capsys, "finetune", str(tmp_path / "x.npz"), "--data", "digits")


def test_a_row_that_does_not_exist_is_told_with_the_nearest_ones(capsys):
    told = refusal(capsys, "pretrain", "ViT-Ti/4@imagnet", "--data", "digits")
    assert "did you mean ViT-Ti/16@imagenet-augreg" in told
    assert "ViT-Ti/4 alone gets the row nearest to your data" in told
    assert told.count("@") < 6
    assert "did you mean ViT-Ti/4" in refusal(capsys, "pretrain", "VitTi/4", "--data", "digits")


@pytest.mark.parametrize("name", ["ViT-Ti/4", "DeiT-S/16"])
def test_what_is_suggested_for_a_misspelt_model_is_that_model(name, capsys):
    for spelt in (name.replace("-", ""), name.lower(), name.replace("/", "-")):
        assert f"did you mean {name}" in refusal(capsys, "pretrain", spelt, "--data", "digits")


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--bacth", "--batch"),
        ("--shedule.peak", "--schedule.peak"),
        ("--peak=3", "--schedule.peak"),
        ("--weight_decay", "--optimizer.weight-decay"),
        ("--lr", "--schedule.peak"),
        ("--micro-bach", "--micro-batch"),
    ],
)
def test_an_unknown_flag_is_told_with_the_one_that_was_meant(flag, meant, capsys):
    told = refusal(capsys, "finetune", "M", "--data", "digits", flag, "3")
    assert f"vitlab finetune has no flag {flag.partition('=')[0].replace('_', '-')}; did you mean {meant}" in told
    assert "evaluate" not in told


@pytest.mark.parametrize("command", ["pretrain", "finetune", "sweep", "transfer", "resume"])
def test_every_flag_of_the_execution_has_a_word_of_help(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = " ".join(re.sub("[│╭╰─╮╯]", " ", capsys.readouterr().out).split())
    for name in (field.name for field in dataclasses.fields(Execution)):
        meaning = re.search(rf"^ +{name}: (.+)$", Execution.__doc__, re.MULTILINE)[1]
        assert f"--{name.replace('_', '-')}" in shown
        assert meaning in shown


def test_a_folder_that_cannot_be_written_is_told_by_its_name(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("mine")
    no_data = [word if word != "digits?split=test" else "folder:nowhere" for word in SMALL]
    for out in (file, file / "below"):
        told = refusal(capsys, *no_data, "--out", str(out))  # before the data is looked for
        assert told == f"vitlab: {out} cannot be a folder: {file} is a file; choose another folder"
    told = refusal(capsys, *SMALL, "--out", "/proc/x")
    assert re.search(r"vitlab: /proc/x cannot be written \(.+\); choose another folder", told)
    assert "Errno" not in told
    assert file.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_told_by_its_name(tmp_path, capsys):
    tmp_path.chmod(0o500)
    told = refusal(capsys, *SMALL, "--out", str(tmp_path / "x"))
    assert told == f"vitlab: {tmp_path / 'x'} cannot be written (Permission denied); choose another folder"


def test_a_folder_of_other_things_or_a_finished_run_is_refused(tmp_path, capsys):
    (tmp_path / "photos.txt").write_text("mine")
    assert "contains other files; choose an empty or a new folder" in refusal(capsys, *SMALL, "--out", str(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["photos.txt"]
    for name in ("run.json", "result.json"):
        (tmp_path / name).write_text("{}")
    told = refusal(capsys, *SMALL, "--out", str(tmp_path))
    assert "holds a finished run" in told
    assert "choose another --out" in told
    assert "resume" not in told
