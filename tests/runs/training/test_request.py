"""From a user's few words to a run, and from the run to a model that is used: on folders of real files."""

import json
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import crashes
import vitlab
from vitlab.cli import main
from vitlab.data.class_names import renumbered
from vitlab.data.fingerprint import describe
from vitlab.data.sources.catalogue import open_source
from vitlab.data.sources.folders import FolderSource
from vitlab.files.strict_json import to_json
from vitlab.paper.models import name_of
from vitlab.run_dir import RunDir
from vitlab.runs.training import start
from vitlab.runs.training.data import open_run_data, open_training_data
from vitlab.runs.training.request import Request, finetuning_spec, pretraining_spec
from vitlab.runs.training.start import create_run
from vitlab.runs.training.state import initial_model
from vitlab.runs.training.trainer import InMemory, train_run
from vitlab.spec import SwinSpec, ViTSpec
from vitlab.spec.recipe import Execution
from vitlab.weights.load import load_start
from vitlab.weights.save import save_model

COLOURS = {"blue": (20, 40, 220), "green": (30, 200, 40), "red": (220, 30, 30)}


def write_photos(folder, each=8, size=(40, 30)):
    rng = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(each):
            noise = rng.normal(0, 25, (size[1], size[0], 3))
            pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def photos(tmp_path):
    return write_photos(tmp_path / "photos")


@pytest.fixture
def trained(tmp_path):
    """A folder with a model of 16 px that knows nothing yet, with a pre-training head of five classes."""
    spec = ViTSpec(patch=8, layers=1, width=32, mlp=64, heads=2, image=(16, 16), classes=5)
    save_model(vitlab.models.build.build_from_spec(spec), tmp_path / "base")
    return tmp_path / "base"


def finetuning_run(start, recipe, asked, execution, console, epochs=None):
    opened = open_training_data(asked.data)
    return finetuning_spec(load_start(start), recipe, opened, replace(asked, epochs=epochs), execution, console)


def pretraining_run(name, asked, execution, epochs, console):
    card = open_training_data(asked.data).card
    return pretraining_spec(name, card, replace(asked, epochs=epochs), execution, console)


def create(path, spec, console, *, is_confirmed):
    return create_run(path, spec, open_run_data(spec), console, is_confirmed=is_confirmed)


def quiet():
    return Console(file=StringIO(), width=1000)


def said(console):
    return console.file.getvalue()


QUICKLY = (("schedule.total", "30"), ("schedule.warmup", "3"), ("batch", "12"), ("schedule.peak", "0.1"))


def test_finetuning_needs_a_model_and_a_folder_and_says_what_it_chose(trained, photos):
    console = quiet()
    run = finetuning_run(trained, "", Request(f"folder:{photos}"), Execution(), console)
    assert run.recipe.name == "quick"
    assert "the default without an accelerator" in said(console)
    assert "recipe='pets', because 24 images are fewer than 20,000" in said(console)
    assert (run.model.classes, run.model.head, run.model.image) == (3, "linear", (16, 16))
    assert run.held_out == 0.1


def test_the_length_of_a_finetuning_follows_the_data_or_what_is_asked_for(trained, photos):
    """24 photographs, of which 22 are left to train on."""
    asked = Request(f"folder:{photos}")
    run = finetuning_run(trained, "", asked, Execution(), quiet())
    assert (run.recipe.batch, run.recipe.schedule.total, run.recipe.schedule.warmup) == (8, 30, 3)
    assert run.recipe.settle_window == 5
    run = finetuning_run(trained, "", asked, Execution(), quiet(), epochs=4)
    assert (run.recipe.schedule.total, run.recipe.schedule.warmup, run.recipe.settle_window) == (11, 1, 0)
    console = quiet()
    run = finetuning_run(trained, "pets", replace(asked, changes=(("batch", "16"),)), Execution(), console, epochs=40)
    assert (run.recipe.schedule.total, run.recipe.schedule.warmup) == (55, 11)
    assert run.recipe.schedule.peak == pytest.approx(0.01 / 32)
    assert "peak    0.0003125, scaled from 0.01 at 512 images to the batch of 16; schedule.peak= sets it" in said(
        console
    )
    changes = (("batch", "16"), ("schedule.peak", "0.2"), ("schedule.warmup", "7"))
    run = finetuning_run(trained, "pets", replace(asked, changes=changes), Execution(), quiet(), epochs=40)
    assert (run.recipe.schedule.peak, run.recipe.schedule.warmup) == (0.2, 7)
    both = replace(asked, changes=(("schedule.total", "9"),))
    with pytest.raises(ValueError, match=r"epochs= \(4\) and schedule.total= \(9\) both set the length"):
        finetuning_run(trained, "", both, Execution(), quiet(), epochs=4)


