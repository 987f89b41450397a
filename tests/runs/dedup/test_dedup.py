"""Near-duplicates from images to a training without them: found, shown, listed, left out, accounted for."""

import inspect
import io
import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from html import escape
from pathlib import Path

import pytest
import torch
from rich.console import Console

import vitlab
from nasty import NASTY
from near_duplicates import EDITS, picture
from vitlab.cli import main
from vitlab.commands.data import data_dedup
from vitlab.data.images.gate import read_image
from vitlab.data.loading.accounting import Account
from vitlab.files.store import Locked, locked

CHANGES = list(EDITS.values())


def write(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


@pytest.fixture
def sets(tmp_path):
    """20 training images, of which 15 to 19 are edited test images, and 10 test images."""
    for number in range(20):
        image = picture(number) if number < 15 else CHANGES[number % len(CHANGES)](picture(100 + number - 15))
        write(tmp_path / "train" / "ab"[number % 2] / f"{number:02}.png", image)
    for number in range(10):
        write(tmp_path / "test" / "ab"[number % 2] / f"t{number}.png", picture(100 + number))
    return f"folder:{tmp_path / 'train'}", f"folder:{tmp_path / 'test'}"


def found_in(result):
    return [(Path(pair.train).stem, Path(pair.test).stem) for pair in sorted(result.removed, key=lambda p: p.train[2:])]


EXPECTED = [(f"{15 + n}", f"t{n}") for n in range(5)]


def test_edited_test_images_are_found_and_left_out(sets, tmp_path):
    found = vitlab.dedup(*sets, tmp_path / "out", quiet=True)
    assert found_in(found) == EXPECTED
    rest = vitlab.open_data(found.spec)
    assert len(rest) == 15
    assert rest.excluded["near_duplicate"] == 5
    assert vitlab.dedup(sets[0], sets[1], tmp_path / "again", quiet=True).pairs == found.pairs
    with pytest.raises(ValueError, match=r"out has the near-duplicates of .*; choose another folder with out="):
        vitlab.dedup(sets[0], f"{sets[1]}?subset=3", tmp_path / "out", quiet=True)
    assert len(vitlab.open_data(found.spec)) == 15
    lines = [json.loads(line) for line in (tmp_path / "out" / "pairs.jsonl").read_text().splitlines()]
    assert [(line["train"], line["test"]) for line in lines] == [(pair.train, pair.test) for pair in found.pairs]
    assert all(line["correlation"] >= 0.92 and line["distance"] <= 11 for line in lines)


def test_several_test_sets_are_told_apart(sets, tmp_path):
    for number in (3, 4):
        write(tmp_path / "other" / "a" / f"o{number}.png", picture(number))
    found = vitlab.dedup(sets[0], [sets[1], f"folder:{tmp_path / 'other'}"], tmp_path / "out", quiet=True)
    assert found_in(found) == [("03", "o3"), ("04", "o4"), *EXPECTED]
    assert [row[:5] for row in found.table.rows] == [
        (sets[1], 10, 5, 5, 0),
        (f"folder:{tmp_path / 'other'}", 2, 2, 2, 2),
    ]


def test_bad_images_are_counted_and_named(sets, tmp_path):
    bad = {name: data for name, (data, reason) in NASTY.items() if reason}
    for name, data in bad.items():
        (tmp_path / "train" / "a" / name).write_bytes(data)
    (tmp_path / "test" / "a" / "broken.png").write_bytes(b"")
    found = vitlab.dedup(*sets, tmp_path / "out", quiet=True)
    assert found_in(found) == EXPECTED
    assert {sample.id for sample in found.bad[sets[0]]} == {f"a/{name}" for name in bad}
    assert [(sample.id, sample.reason) for sample in found.bad[sets[1]]] == [("a/broken.png", "empty")]
    kept = json.loads((tmp_path / "out" / "dedup.json").read_text())
    assert len(kept["bad"][sets[0]]) == len(bad)
    assert f"{len(bad)}, not compared" in "\n".join(found.lines())
    assert "broken.png (empty)" in (tmp_path / "out" / "report.html").read_text()


def test_names_are_text_on_the_page(sets, tmp_path):
    name = "<img src=x onerror=alert(1)>.png"
    write(tmp_path / "train" / "b" / name, picture(100))
    found = vitlab.dedup(*sets, tmp_path / "out", quiet=True)
    page = (tmp_path / "out" / "report.html").read_text()
    assert name in {Path(pair.train).name for pair in found.removed}
    assert name not in page
    assert escape(name) in page
    assert page.count('<figure class="card">') == 6
    assert "<script" not in page


@pytest.mark.parametrize("how", ["the same words", "other words", "a second test set"])
def test_the_same_data_as_training_and_test_data_is_refused(sets, tmp_path, monkeypatch, how):
    monkeypatch.chdir(tmp_path)
    tests = {"the same words": sets[0], "other words": "folder:train", "a second test set": [sets[1], sets[0]]}
    with pytest.raises(ValueError, match="every image would be left out, so give other test data"):
        vitlab.dedup(sets[0], tests[how], tmp_path / "out", quiet=True)


def test_a_copy_of_the_training_data_is_all_near_duplicates(sets, tmp_path):
    shutil.copytree(tmp_path / "train", tmp_path / "copy")
    found = vitlab.dedup(sets[0], f"folder:{tmp_path / 'copy'}", tmp_path / "whole", quiet=True)
    assert len(found.removed) == 20
    assert all(pair.same for pair in found.removed)
    with pytest.raises(ValueError, match="lists all 20 samples; none would be left"):
        vitlab.open_data(found.spec)


def test_nothing_found_is_a_result_too(sets, tmp_path):
    none = vitlab.dedup("shapes?images=8", sets[1], tmp_path / "none", quiet=True)
    assert none.removed == ()
    assert len(vitlab.open_data(none.spec)) == 8


@pytest.mark.slow
def test_several_processes_find_the_same(sets, tmp_path, monkeypatch):
    found = vitlab.dedup(*sets, tmp_path / "one", quiet=True)
    assert vitlab.dedup(*sets, tmp_path / "two", jobs=2, quiet=True).pairs == found.pairs


def test_a_torch_dataset_is_data_too(sets, tmp_path):
    class Pictures(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return picture((7, 101, 8)[index]), 0

    found = vitlab.dedup(Pictures(), sets[1], tmp_path / "out", quiet=True)
    assert [(pair.train_number, Path(pair.test).stem) for pair in found.removed] == [(1, "t1")]
    assert found.spec == ""
    assert vitlab.dedup(Pictures(), sets[1], tmp_path / "out", quiet=True).pairs == found.pairs


def test_a_folder_in_use_or_of_other_files_is_left_alone(sets, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "words.txt").write_text("words")
    with pytest.raises(FileExistsError, match="contains other files"):
        vitlab.dedup(*sets, tmp_path / "thesis", quiet=True)
    with locked(tmp_path / "out"), pytest.raises(Locked, match="in use"):
        vitlab.dedup(*sets, tmp_path / "out", quiet=True)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_distance": 64}, "max_distance= is 64; allowed are 0 to 31 bits"),
        ({"min_correlation": 0.0}, "min_correlation= is 0.0; allowed are numbers above 0, up to 1"),
        ({"jobs": 0}, "jobs= is 0"),
        ({"tests": []}, "name at least one test set"),
        ({"train": "digits?shots=x"}, "must be a whole number"),
    ],
)
def test_mistakes_are_told_before_anything_is_read(sets, tmp_path, given, told):
    with pytest.raises(ValueError, match=told):
        vitlab.dedup(**{"train": sets[0], "tests": sets[1], "out": tmp_path / "out", "quiet": True} | given)


