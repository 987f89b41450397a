"""What a run says of its data: images that could not be read, each told once, and classes without an image."""

import io
import json
import os
import re
import signal
from dataclasses import replace

import pytest
from rich.console import Console

import crashes
from pictures import photo
from vitlab.errors import TooManyBadImages
from vitlab.run_dir import RunDir
from vitlab.runs.training.trainer import train_run
from vitlab.spec.recipe import Execution, Masking
from vitlab.weights.load import load_model

STEPS = 8  # of 6 images: two epochs of 24


def write_pictures(folder, bad=(), classes=2):
    """Classes of twelve pictures; those of `bad` numbers are none."""
    for number in range(12 * classes):
        file = folder / f"class-{number // 12}" / f"{number:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        photo(10 + number, 10).save(file)
        if number in bad:
            file.write_bytes(b"not a picture")


def new_run(folder, path, max_bad=0.5, classes=2, patience=0, batch=6, steps=STEPS, **words):
    execution = Execution(max_bad=max_bad, save_every=3)
    every = 3 if "validation" in words else 0
    spec = crashes.small_run(steps=steps, batch=batch, execution=execution, validate_every=every, patience=patience)
    model = replace(spec.model, classes=classes)
    crashes.new_run(path, replace(spec, **({"data": f"folder:{folder}", "model": model, "held_out": 0.0} | words)))
    return path


def go_on(path):
    """(exit code, the lines that were said)"""
    said = io.StringIO()
    return train_run(RunDir.open(path), Console(file=said, width=1000)), said.getvalue().splitlines()


def named(lines):
    return [name for line in lines for name in re.findall(r"'(class-\d/\d\d\.png)' \(not an image\)", line)]


def test_images_that_could_not_be_read_are_named_once_and_counted_at_the_end(in_memory):
    write_pictures(in_memory / "pictures", bad=(4, 17))
    path = new_run(in_memory / "pictures", in_memory / "run")
    code, said = go_on(path)
    assert code == 0
    assert sorted(named(said)) == ["class-0/04.png", "class-1/17.png"]
    telling = [line for line in said if named([line])]
    assert all(re.search(rf"; all( 2)? are listed in {path / 'quarantine.json'}$", line) for line in telling)
    assert f"2 of 24 images could not be read in training; {path / 'quarantine.json'} lists them" in said


def test_the_total_is_that_of_all_steps_where_the_best_weights_are_of_an_early_one(in_memory):
    write_pictures(in_memory / "pictures", bad=(4, 17))
    write_pictures(in_memory / "held-out")
    words = {"validation": f"folder:{in_memory / 'held-out'}"}
    path = new_run(in_memory / "pictures", in_memory / "run", patience=50, **words)
    _, said = go_on(path)
    assert json.loads((path / "result.json").read_text())["step"] < STEPS  # else nothing is shown here
    assert f"2 of 24 images could not be read in training; {path / 'quarantine.json'} lists them" in said


def test_one_that_was_told_before_a_stop_is_not_told_again(in_memory, monkeypatch):
    write_pictures(in_memory / "pictures", bad=(4, 9, 17))
    path = new_run(in_memory / "pictures", in_memory / "run")
    monkeypatch.setattr(RunDir, "record", RunDir.record)  # put back afterwards
    crashes.on_step(3, os.kill, os.getpid(), signal.SIGTERM)
    code, before = go_on(path)
    assert code == 143
    assert named(before)
    monkeypatch.undo()
    code, after = go_on(path)
    assert code == 0
    assert named(after)
    assert sorted(named(before) + named(after)) == ["class-0/04.png", "class-0/09.png", "class-1/17.png"]
    assert any(line.startswith("3 of 24 images could not be read in training") for line in after)


def test_many_are_counted_and_a_few_of_them_named(in_memory):
    write_pictures(in_memory / "pictures", bad=range(12))
    path = new_run(in_memory / "pictures", in_memory / "run")
    _, said = go_on(path)
    first = next(line for line in said if "could not be read" in line)
    count, more = map(int, re.search(r"^(\d+) of 24 images .* and (\d+) more;", first).groups())
    assert count == len(named([first])) + more
    assert len(named([first])) == 3
    recorded = json.loads((path / "quarantine.json").read_text())["quarantined"]
    assert len(recorded) == 12


