"""A run that continues is the run that was stopped, or says that it is not: E12, A13."""

import io
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import crashes
import kinds
from vitlab.cli import main
from vitlab.data.sources.shards import index_folder
from vitlab.run_dir import CHECKPOINTS, CONTENTS, DATA, MODEL, NOT_EXACT, RESULT, RUN, RunDir
from vitlab.runs.training.run import reproduce
from vitlab.runs.training.trainer import train_run
from vitlab.train.checkpoints.files import STATE, name_of
from vitlab.weights.load import load_model

SMALL = crashes.small_run()
STEP = 8


def write_photos(folder, shade=0, each=4):
    """Pictures of two classes; another shade makes other pictures under the same names, of the same size in bytes."""
    for label, name in enumerate("ab"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            pixels = np.full((8, 8, 3), 100 * label + 10 * number + shade, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.bmp")
    return f"folder:{folder}"


def run_on(path, data, *, steps=12, **places):
    recipe = replace(SMALL.recipe, schedule=replace(SMALL.recipe.schedule, total=steps), patience=0, validate_every=0)
    model = replace(SMALL.model, classes=2)
    spec = replace(SMALL, model=model, recipe=recipe, data=data, held_out=0.0, **places)
    return crashes.new_run(path, spec)


def go_on(path, **how):
    """(exit code, what was said)"""
    said = io.StringIO()
    return train_run(RunDir.open(path), Console(file=said, width=2000), **how), said.getvalue()


def stop(path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDir, "record", RunDir.record)  # put back afterwards
        crashes.on_step(STEP, os.kill, os.getpid(), signal.SIGTERM)
        assert go_on(path)[0] == 143


def weights(path):
    return load_model(path / MODEL).state_dict()


def same_weights(one, other):
    return all(torch.equal(tensor, weights(other)[name]) for name, tensor in weights(one).items())


@pytest.fixture
def sets(in_memory):
    """Where training, validation and test pictures lie, by flag."""
    return {
        name: write_photos(in_memory / name, shade) for name, shade in (("data", 0), ("validation", 3), ("test", 5))
    }


@pytest.fixture
def stopped(in_memory, sets):
    """A run that was stopped after step 8 of 12."""
    run_on(in_memory / "run", **sets)
    stop(in_memory / "run")
    return in_memory / "run"


@pytest.fixture
def unbroken(in_memory, sets):
    run_on(in_memory / "unbroken", **sets)
    assert go_on(in_memory / "unbroken")[0] == 0
    return in_memory / "unbroken"


class TestData:
    @pytest.mark.parametrize("name", ["data", "validation", "test"])
    def test_other_pictures_under_the_same_names_are_refused_and_named(self, stopped, sets, name):
        changed = Path(sets[name].removeprefix("folder:")) / "b" / "2.bmp"
        status = changed.stat()
        Image.new("RGB", (8, 8), "red").save(changed)
        os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert changed.stat().st_size == status.st_size
        words = {"data": "training"}.get(name, name)
        with pytest.raises(ValueError, match=f"1 of 8 files of the {words} data has changed: .*{changed}.*--allow"):
            go_on(stopped)
        assert not (stopped / NOT_EXACT).exists()

    def test_with_the_flag_it_continues_and_says_everywhere_that_it_is_not_exact(self, stopped, unbroken, in_memory):
        write_photos(in_memory / "data", shade=7)
        code, said = go_on(stopped, allow_changed=True)
        assert code == 0
        why = "after step 8: 8 of 8 files of the training data have changed"
        (found,) = json.loads((stopped / RESULT).read_text())["not_exact"]
        assert found.startswith(why)
        assert f"this run is not exact: {why}" in said
        assert load_model(stopped / MODEL).provenance["not_exact"].startswith(why)
        (event,) = RunDir(stopped).events("changed")
        assert (event["step"], len(event["reasons"])) == (STEP, 1)
        assert not same_weights(stopped, unbroken)

    def test_a_run_that_was_continued_with_changes_stays_not_exact_after_the_next_stop(self, in_memory, sets):
        run = run_on(in_memory / "run", sets["data"], steps=24)
        stop(run.path)
        write_photos(in_memory / "data", shade=7)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunDir, "record", RunDir.record)
            crashes.on_step(STEP + 4, os.kill, os.getpid(), signal.SIGTERM)
            assert go_on(run.path, allow_changed=True)[0] == 143
        assert go_on(run.path)[0] == 0  # it goes on with what it was continued with
        assert len(json.loads((run.path / RESULT).read_text())["not_exact"]) == 1

    @pytest.mark.parametrize("how", ["copied", "restored", "touched"])
    def test_data_with_the_same_content_resumes_exactly(self, stopped, unbroken, sets, in_memory, how):
        places = {}
        for name, spec in sets.items():
            folder = Path(spec.removeprefix("folder:"))
            if how == "touched":
                for file in folder.rglob("*.bmp"):
                    os.utime(file)
            else:
                copy = shutil.copytree(folder, in_memory / "elsewhere" / name, copy_function=shutil.copyfile)
                shutil.rmtree(folder)
                if how == "copied":
                    places[name] = f"folder:{copy}"
                else:
                    shutil.copytree(copy, folder, copy_function=shutil.copyfile)
        assert go_on(stopped, places=places)[0] == 0
        assert same_weights(stopped, unbroken)
        assert "not_exact" not in json.loads((stopped / RESULT).read_text())

    def test_nothing_is_read_where_nothing_changed_and_copies_are_read_once(self, stopped, reads, in_memory):
        stop_again = replace(RunDir.open(stopped).spec().execution, save_every=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunDir, "record", RunDir.record)
            crashes.on_step(STEP + 1, os.kill, os.getpid(), signal.SIGTERM)
            assert go_on(stopped, execution=stop_again)[0] == 143
            assert not reads
            os.utime(in_memory / "data" / "a" / "0.bmp")
            crashes.on_step(STEP + 2, os.kill, os.getpid(), signal.SIGTERM)
            assert go_on(stopped, execution=stop_again)[0] == 143
        assert reads == [str(in_memory / "data" / "a" / "0.bmp")]
        assert go_on(stopped)[0] == 0
        assert len(reads) == 1

    @pytest.mark.parametrize("change", ["removed", "added", "label"])
    def test_other_samples_are_refused_and_with_the_flag_continued_on(self, stopped, in_memory, change):
        folder = in_memory / "data"
        if change == "removed":
            (folder / "a" / "0.bmp").unlink()
        elif change == "added":
            shutil.copyfile(folder / "a" / "0.bmp", folder / "a" / "new.bmp")
        else:
            (folder / "a" / "0.bmp").rename(folder / "b" / "new.bmp")
        with pytest.raises(ValueError, match=r"the data has changed.*--allow-changed"):
            go_on(stopped)
        assert go_on(stopped, allow_changed=True)[0] == 0
        (why,) = json.loads((stopped / RESULT).read_text())["not_exact"]
        assert "training data has other samples or labels" in why
        samples = {"removed": 7, "added": 9, "label": 8}[change]
        assert json.loads((stopped / DATA).read_text())["samples"] == samples

    @pytest.mark.parametrize("name", ["validation", "test"])
    def test_other_samples_to_validate_or_test_on_are_refused(self, stopped, in_memory, name):
        (in_memory / name / "a" / "0.bmp").unlink()
        with pytest.raises(ValueError, match=f"the {name} data has other samples or labels than before"):
            go_on(stopped)

    @pytest.mark.parametrize("kind", [kinds.stored_arrays, kinds.packed_arrays, kinds.idx, kinds.cifar])
    def test_other_arrays_in_a_file_of_the_same_name_are_refused(self, in_memory, kind):
        (in_memory / "data").mkdir()
        spec, file = kind(in_memory / "data")
        run = run_on(in_memory / "run", spec)
        if kind is kinds.cifar:
            run = _with_classes(in_memory, spec, 10)
        stop(run.path)
        kind(in_memory / "data", shade=1)
        with pytest.raises(ValueError, match=f"1 of 1 files of the training data has changed.*{file.name}"):
            go_on(run.path)

    def test_other_images_in_indexed_shards_are_refused(self, in_memory):
        folder = in_memory / "shards"
        folder.mkdir()
        _write_shard(folder, 0)
        run = run_on(in_memory / "run", f"shards:{folder}")
        stop(run.path)
        _write_shard(folder, 1)
        with pytest.raises(ValueError, match=r"1 of 1 files of the training data has changed.*a\.tar"):
            go_on(run.path)
        _write_shard(folder, 0)
        assert go_on(run.path)[0] == 0

    def test_a_run_of_an_earlier_version_resumes_with_a_warning_and_is_checked_from_then_on(self, stopped, in_memory):
        (stopped / CONTENTS).unlink()
        write_photos(in_memory / "data", shade=7)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunDir, "record", RunDir.record)
            crashes.on_step(STEP + 1, os.kill, os.getpid(), signal.SIGTERM)
            code, said = go_on(stopped)
        assert code == 143
        assert "warning: there is no usable record of the data as it was" in said
        write_photos(in_memory / "data", shade=9)
        with pytest.raises(ValueError, match="8 of 8 files of the training data have changed"):
            go_on(stopped)

    def test_a_second_training_of_a_run_is_refused_on_other_pictures(self, unbroken, in_memory, capsys):
        write_photos(in_memory / "data", shade=7)
        again = in_memory / "again"
        assert main(["reproduce", str(unbroken), "--out", str(again)]) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert "8 of 8 files of the training data have changed" in told
        assert f"vitlab reproduce {unbroken} --allow-changed" in told
        found = reproduce(unbroken, again, quiet=True, allow_changed=True)
        assert not found.same_bits
        assert "8 of 8 files of the training data" in " ".join(found.changed)

    def test_the_command_names_the_run_and_the_flag_which_continues_it(self, stopped, in_memory, capsys):
        write_photos(in_memory / "data", shade=7)
        assert main(["resume", str(stopped)]) == 2
        assert f"vitlab resume {stopped} --allow-changed" in " ".join(capsys.readouterr().err.split())
        assert main(["resume", str(stopped), "--allow-changed"]) == 0
        assert "this run is not exact: after step 8: 8 of 8 files" in " ".join(capsys.readouterr().out.split())

    def test_what_a_run_never_had_cannot_have_moved(self, in_memory, sets):
        run = run_on(in_memory / "run", sets["data"])
        with pytest.raises(ValueError, match="has no validation that could have moved"):
            go_on(run.path, places={"validation": sets["validation"]})