def test_an_early_stop_is_announced_with_the_time(trained, photos, tmp_path):
    console = quiet()
    spec = finetuning_run(trained, "", Request(f"folder:{photos}"), Execution(), console)
    create(tmp_path / "run", spec, console, is_confirmed=False)
    assert "as busy as it is now; less if the training loss settles before" in said(console)


def test_a_named_recipe_is_taken_at_its_resolution(trained, photos):
    run = finetuning_run(trained, "cifar10", Request(f"folder:{photos}"), Execution(), quiet())
    assert (run.recipe.name, run.model.image, run.held_out) == ("cifar10", (384, 384), 0.02)


@pytest.mark.parametrize(("size", "crop", "enlarged"), [((40, 30), 128, 160 / 128), ((100, 96), 384, 448 / 384)])
def test_the_resolution_of_bit_hyper_rule_follows_the_data(trained, tmp_path, size, crop, enlarged):
    pictures = write_photos(tmp_path / "sized", each=4, size=size)
    (pictures / "blue" / "0.png").write_bytes(b"")  # a bad one says nothing
    run = finetuning_run(trained, "bit-small", Request(f"folder:{pictures}"), Execution(), quiet())
    assert (run.recipe.image, run.recipe.augmentation.enlarged) == ((crop, crop), pytest.approx(enlarged))


def test_a_resolution_that_patches_do_not_divide_is_rounded_and_told(tmp_path, photos):
    spec = ViTSpec(patch=14, layers=1, width=16, mlp=16, heads=1, image=(28, 28), classes=2)
    save_model(vitlab.models.build.build_from_spec(spec), tmp_path / "h14")
    console = quiet()
    run = finetuning_run(tmp_path / "h14", "pets", Request(f"folder:{photos}"), Execution(), console)
    assert run.model.image == (378, 378)
    assert "378x378, because 384 is not a multiple of 14" in said(console)
    with pytest.raises(ValueError, match="nearest sizes"):
        finetuning_run(tmp_path / "h14", "pets", Request(f"folder:{photos}", (100, 100)), Execution(), quiet())


