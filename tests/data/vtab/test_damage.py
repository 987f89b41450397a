"""Missing, partial and damaged archives: an error of one line that says what is wrong and names the file."""

import random
import shutil

import h5py
import numpy as np
import pytest

import vtab_miniatures
from vitlab.data.images.refusals import BadImage
from vitlab.data.source import decode
from vitlab.data.vtab.opening import open_task
from vitlab.data.vtab.places import Missing
from vitlab.paper.vtab import TASKS
from vtab_miniatures import SETS


def problem(root, task):
    """What is wrong when everything is read that a run would read: the error, or the first bad image; empty if fine."""
    found = ""
    try:
        for split in ("train800val200", "test"):
            source = open_task(root, task, split)
            for number in range(len(source)):
                try:
                    decode(source.item(number))
                except BadImage as bad:
                    found = found or str(bad)
    except (ValueError, Missing) as error:
        return str(error)
    return found


def is_one_line(said):
    return "\n" not in said and 20 < len(said) < 500


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.key)
def test_an_empty_folder_lacks_every_task(tmp_path, task):
    with pytest.raises(Missing, match="is missing; put it into") as caught:
        open_task(tmp_path, task, "test")
    assert is_one_line(str(caught.value))


@pytest.mark.parametrize("key", SETS)
def test_every_file_is_needed_and_named(tmp_path, key):
    write, forms, classes, _ = SETS[key]
    whole = tmp_path / "whole"
    whole.mkdir()
    truth = write(whole, forms[0])
    task = truth.task(key, classes)
    assert not problem(whole, task)
    files = [file for file in whole.rglob("*") if file.is_file() and "-cat.mat" not in file.name]
    for file in files if len(files) < 12 else random.Random(0).sample(files, 6):
        hidden = file.rename(file.with_name(".hidden"))
        said = problem(whole, task)
        assert is_one_line(said), (file.name, said)
        hidden.rename(file)


@pytest.mark.parametrize("key", SETS)
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_cut_file_is_an_error_of_one_line(tmp_path, key, keep):
    write, forms, classes, _ = SETS[key]
    packed = next(form for form in forms if form != "folder")  # in which the largest file is needed for sure
    task = write(tmp_path, packed).task(key, classes)
    largest = max((file for file in tmp_path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: int(keep * largest.stat().st_size)])
    said = problem(tmp_path, task)
    assert is_one_line(said), (largest.name, said)


@pytest.mark.parametrize(
    "key", ["svhn", "patch_camelyon", "dmlab", "dsprites_location", "smallnorb_azimuth", "clevr_count"]
)
def test_flipped_bytes_are_errors_or_change_nothing_but_pixels(tmp_path, key):
    write, forms, classes, _ = SETS[key]
    task = write(tmp_path, forms[0]).task(key, classes)
    files = sorted(file for file in tmp_path.rglob("*") if file.is_file())
    draw = random.Random(0)
    for _ in range(25):
        file = draw.choice(files)
        before = file.read_bytes()
        damaged = bytearray(before)
        for _ in range(8):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        file.write_bytes(damaged)
        said = problem(tmp_path, task)
        assert not said or is_one_line(said), said
        file.write_bytes(before)
    assert not problem(tmp_path, task)


def test_a_set_with_fewer_images_than_published_is_incomplete(tmp_path):
    vtab_miniatures.eurosat(tmp_path)
    task = next(task for task in TASKS if task.key == "eurosat")
    with pytest.raises(ValueError, match="has 80 images in the split train, not 27,000; download it again"):
        open_task(tmp_path, task, "test")


def test_rar_is_named_as_such(tmp_path):
    (tmp_path / "NWPU-RESISC45.rar").write_bytes(b"Rar!")
    task = next(task for task in TASKS if task.key == "resisc45")
    with pytest.raises(ValueError, match="must be unpacked"):
        open_task(tmp_path, task, "test")


class TestHdf5:
    """Files that would make h5py read something else."""

    def camelyon(self, root):
        truth = vtab_miniatures.patch_camelyon(root, "h5")
        return truth.task("patch_camelyon", 2), root / "camelyonpatch_level_2_split_train_x.h5"

    def test_pixels_in_another_file_are_refused(self, tmp_path):
        task, file = self.camelyon(tmp_path)
        secret = tmp_path / "secret"
        secret.write_bytes(bytes(30 * 96 * 96 * 3))
        with h5py.File(file, "w") as made:
            made.create_dataset("x", (30, 96, 96, 3), np.uint8, external=[(str(secret), 0, 30 * 96 * 96 * 3)])
        with pytest.raises(ValueError, match="in other files"):
            open_task(tmp_path, task, "train800")

    def test_links_to_other_files_are_refused(self, tmp_path):
        task, file = self.camelyon(tmp_path)
        other = shutil.copy(file, tmp_path / "other.h5")
        with h5py.File(file, "w") as made:
            made["x"] = h5py.ExternalLink(other, "x")
        with pytest.raises(ValueError, match="has no array of whole numbers 'x'"):
            open_task(tmp_path, task, "train800")

    def test_virtual_arrays_are_refused(self, tmp_path):
        task, file = self.camelyon(tmp_path)
        other = shutil.copy(file, tmp_path / "other.h5")
        layout = h5py.VirtualLayout((30, 96, 96, 3), np.uint8)
        layout[:] = h5py.VirtualSource(other, "x", (30, 96, 96, 3))
        with h5py.File(file, "w") as made:
            made.create_virtual_dataset("x", layout)
        with pytest.raises(ValueError, match="in other files"):
            open_task(tmp_path, task, "train800")