class TestRunFile:
    def edit(self, path, **schedule):
        values = json.loads((path / RUN).read_text())
        values["recipe"]["schedule"] |= schedule
        (path / RUN).write_text(json.dumps(values))

    def test_an_edited_recipe_is_refused_and_the_field_named(self, stopped):
        self.edit(stopped, peak=0.03)
        with pytest.raises(
            ValueError, match=r"run\.json was edited: recipe\.schedule\.peak was 0\.003 and is 0\.03; .*--allow-changed"
        ):
            go_on(stopped)

    def test_with_the_flag_it_continues_as_edited_and_is_called_not_exact(self, stopped):
        self.edit(stopped, total=14)
        assert go_on(stopped, allow_changed=True)[0] == 0
        result = json.loads((stopped / RESULT).read_text())
        assert result["step"] == 14
        assert result["not_exact"] == ["after step 8: run.json was edited: recipe.schedule.total was 12 and is 14"]

    def test_another_execution_or_layout_of_the_file_is_no_edit(self, stopped, unbroken):
        values = json.loads((stopped / RUN).read_text())
        values["execution"]["keep"] = 5
        (stopped / RUN).write_text(json.dumps(values, sort_keys=True))
        assert go_on(stopped)[0] == 0
        assert same_weights(stopped, unbroken)

    def test_a_checkpoint_of_an_earlier_version_resumes_with_a_warning(self, stopped, unbroken):
        for step in crashes.whole_checkpoints(stopped):
            folder = stopped / CHECKPOINTS / name_of(step)
            values = json.loads((folder / STATE).read_text())
            del values["learnt"]
            crashes.json_writer(values)(folder / STATE)
            manifest = json.loads((folder / crashes.MANIFEST).read_text())
            entry = {"bytes": (folder / STATE).stat().st_size, "sha256": crashes.sha256(folder / STATE)}
            crashes.json_writer(manifest | {STATE: entry})(folder / crashes.MANIFEST)
        code, said = go_on(stopped)
        assert code == 0
        assert "warning: the checkpoint is of an earlier version of vitlab" in said
        assert same_weights(stopped, unbroken)


def _with_classes(folder, spec, classes):
    recipe = replace(SMALL.recipe, patience=0, validate_every=0)
    return crashes.new_run(
        folder / "other",
        replace(SMALL, recipe=recipe, model=replace(SMALL.model, classes=classes), data=spec, held_out=0.0),
    )


def _write_shard(folder, shade):
    import tarfile

    with tarfile.open(folder / "a.tar", "w") as tar:
        for number in range(4):
            picture = io.BytesIO()
            Image.new("RGB", (8, 8), (50 * number + shade, 0, 0)).save(picture, "PNG")
            for suffix, data in (("png", picture.getvalue()), ("cls", b"%d" % (number % 2))):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    index_folder(folder)