def test_from_a_folder_of_pictures_to_a_prediction(trained, photos, tmp_path, capsys):
    """The three commands of the README."""
    out = tmp_path / "runs" / "photos"
    words = [word for field, text in QUICKLY for word in (f"--{field}", text)]
    arguments = ["finetune", str(trained), "--data", f"folder:{photos}", "--out", str(out), "--image", "24x16", *words]
    assert main([*arguments, "--epochs", "2"]) == 2  # and 30 steps
    assert "both set the length" in capsys.readouterr().err
    assert main([*arguments, "--test", f"folder:{photos}"]) == 0
    assert main(["resume", str(out)]) == 0
    assert "is finished" in capsys.readouterr().out
    assert main(["predict", str(out / "model"), str(photos / "red" / "0.png"), "--top", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["answers"][0]
    assert answer["guesses"][0]["name"] == "red"
    model = vitlab.load_model(out / "model")
    assert model.class_names == ("blue", "green", "red")
    assert model.spec.image == (24, 16)
    assert model.provenance["start"] == "base"
    assert "quick" in model.provenance["recipe"]
    result = json.loads((out / "result.json").read_text())
    assert result["test"]["top1"] == 1.0
    assert result["validation"]["count"] == 2
    assert not (out / "quarantine.json").exists()


def test_the_model_is_the_state_of_the_last_checkpoint(trained, photos, tmp_path):
    spec = finetuning_run(trained, "", Request(f"folder:{photos}", changes=QUICKLY), Execution(), quiet())
    spec = replace(spec, recipe=replace(spec.recipe, average=0.5))
    run = create(tmp_path / "run", spec, quiet(), is_confirmed=False)
    assert train_run(run, quiet()) == 0
    from safetensors.torch import load_file

    averaged = load_file(run.path / "checkpoints" / "step-00000030" / "average.safetensors")
    plain = load_file(run.path / "checkpoints" / "step-00000030" / "model.safetensors")
    kept = load_file(run.path / "model" / "weights.safetensors")
    assert all(torch.equal(kept[name], averaged[name]) for name in kept)
    assert not torch.equal(kept["head.logits.weight"], plain["head.logits.weight"])


def test_early_stopping_keeps_the_best_weights(trained, photos, tmp_path):
    """Validation on wrong labels: the first look is the best, and patience ends the run."""
    wrong = write_photos(tmp_path / "wrong", each=4)
    (wrong / "red").rename(wrong / "old")
    (wrong / "blue").rename(wrong / "red")
    (wrong / "old").rename(wrong / "blue")
    changes = (*QUICKLY, ("validate_every", "4"), ("patience", "2"))
    asked = Request(f"folder:{photos}", validation=f"folder:{wrong}", changes=changes)
    spec = finetuning_run(trained, "", asked, Execution(), quiet())
    run = create(tmp_path / "run", spec, quiet(), is_confirmed=False)
    assert train_run(run, quiet()) == 0
    result = json.loads((run.path / "result.json").read_text())
    accuracies = run.history("validation", "top1")
    best = max(accuracies, key=lambda step: (accuracies[step], -step))
    assert max(run.history("step", "loss")) == best + 8 < 30
    assert result["step"] == best
    assert result["validation"]["top1"] == accuracies[best]


def test_a_lost_best_checkpoint_is_told_and_the_last_weights_are_kept(trained, photos, tmp_path):
    changes = (*QUICKLY, ("validate_every", "10"), ("patience", "5"))
    asked = Request(f"folder:{photos}", validation=f"folder:{photos}", changes=changes)
    spec = finetuning_run(trained, "", asked, Execution(keep=5, save_every=10), quiet())
    run = create(tmp_path / "run", spec, quiet(), is_confirmed=False)
    assert train_run(run, quiet()) == 0
    assert json.loads((run.path / "result.json").read_text())["weights"] == "best"
    best = (run.path / "checkpoints" / "BEST").read_text().strip()
    file = run.path / "checkpoints" / best / "model.safetensors"
    newest = max((run.path / "checkpoints").glob("step-*"))
    assert newest.name != best  # colours are learnt long before the last step, and of equals the first is the best
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    (run.path / "result.json").unlink()
    console = quiet()
    assert train_run(run, console) == 0
    assert "the best checkpoint cannot be used, so the last weights are kept" in said(console)
    assert json.loads((run.path / "result.json").read_text())["weights"] == "last"


def test_what_shows_in_the_bits_is_told_when_it_changes(trained, photos, tmp_path):
    spec = finetuning_run(trained, "", Request(f"folder:{photos}", changes=QUICKLY), Execution(), quiet())
    run = create(tmp_path / "run", spec, quiet(), is_confirmed=False)
    assert train_run(run, quiet()) == 0
    (run.path / "result.json").unlink()
    console = quiet()
    assert train_run(run, console, execution=Execution(precision="bf16", micro_batch=4)) == 0
    assert "not bit-exact because micro-batch was 0 and is 4; precision was fp32 and is bf16" in said(console)


def test_the_shape_of_loaded_weights_is_not_a_choice(trained, photos):
    asked = Request(f"folder:{photos}", changes=(("model.layers", "3"),))
    with pytest.raises(ValueError, match=r"the weights decide layers; only attention, dropout, merge, stochastic_dep"):
        finetuning_run(trained, "", asked, Execution(), quiet())


def test_axial_attention_is_for_new_weights_only(trained, photos, tmp_path):
    with pytest.raises(
        ValueError, match="axial attention does not fit weights for full attention; axial attention has"
    ):
        vitlab.finetune(trained, data=f"folder:{photos}", out=tmp_path / "run", attention="axial", quiet=True)
    assert not (tmp_path / "run").exists()


def test_the_windows_of_loaded_weights_are(photos, tmp_path):
    spec = SwinSpec((1, 2), 6, 1, window=2, image=(32, 32), classes=5)
    base = vitlab.models.build.build_from_spec(spec)
    save_model(base, tmp_path / "base")
    changes = (("model.window", "4"), ("image", "32"), ("stochastic_depth", "0.1"))
    asked = Request(f"folder:{photos}", changes=changes)
    run = finetuning_run(tmp_path / "base", "", asked, Execution(), quiet())
    assert run.model == replace(spec, window=4, classes=3, stochastic_depth=0.1)
    base.set_window(4)
    base.reset_head(3)
    started = initial_model(run).state_dict()
    assert all(torch.equal(started[name], tensor) for name, tensor in base.state_dict().items())


class TestRefusedStart:
    """What fails before the first step leaves nothing, and the corrected command takes the same folder."""

    @pytest.fixture
    def command(self, trained, photos, tmp_path):
        words = [word for field, text in QUICKLY for word in (f"--{field}", text)]
        command = ["finetune", str(trained), "--data", f"folder:{photos}", *words]
        return [*command, "--held-out", "0", "--out", str(tmp_path / "runs" / "mine")]

    def test_bad_pictures_to_test_on(self, command, tmp_path, capsys):
        test = write_photos(tmp_path / "test", each=2)
        for bad in ("blue", "green"):
            for file in (test / bad).iterdir():
                file.write_bytes(b"")
        assert main([*command, "--test", f"folder:{test}"]) == 2
        complaint = capsys.readouterr().err
        assert "of the test images: 4 bad images, at most 3 of 6 are allowed: 'blue/0.png' (empty)" in complaint
        assert not (tmp_path / "runs").exists()
        assert main([*command, "--test", f"folder:{test}", "--max-bad", "0.7"]) == 0

    @pytest.mark.parametrize("before", ["nothing", "a folder", "a hidden file"])
    def test_a_first_batch_that_cannot_be_used(self, command, photos, tmp_path, capsys, before):
        out = tmp_path / "runs" / "mine"
        for file in (photos / "red").iterdir():
            file.write_bytes(b"")
        if before != "nothing":
            out.mkdir(parents=True)
        if before == "a hidden file":
            (out / ".notes").write_text("mine")
        assert main([*command, "--max-bad", "0"]) == 2
        assert "none is allowed" in capsys.readouterr().err
        assert (tmp_path / "runs").exists() == out.exists() == (before != "nothing")
        assert [file.name for file in out.rglob("*")] == ([".notes"] if before == "a hidden file" else [])
        assert main(command) == 0

    def test_a_run_that_has_begun_stays(self, command, photos, tmp_path, capsys):
        for file in (photos / "red").glob("[1-7].png"):
            file.write_bytes(b"")
        (photos / "red" / "0.png").write_bytes(b"")
        # The first epoch is 24 batches of one: 8 are bad, and the first of them comes after the first step.
        assert main([*command, "--batch", "1", "--max-bad", "0", "--save-every", "1", "--seed", "1"]) == 2
        assert "none is allowed" in capsys.readouterr().err
        assert (tmp_path / "runs" / "mine" / "run.json").exists()
        assert (tmp_path / "runs" / "mine" / "quarantine.json").exists()


@pytest.mark.parametrize("step", [5, 30])
@pytest.mark.parametrize("how", ["moved", "removed", "replaced"])
def test_a_run_whose_folder_goes_away_ends_with_an_error(trained, photos, tmp_path, capsys, monkeypatch, how, step):
    out = tmp_path / "run"

    def take_away():
        out.rename(tmp_path / "elsewhere")
        if how == "removed":
            shutil.rmtree(tmp_path / "elsewhere", ignore_errors=True)  # a checkpoint may be written at this moment
        if how == "replaced":
            out.mkdir()

    monkeypatch.setattr(RunDir, "record", RunDir.record)  # put back afterwards
    crashes.on_step(step, take_away)
    words = [word for field, text in QUICKLY for word in (f"--{field}", text)]
    command = ["finetune", str(trained), "--data", f"folder:{photos}", *words, "--out", str(out), "--save-every", "3"]
    assert main(command) == 2
    complaint = capsys.readouterr().err
    assert f"vitlab: {out} was moved or removed while the run was writing to it" in complaint
    assert complaint.count("\n") == 1
    assert not list(out.glob("*"))  # nothing is written where it was
    if how == "moved":
        monkeypatch.undo()
        (tmp_path / "elsewhere").rename(out)
        assert main(["resume", str(out)]) == 0


class TestBadImages:
    """E2, E3, E8: nothing is replaced, nothing is dropped in silence, no label map is permuted."""

    def test_a_training_names_them_in_a_file_and_goes_on(self, trained, photos, tmp_path):
        (photos / "red" / "3.png").write_bytes(b"<html>not found</html>")
        asked = Request(f"folder:{photos}", held_out=0.0, changes=QUICKLY)
        spec = finetuning_run(trained, "", asked, Execution(max_bad=0.1), quiet())
        run = create(tmp_path / "run", spec, quiet(), is_confirmed=False)
        assert train_run(run, quiet()) == 0
        books = json.loads((run.path / "quarantine.json").read_text())
        (bad,) = books["quarantined"]
        assert (bad["id"], bad["reason"]) == ("red/3.png", "not_an_image")
        assert len(bad["sha256"]) == 64
        assert {epoch: books["used"][epoch] + books["bad"][epoch] for epoch in ("0", "1", "2")} == dict.fromkeys(
            "012", 24
        )

    def test_too_many_stop_the_training_and_are_named(self, trained, photos, tmp_path):
        (photos / "red" / "3.png").write_bytes(b"")
        asked = Request(f"folder:{photos}", held_out=0.0)
        spec = finetuning_run(trained, "", asked, Execution(max_bad=0.0), quiet())
        run = create(tmp_path / "run", spec, quiet(), is_confirmed=False)
        with pytest.raises(ValueError, match=r"1 bad image, none is allowed: 'red/3.png' \(empty\)"):
            train_run(run, quiet())
        assert json.loads((run.path / "quarantine.json").read_text())["quarantined"][0]["reason"] == "empty"

    def test_a_result_says_what_was_not_evaluated(self, trained, photos, tmp_path):
        test = write_photos(tmp_path / "test", each=4)
        (test / "blue" / "1.png").write_bytes(b"")
        asked = Request(f"folder:{photos}", held_out=0.0, test=f"folder:{test}", changes=QUICKLY)
        spec = finetuning_run(trained, "", asked, Execution(max_bad=0.1), quiet())
        console = quiet()
        run = create(tmp_path / "run", spec, console, is_confirmed=False)
        assert train_run(run, console) == 0
        result = json.loads((run.path / "result.json").read_text())["test"]
        assert (result["count"], result["not_evaluated"]) == (11, 1)
        assert "1 of 12 not evaluated" in said(console)
        assert "blue/1.png" in (run.path / "test-quarantine.json").read_text()

    def test_a_bad_image_of_the_validation_is_named_in_a_file_of_its_own(self, trained, photos, tmp_path):
        other = write_photos(tmp_path / "other", each=2)
        (other / "red" / "1.png").write_bytes(b"")
        asked = Request(f"folder:{photos}", validation=f"folder:{other}", changes=QUICKLY)
        console = quiet()
        spec = finetuning_run(trained, "", asked, Execution(), quiet())
        run = create(tmp_path / "run", spec, console, is_confirmed=False)
        file = run.path / "validation-quarantine.json"
        assert f"1 of 6 validation images could not be read: 'red/1.png' (empty); all are listed in {file}" in said(
            console
        )
        assert "red/1.png" in file.read_text()
        console = quiet()
        assert train_run(run, console) == 0
        assert "could not be read" not in said(console)  # told once
        assert "1 of 6 not evaluated" in said(console)
        assert json.loads((run.path / "result.json").read_text())["validation"]["not_evaluated"] == 1
        assert not (run.path / "quarantine.json").exists()

    def test_a_few_bad_files_in_a_small_folder_stop_nothing(self, trained, photos, tmp_path, capsys):
        """One to train on, one of those held out, one to test on: all by the defaults of the command."""
        test = write_photos(tmp_path / "test", each=4)
        for bad in (photos / "red" / "3.png", *photos.glob("blue/*.png"), test / "green" / "0.png"):
            bad.write_bytes(b"")
        out = tmp_path / "run"
        words = [word for field, text in QUICKLY for word in (f"--{field}", text)]
        command = ["finetune", str(trained), "--data", f"folder:{photos}", "--test", f"folder:{test}", *words]
        assert main([*command, "--held-out", "0.25", "--out", str(out)]) == 0
        result = json.loads((out / "result.json").read_text())
        assert (result["test"]["count"], result["test"]["not_evaluated"]) == (11, 1)
        unseen = result["validation"]["not_evaluated"]
        assert result["validation"]["count"] + unseen == 6
        listed = json.loads((out / "quarantine.json").read_text())["quarantined"]
        assert len(listed) + unseen == 9
        assert f"{len(listed)} of 18 images could not be read in training" in capsys.readouterr().out
        assert (out / "model" / "weights.safetensors").exists()

    def test_a_validation_set_that_goes_away_leaves_the_model(self, trained, photos, tmp_path):
        other = write_photos(tmp_path / "other", each=2)
        asked = Request(f"folder:{photos}", validation=f"folder:{other}", test=f"folder:{other}", changes=QUICKLY)
        spec = finetuning_run(trained, "", asked, Execution(), quiet())
        material = open_run_data(spec)
        console = quiet()
        run = create_run(tmp_path / "run", spec, material, console, is_confirmed=False)
        shutil.rmtree(other)
        assert train_run(run, console, memory=InMemory(material)) == 0
        assert "test: none of 6 images could be evaluated" in said(console)
        assert json.loads((run.path / "result.json").read_text())["validation"] == {
            "count": 0,
            "skipped": 0,
            "not_evaluated": 6,
        }
        assert vitlab.load_model(run.path / "model").class_names == ("blue", "green", "red")

    @pytest.mark.parametrize("change", ["renamed", "added", "label"])
    def test_a_run_refuses_to_continue_on_other_data(self, trained, photos, tmp_path, change):
        spec = finetuning_run(trained, "", Request(f"folder:{photos}", changes=QUICKLY), Execution(), quiet())
        run = create(tmp_path / "run", spec, quiet(), is_confirmed=False)
        if change == "renamed":
            (photos / "red").rename(photos / "rouge")
        elif change == "added":
            (photos / "red" / "new.png").write_bytes((photos / "red" / "0.png").read_bytes())
        else:
            (photos / "red" / "0.png").rename(photos / "blue" / "0b.png")
        with pytest.raises(ValueError, match=r"the classes differ|the data has changed"):
            train_run(run, quiet())

    def test_validation_and_test_must_have_the_classes_of_the_training(self, trained, photos, tmp_path):
        other = write_photos(tmp_path / "other", each=2)
        (other / "red").rename(other / "rouge")
        for where in ({"validation": f"folder:{other}"}, {"test": f"folder:{other}"}):
            spec = finetuning_run(trained, "", Request(f"folder:{photos}", **where), Execution(), quiet())
            with pytest.raises(
                ValueError, match=r"does not fit the training data: the classes differ: .*missing 'red'"
            ):
                create(tmp_path / "run", spec, quiet(), is_confirmed=False)

    def test_validation_that_lacks_a_class_keeps_the_numbers_of_the_others(self, trained, photos, tmp_path):
        other = write_photos(tmp_path / "other", each=2)
        for file in (other / "blue").iterdir():
            file.unlink()
        for name in ("__MACOSX", "notes"):
            (photos / name).mkdir()
        asked = Request(f"folder:{photos}", validation=f"folder:{other}", changes=QUICKLY)
        spec, console = finetuning_run(trained, "", asked, Execution(), quiet()), quiet()
        material = open_run_data(spec)
        assert material.card.class_names == tuple(COLOURS)
        labels = {material.validation.id(i).split("/")[0]: material.validation.label(i) for i in range(4)}
        assert labels == {"green": (1,), "red": (2,)}
        create(tmp_path / "run", spec, console, is_confirmed=False)
        assert "folders without images do not become classes: 'notes'" in said(console)
        assert "validation data are matched to the training classes by name; it has no image of 'blue'" in said(console)

    def test_pictures_of_a_format_that_is_not_read_are_named_when_a_run_begins(self, trained, photos, tmp_path):
        (photos / next(iter(COLOURS)) / "IMG_1.JXL").write_bytes(b"phone")
        spec = finetuning_run(trained, "", Request(f"folder:{photos}", changes=QUICKLY), Execution(), quiet())
        console = quiet()
        create(tmp_path / "run", spec, console, is_confirmed=False)
        assert "warning: left out 1 .jxl file" in said(console)
        assert "JPEG XL is not supported; convert to JPEG or PNG" in said(console)

    def test_a_run_made_when_numbers_were_sorted_as_text_continues_as_it_was(self, trained, photos, tmp_path):
        for name, number in zip(COLOURS, ("10", "2", "9"), strict=True):
            (photos / name).rename(photos / number)
        as_text = ("10", "2", "9")
        asked = Request(f"folder:{photos}", changes=QUICKLY, validation=f"folder:{photos}")
        spec = finetuning_run(trained, "", asked, Execution(), quiet())
        assert open_run_data(spec).card.class_names == ("2", "9", "10")
        card = describe(renumbered(FolderSource(photos), as_text), spec.data)
        run = RunDir.create(tmp_path / "run", spec, to_json(card))
        assert train_run(run, quiet()) == 0
        model = vitlab.load_model(run.path / "model")
        assert model.class_names == as_text
        result = json.loads((run.path / "result.json").read_text())["validation"]
        answers = vitlab.predict(model, sorted(photos.rglob("*.png")), top=1)
        right = [answer.guesses[0].name == Path(answer.image).parent.name for answer in answers]
        assert result["top1"] == sum(right) / len(right) > 0.9

    def test_data_that_moved_is_named_again(self, trained, photos, tmp_path):
        spec = finetuning_run(trained, "", Request(f"folder:{photos}", changes=QUICKLY), Execution(), quiet())
        run = create(tmp_path / "run", spec, quiet(), is_confirmed=False)
        photos.rename(tmp_path / "elsewhere")
        with pytest.raises(ValueError, match="photos is not a folder"):
            train_run(run, quiet())
        assert train_run(run, quiet(), places={"data": f"folder:{tmp_path / 'elsewhere'}"}) == 0


class TestPretraining:
    def test_a_row_of_table_3_on_your_own_images(self, photos):
        changes = (("batch", "8"), ("schedule.warmup", "10"))
        run = pretraining_run(
            "ViT-B/16@imagenet", Request(f"folder:{photos}", changes=changes), Execution(), None, quiet()
        )
        assert run.recipe.schedule.total == 300 * 24 // 8
        assert (run.model.head, run.model.classes, run.model.dropout) == ("mlp", 3, 0.1)
        assert (run.recipe.loss, run.start) == ("sigmoid", "")

    def test_a_model_alone_gets_the_nearest_row(self, photos):
        console = quiet()
        changes = (("batch", "8"), ("schedule.warmup", "10"), ("model.layers", "2"))
        run = pretraining_run(
            "ViT-Ti/16", Request(f"folder:{photos}", (32, 32), changes=changes), Execution(), 20, console
        )
        assert "recipe ViT-B/16@imagenet: table 3 does not have ViT-Ti/16" in said(console)
        assert (run.recipe.schedule.total, run.model.layers, run.model.image) == (60, 2, (32, 32))

    def test_a_pattern_of_attention_is_one_option(self, photos):
        for attention, name in (("window:2", "ViT-Ti/16"), ("axial", "Axial-ViT-Ti/16")):
            changes = (("batch", "8"), ("schedule.warmup", "10"), ("model.attention", attention))
            asked = Request(f"folder:{photos}", (32, 32), changes=changes)
            run = pretraining_run("ViT-Ti/16", asked, Execution(), 20, quiet())
            assert (run.model.attention, name_of(run.model)) == (attention, name)
        assert (run.model.pool, run.model.positions) == ("mean", "2d")

    def test_a_resnet_gets_a_row_of_resnets_and_is_told_so(self, photos):
        console = quiet()
        changes = (("batch", "8"), ("schedule.warmup", "10"), ("schedule.total", "20"))
        run = pretraining_run(
            "R14x0.25", Request(f"folder:{photos}", (32, 32), changes=changes), Execution(), None, console
        )
        assert "recipe R50x1@jft300m: the paper pre-trains ResNets on JFT-300M only" in said(console)
        assert run.recipe.schedule.peak == pytest.approx(1e-3 * (8 / 4096) ** 0.5)  # as Adam's does
        assert f"peak    {run.recipe.schedule.peak:g}, scaled from 0.001 at 4,096 images to the batch of 8" in said(
            console
        )
        assert run.recipe.optimizer.weight_decay == 0.1
        assert (run.model.root, run.model.classes) == (16, 3)

    def test_too_few_steps_are_an_error_with_a_proposal(self, photos):
        with pytest.raises(ValueError, match=r"300 epochs of 24 images: 1 step of 4,096, .*give batch=6"):
            pretraining_run("ViT-B/16@imagenet", Request(f"folder:{photos}"), Execution(), None, quiet())

    def test_the_head_starts_at_minus_ten(self, photos):
        from vitlab.runs.training.state import initial_model

        changes = (("batch", "8"), ("schedule.warmup", "10"), ("model.layers", "1"))
        asked = Request(f"folder:{photos}", (32, 32), changes=changes)
        run = pretraining_run("ViT-Ti/16", asked, Execution(), 9, quiet())
        model = initial_model(run)
        assert model.head.logits.bias.unique().tolist() == [-10.0]


def test_a_run_of_days_on_a_cpu_has_to_be_wanted(trained, photos, tmp_path, monkeypatch):
    spec = finetuning_run(trained, "", Request(f"folder:{photos}"), Execution(), quiet())
    monkeypatch.setattr(start, "estimated_seconds", lambda *given: 3 * 86_400.0)
    with pytest.raises(ValueError, match=r"about 3.0 days on this CPU; confirm with yes=True, or reduce"):
        create(tmp_path / "run", spec, quiet(), is_confirmed=False)
    assert not (tmp_path / "run").exists()
    assert create(tmp_path / "run", spec, quiet(), is_confirmed=True).path == tmp_path / "run"


def test_a_folder_with_a_run_in_it_is_not_started_again(trained, photos, tmp_path):
    spec = finetuning_run(trained, "", Request(f"folder:{photos}", changes=QUICKLY), Execution(), quiet())
    create(tmp_path / "run", spec, quiet(), is_confirmed=False)
    with pytest.raises(ValueError, match="holds a run already; continue it with: vitlab resume"):
        create(tmp_path / "run", spec, quiet(), is_confirmed=False)


def test_weights_that_changed_are_not_taken_for_those_a_run_began_with(trained, photos, tmp_path):
    spec = finetuning_run(trained, "", Request(f"folder:{photos}", changes=QUICKLY), Execution(), quiet())
    run = create(tmp_path / "run", spec, quiet(), is_confirmed=False)
    file = trained / "weights.safetensors"
    before = file.read_bytes()
    file.write_bytes(before[:-1] + b"x")
    with pytest.raises(ValueError, match="does not match its SHA-256; it is damaged or was edited"):
        train_run(run, quiet())
    model = vitlab.models.build.build_from_spec(spec.model, seed=7)
    shutil.rmtree(trained)
    save_model(model, trained)
    with pytest.raises(ValueError, match="are not those of the run"):
        train_run(run, quiet())


def test_balanced_class_weights_make_every_class_weigh_the_same(trained, photos):
    from vitlab.runs.training.objective import class_weights

    for number in range(4):
        (photos / "red" / f"{number}.png").unlink()
    changes = (*QUICKLY, ("class_weights", "balanced"))
    spec = finetuning_run(trained, "", Request(f"folder:{photos}", changes=changes), Execution(), quiet())
    weights = class_weights(spec, open_source(f"folder:{photos}"), torch.device("cpu"))
    assert (weights * torch.tensor([8, 8, 4])).tolist() == pytest.approx([20 / 3] * 3)


def test_the_run_folder_says_everything(trained, photos, tmp_path):
    spec = finetuning_run(trained, "", Request(f"folder:{photos}", changes=QUICKLY), Execution(keep=1), quiet())
    run = create(tmp_path / "run", spec, quiet(), is_confirmed=False)
    train_run(run, quiet())
    assert RunDir.open(run.path).spec() == spec
    kinds = [event["event"] for event in run.events()]
    assert kinds[0] == "started"
    assert kinds[-1] == "finished"
    assert list(run.history("step", "loss")) == list(range(1, 31))
    assert sorted(path.name for path in (run.path / "checkpoints").iterdir())[-1] == "step-00000030"
    card = json.loads((run.path / "data.json").read_text())
    assert card["class_names"] == ["blue", "green", "red"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_tf32_on_a_cpu_is_refused_before_there_is_a_folder(tmp_path):
    with pytest.raises(ValueError, match="only NVIDIA GPUs have TF32, and the device is cpu"):
        vitlab.pretrain("ViT-Ti/4", "digits", tmp_path / "run", image=8, batch=64, precision="tf32", quiet=True)
    assert not (tmp_path / "run").exists()