def test_data_that_leaves_images_out_already_is_refused(sets, tmp_path):
    found = vitlab.dedup(*sets, tmp_path / "out", quiet=True)
    with pytest.raises(ValueError, match="leaves images out already; give the whole data"):
        vitlab.dedup(found.spec, sets[1], tmp_path / "out2", quiet=True)
    for option in ("subset=2", f"subset=2&exclude={found.path / 'exclude.jsonl'}"):
        with pytest.raises(ValueError, match="a subset is drawn after excluding"):
            vitlab.dedup(f"{sets[0]}?{option}", sets[1], tmp_path / "out2", quiet=True)


def test_a_model_finds_what_pixels_do_not(sets, tmp_path, tiny):
    """A similarity of almost nothing accepts every candidate; one of almost everything only what pixels accept."""
    write(tmp_path / "train" / "a" / "cut.png", picture(100).crop((3, 2, 93, 62)))
    plain = vitlab.dedup(*sets, tmp_path / "out", max_distance=16, quiet=True)
    strict = vitlab.dedup(*sets, tmp_path / "out", model=tiny, min_similarity=1.0, max_distance=16, quiet=True)
    lenient = vitlab.dedup(*sets, tmp_path / "out", model=tiny, min_similarity=1e-6, max_distance=16, quiet=True)
    assert found_in(strict) == found_in(plain) == EXPECTED
    assert "cut" in {Path(pair.train).stem for pair in lenient.removed}
    identical = [pair.similarity for pair in strict.pairs if pair.same]
    assert all(-1 <= pair.similarity <= 1.0001 for pair in lenient.pairs)
    assert all(similarity == pytest.approx(1, abs=1e-4) for similarity in identical)


