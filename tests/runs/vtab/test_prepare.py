"""Packs hold what the original files hold; a killed or stopped packing continues and repeats nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import vitlab
import vtab_miniatures
from vitlab.data.source import decode
from vitlab.data.vtab import packs
from vitlab.data.vtab.opening import open_task, origin
from vitlab.data.vtab.originals import open_original
from vitlab.files.store import LOCK, Locked, locked
from vitlab.runs.vtab.prepare import image_sets
from vitlab.runs.vtab.tasks import chosen_tasks
from vtab_miniatures import SETS, written

SPLITS = ("train800", "val200", "train800val200", "test")


def content(source):
    """(id, label, pixels) of every sample."""
    return [
        (source.id(n), source.label(n), np.asarray(decode(source.item(n)).image).tobytes()) for n in range(len(source))
    ]


@pytest.mark.parametrize("key", SETS)
def test_a_pack_holds_the_same_samples_as_the_original_files(tmp_path, key):
    (task,) = written(tmp_path, key)
    before = {split: content(open_original(tmp_path, task, split)) for split in SPLITS}
    done = vitlab.prepare_vtab(tmp_path, [task], quiet=True)
    assert done.problems == ()
    assert origin(tmp_path, task) == "pack"
    for split in SPLITS:
        assert content(open_task(tmp_path, task, split)) == before[split]


def test_tasks_on_the_same_images_share_a_pack(tmp_path):
    tasks = written(tmp_path, "dsprites_location", "dsprites_orientation", "smallnorb_azimuth", "smallnorb_elevation")
    before = [content(open_original(tmp_path, task, "test")) for task in tasks]
    vitlab.prepare_vtab(tmp_path, tasks, quiet=True)
    folders = sorted(path.name for path in (tmp_path / "prepared").iterdir() if path.name != LOCK)
    assert folders == ["dsprites", "smallnorb"]
    assert [content(open_task(tmp_path, task, "test")) for task in tasks] == before


def test_a_pack_serves_all_tasks_on_its_images_whichever_was_asked_for():
    found = image_sets(chosen_tasks(["dspr-ori", "svhn", "smallnorb_azimuth"]))
    assert {key: [task.name for task in tasks] for key, tasks in found.items()} == {
        "svhn": ["SVHN"],
        "dsprites": ["dSpr-Loc", "dSpr-Ori"],
        "smallnorb": ["sNORB-Azim", "sNORB-Elev"],
    }


def test_tasks_with_lists_are_left_as_they_are(tmp_path):
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn" / "train800val200.txt").touch()
    done = vitlab.prepare_vtab(tmp_path, ["svhn"], quiet=True)
    assert (done.problems, [task.key for task in done.listed]) == ((), ["svhn"])
    assert "not packed" in str(done.table.rows[0][-1])
    assert not (tmp_path / "prepared" / "svhn").exists()


def test_a_pack_is_also_a_folder_of_shards(tmp_path):
    (task,) = written(tmp_path, "dsprites_location")
    vitlab.prepare_vtab(tmp_path, [task], quiet=True)
    source = vitlab.open_data(f"shards:{tmp_path / 'prepared' / 'dsprites'}")
    assert len(source) == task.train.images + task.validation.images + task.test.images


@pytest.mark.parametrize("jobs", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_missing_and_damaged_sets_are_reported_and_the_others_are_packed(tmp_path, jobs):
    tasks = written(tmp_path, "svhn", "eurosat", "dtd")
    (tmp_path / "EuroSAT.zip").write_bytes(b"PK")
    (tmp_path / "dtd-r1.0.1.tar.gz").unlink()
    done = vitlab.prepare_vtab(tmp_path, tasks, jobs=jobs, quiet=True)
    assert [line.partition(":")[0] for line in done.problems] == ["dtd", "eurosat"]
    assert all("\n" not in line for line in done.problems)
    assert origin(tmp_path, tasks[0]) == "pack"
    vtab_miniatures.eurosat(tmp_path)  # downloaded again
    done = vitlab.prepare_vtab(tmp_path, tasks, jobs=jobs, quiet=True)
    assert [line.partition(":")[0] for line in done.problems] == ["dtd"]


def test_a_set_that_was_replaced_while_it_was_packed_is_packed_anew(tmp_path):
    (task,) = written(tmp_path, "svhn")
    folder = packs.pack_folder(tmp_path, task)
    folder.mkdir(parents=True)
    (folder / packs.PLAN).write_text('{"plan": "of other images"}')
    (folder / "train800-00000.tar").write_bytes(b"other images")
    vitlab.prepare_vtab(tmp_path, [task], quiet=True)
    assert content(open_task(tmp_path, task, "val200")) == content(open_original(tmp_path, task, "val200"))


def test_other_files_in_the_place_of_a_pack_are_left_alone(tmp_path):
    (task,) = written(tmp_path, "svhn")
    folder = packs.pack_folder(tmp_path, task)
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("words")
    done = vitlab.prepare_vtab(tmp_path, [task], quiet=True)
    assert "contains other files" in done.problems[0]
    assert (folder / "thesis.txt").read_text() == "words"


PROGRAM = """
import sys, time
from pathlib import Path
import vtab_miniatures, vitlab
from vitlab.data.sources import shard_writing
from vitlab.data.vtab import packs
packs.PER_SHARD = 3
add = shard_writing._add
def slowly(tar, source, number):
    time.sleep(0.02)
    add(tar, source, number)
shard_writing._add = slowly
root = Path(sys.argv[1])
write, forms, classes, _ = vtab_miniatures.SETS["svhn"]
scratch = root / "scratch"
scratch.mkdir(exist_ok=True)
task = write(scratch, forms[0]).task("svhn", classes)
vitlab.prepare_vtab(root, [task], quiet=True)
"""


def shards(root):
    folder = root / "prepared" / "svhn"
    return {path.name: path.stat().st_ino for path in folder.glob("*.tar")} if folder.is_dir() else {}


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_packing_continues_and_repeats_nothing(tmp_path, sent):
    (task,) = written(tmp_path, "svhn")
    expected = content(open_original(tmp_path, task, "test"))
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(Path(vtab_miniatures.__file__).parent)])}
    before: dict[str, int] = {}
    for kill in range(4):
        process = subprocess.Popen(
            [sys.executable, str(script), str(tmp_path)], env=environment, stderr=subprocess.PIPE
        )
        deadline = time.monotonic() + 600
        while len(shards(tmp_path)) < len(before) + 2 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(sent)
        process.communicate(timeout=600)
        after = shards(tmp_path)
        assert before.items() <= after.items(), f"kill {kill} lost or rewrote finished shards"
        assert len(after) > len(before)
        assert not (tmp_path / "prepared" / "svhn" / packs.CARD).exists()
        before = after
    assert subprocess.run([sys.executable, str(script), str(tmp_path)], env=environment, check=False).returncode == 0
    assert before.items() <= shards(tmp_path).items()
    assert content(open_task(tmp_path, task, "test")) == expected
    assert not list((tmp_path / "prepared" / "svhn").glob(".*tmp*"))


def test_two_packings_of_one_folder_are_refused(tmp_path):
    (task,) = written(tmp_path, "svhn")
    with locked(tmp_path / "prepared"), pytest.raises(Locked, match="in use"):
        vitlab.prepare_vtab(tmp_path, [task], quiet=True)