def test_those_of_a_validation_and_of_a_test_are_named_once_too(in_memory):
    write_pictures(in_memory / "pictures")
    write_pictures(in_memory / "held-out", bad=(3,))
    write_pictures(in_memory / "test", bad=(14,))
    words = {"validation": f"folder:{in_memory / 'held-out'}", "test": f"folder:{in_memory / 'test'}"}
    path = new_run(in_memory / "pictures", in_memory / "run", **words)
    _, said = go_on(path)
    told = [line for line in said if named([line])]  # three validations, one test
    assert [line.partition(":")[0] for line in told] == [
        "1 of 24 validation images could not be read",
        "1 of 24 test images could not be read",
    ]
    assert named(told) == ["class-0/03.png", "class-1/14.png"]
    assert told[0].endswith(str(path / "validation-quarantine.json"))
    assert told[1].endswith(str(path / "test-quarantine.json"))


def test_a_batch_without_one_readable_image_is_skipped_and_told(in_memory):
    write_pictures(in_memory / "pictures", bad=range(12))
    path = new_run(in_memory / "pictures", in_memory / "run", batch=1, steps=24)
    code, said = go_on(path)
    assert code == 0
    images = [event["images"] for event in RunDir.open(path).events("step")]
    assert images.count(0) == 12
    assert "000" in "".join(map(str, images))  # three steps in a row that diverged would have stopped it
    assert sum("skipped, none of its images could be read" in line for line in said) == 12
    result = json.loads((path / "result.json").read_text())
    assert (result["images"], result["skipped"]) == (12, 12)


def test_too_many_are_named_by_the_error_alone(in_memory):
    write_pictures(in_memory / "pictures", bad=(4, 9, 17))
    path = new_run(in_memory / "pictures", in_memory / "run", max_bad=0.0)
    said = io.StringIO()
    with pytest.raises(TooManyBadImages, match="not an image"):
        train_run(RunDir.open(path), Console(file=said, width=1000))
    assert "could not be read" not in said.getvalue()
    assert (path / "quarantine.json").exists()


def test_a_run_on_sound_images_says_nothing_of_bad_ones(in_memory):
    write_pictures(in_memory / "pictures")
    _, said = go_on(new_run(in_memory / "pictures", in_memory / "run"))
    assert not [line for line in said if "could not be read" in line or "no image" in line]


def test_classes_without_an_image_to_train_on_are_named_when_a_run_begins_and_keep_their_numbers(in_memory):
    write_pictures(in_memory / "pictures", classes=3)
    files = sorted((in_memory / "pictures").rglob("*.png"))
    rows = [f"{file.relative_to(in_memory)},{(0, 1, 3)[number // 12]}" for number, file in enumerate(files)]
    (in_memory / "table.csv").write_text("\n".join(["path,label", *rows]))
    path = new_run("", in_memory / "run", classes=4, data=f"csv:{in_memory}/table.csv")
    code, said = go_on(path)
    assert code == 0
    assert [line for line in said if "no training image" in line] == [
        "1 of 4 classes has no training images: '2'; is a label missing or misspelt? "
        "Classes without images keep their numbers but are not learned"
    ]
    assert load_model(path / "model").class_names == ("0", "1", "2", "3")


def test_a_run_without_labels_asks_for_no_class(in_memory):
    write_pictures(in_memory / "pictures")
    (in_memory / "pictures" / "empty").mkdir()
    masking = Masking("mean-colour", 0.5, 0.8, 0.1, 0.1)
    quiet = {"loss": "softmax", "dropout": 0.0, "validate_every": 0, "patience": 0}
    spec = crashes.small_run(steps=2, batch=6, masking=masking, **quiet)
    model = replace(spec.model, classes=0, dropout=0.0)
    path = in_memory / "run"
    crashes.new_run(path, replace(spec, data=f"folder:{in_memory / 'pictures'}", model=model, held_out=0.0))
    assert "no image" not in "".join(go_on(path)[1])