def test_the_command_and_the_function_have_the_same_defaults():
    ours, theirs = (inspect.signature(one).parameters for one in (data_dedup, vitlab.dedup))
    for name in ("max_distance", "min_correlation", "min_similarity", "device", "jobs"):
        assert ours[name].default == theirs[name].default


def test_the_command_prints_what_was_found_and_how_to_use_it(sets, tmp_path, capsys):
    assert main(["data", "dedup", *sets, "--out", str(tmp_path / "out")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "near-duplicates 5 (25.000%)" in printed
    assert "remaining 15" in printed
    assert f"{sets[0]}?exclude={tmp_path / 'out' / 'exclude.jsonl'}" in printed.replace(" ", "")


@pytest.mark.slow
def test_a_training_leaves_them_out_and_its_account_says_so(sets, tmp_path):
    spec = vitlab.dedup(*sets, tmp_path / "out", quiet=True).spec
    screen = Console(file=io.StringIO(), width=200)
    run = vitlab.pretrain(
        "ViT-Ti/16", spec, out=tmp_path / "run", image=32, epochs=1, held_out=0.0, batch=5, console=screen
    )
    last = max((run.path / "checkpoints").glob("step-*"))
    account = Account.from_json(json.loads((last / "state.json").read_text())["progress"]["books"])
    assert (account.found, account.used[0], dict(account.excluded)) == (20, 15, {"near_duplicate": 5})
    assert account.is_balanced()
    assert "left out 5 near-duplicates of test images ('a/16.png'" in screen.file.getvalue()
    assert json.loads((run.path / "run.json").read_text())["data"] == spec


PROGRAM = """
import sys, time
from vitlab.data.dedup import hash_files
import vitlab
hash_files.PER_FILE = 4
write = hash_files.HashFolder.write
def slow(self, number, found, source):
    write(self, number, found, source)
    sys.stdout.write("written\\n"); sys.stdout.flush()
    time.sleep(0.3)
hash_files.HashFolder.write = slow
vitlab.dedup(*sys.argv[1:4], quiet=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_call_continues_and_repeats_nothing(sets, tmp_path, monkeypatch, how, code):
    command = [sys.executable, "-c", PROGRAM, *sets, str(tmp_path / "out")]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for _ in range(3):
        child.stdout.readline()
    child.send_signal(how)
    child.communicate()
    assert child.returncode in (code, 1)  # a Python program raises Stopped, which is a KeyboardInterrupt
    there = {
        file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*.npz") if not file.name.startswith(".")
    }
    assert 3 <= len(there) < 8
    assert not (tmp_path / "out" / "dedup.json").exists()
    monkeypatch.setattr("vitlab.data.dedup.hash_files.PER_FILE", 4)
    assert found_in(vitlab.dedup(*sets, tmp_path / "out", quiet=True)) == EXPECTED
    assert {file: file.stat().st_mtime_ns for file in there} == there


class Edited(torch.utils.data.Dataset):
    """Every edit of every photograph, made when it is asked for."""

    def __init__(self, files):
        self.photos = [read_image(file).image for file in files]

    def __len__(self):
        return len(EDITS) * len(self.photos)

    def __getitem__(self, index):
        return CHANGES[index // len(self.photos)](self.photos[index % len(self.photos)]), 0


@pytest.mark.slow
def test_99_of_100_edited_photographs_are_found(reference, tmp_path):
    files = sorted((reference / "imagenet_val_200").glob("*.JPEG"))
    edited, test = Edited(files), f"pictures:{reference / 'imagenet_val_200'}"
    found = vitlab.dedup(edited, test, tmp_path / "out", quiet=True).removed
    right = [pair for pair in found if pair.test == files[pair.train_number % len(files)].name]
    counts = Counter(pair.train_number // len(files) for pair in right)
    recall = {name: counts[place] / len(files) for place, name in enumerate(EDITS)}
    assert len(files) == 200
    assert min(recall.values()) >= 0.99, recall
    assert len(found) == len(right)  # and no other photograph


def test_settings_of_a_model_are_refused_without_one(sets, tmp_path):
    for given in ({"min_similarity": 0.5}, {"device": "cuda"}):
        with pytest.raises(ValueError, match=f"{next(iter(given))}= is for the features of a model; give model="):
            vitlab.dedup(*sets, tmp_path / "out", quiet=True, **given)


def test_no_flag_is_printed_if_no_training_images_remain(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        write(tmp_path / "train" / "a" / f"{number}.png", picture(number))
        write(tmp_path / "test" / "a" / f"t{number}.png", picture(number))
    assert main(["data", "dedup", "folder:train", "folder:test"]) in (0, None)
    said = capsys.readouterr().out
    assert "every readable training image is a near-duplicate" in said
    assert "train without them" not in said
