"""Every task from miniature archives: ids, labels and pixels against the truth, in an order computed here."""

import hashlib
import io
import pickle

import numpy as np
import pytest
from PIL import Image

import vtab_miniatures
from vitlab.data.source import decode
from vitlab.data.splits import tfds_order
from vitlab.data.vtab.opening import open_task
from vitlab.data.vtab.readers import dsprites
from vitlab.paper.vtab import TASKS

CASES = [(key, form) for key, (_, forms, _, _) in vtab_miniatures.SETS.items() for form in forms]


def in_order(keys, split):
    """The order rule, written as a 128-bit number of the MD5 of the split's name and the key."""
    return sorted(keys, key=lambda key: int(hashlib.md5(split.encode() + key.encode()).hexdigest(), 16))


def test_every_task_has_a_miniature():
    assert list(vtab_miniatures.SETS) == [task.key for task in TASKS]


@pytest.mark.parametrize(("key", "form"), CASES)
def test_labels_and_images_are_those_of_the_archive_in_the_order_of_tfds(tmp_path, key, form):
    write, _, classes, rule = vtab_miniatures.SETS[key]
    truth = write(tmp_path, form)
    task = truth.task(key, classes)
    for split in ("train800", "val200", "train800val200", "test"):
        source = open_task(tmp_path, task, split)
        slices = {"train800": [task.train], "val200": [task.validation], "test": [task.test]}
        expected = [
            (part.split, name)
            for part in slices.get(split, [task.train, task.validation])
            for name in in_order(truth.splits[part.split], part.split)[part.start : part.stop]
        ]
        assert [source.id(n) for n in range(len(source))] == [f"{part}/{name}" for part, name in expected]
        assert len(source.class_names) == classes
        for number, (part, name) in enumerate(expected):
            facts, image = truth.splits[part][name]
            assert source.label(number) == (rule(facts),), (name, facts)
            data = source.item(number).data
            if key == "diabetic_retinopathy":
                assert Image.open(io.BytesIO(data)).size == (540, 540)
                continue
            if key == "sun397" and Image.open(io.BytesIO(image)).size == (500, 400):
                reduced = Image.open(io.BytesIO(data))
                assert reduced.size == (387, 310)  # the largest with at most 120,000 pixels
                assert reduced.getpixel((5, 5)) == pytest.approx(Image.open(io.BytesIO(image)).getpixel((5, 5)), abs=2)
                continue
            if isinstance(image, bytes):
                assert data == image
            else:
                assert np.array_equal(data, image)
            assert decode(source.item(number)).image.mode == "RGB"
        other = pickle.loads(pickle.dumps(source))  # noqa: S301  our own bytes
        assert np.array_equal(np.asarray(decode(other.item(0)).image), np.asarray(decode(source.item(0)).image))
        assert source.paths()
        assert source.stamp(0)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.key)
def test_slices_of_the_originals_have_the_sizes_of_the_paper(task):
    """With running numbers as keys, whose order does not matter for sizes and offsets."""
    taken = []
    for split in ("train800", "val200", "test"):
        for part in task.slices(split):
            order = tfds_order(map(str, range(task.sizes[part.split])), part.split)
            chosen = order[part.start : part.stop]
            assert len(chosen) == {"train800": 800, "val200": 200}.get(split, task.test.images)
            taken += [(part.split, number) for number in chosen]
    assert len(set(taken)) == len(taken)


def test_the_order_of_cifar_is_the_published_one():
    assert tfds_order(map(str, range(50_000)), "train")[:5] == [16399, 1680, 47917, 17307, 27051]


def test_most_parts_of_a_file_of_sprites_may_have_no_chosen_image(tmp_path, monkeypatch):
    monkeypatch.setattr(dsprites, "ROWS", 2)
    for form in ("npz", "hdf5"):
        (tmp_path / form).mkdir()
        made = vtab_miniatures.dsprites(tmp_path / form, form)
        task = made.task("dsprites_location", 16)
        pixels = [decode(open_task(tmp_path / form, task, "val200").item(n)).image.tobytes() for n in range(2)]
        monkeypatch.setattr(dsprites, "ROWS", 10**6)
        whole = open_task(tmp_path / form, task, "val200")
        assert pixels == [decode(whole.item(n)).image.tobytes() for n in range(2)]
        monkeypatch.setattr(dsprites, "ROWS", 2)
