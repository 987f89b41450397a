"""Tasks as folders of images with lists, as others publish them."""

import json
from dataclasses import replace

import pytest

import vitlab
from vitlab.data.vtab.opening import open_task, origin
from vitlab.paper.vtab import TASKS, Slice
from vtab_miniatures import encoded


@pytest.fixture
def task():
    given = next(task for task in TASKS if task.key == "clevr_distance")
    parts = {"train": Slice("train", 0, 8), "validation": Slice("train", 10, 12), "test": Slice("validation", 0, 5)}
    return replace(given, available=20, classes=6, **parts)


def lists():
    names = [f"images/part {n % 2}/{n:03d}.png" for n in range(15)]
    return {
        "train800": names[:8],
        "val200": names[8:10],
        "train800val200": names[:10],
        "test": names[10:],
    }


@pytest.mark.parametrize("form", ["txt", "json"])
@pytest.mark.parametrize("folder", ["clevr_distance", "clevr_dist"])
def test_lists_give_names_labels_and_order(tmp_path, task, form, folder):
    for split, names in lists().items():
        labels = {name: int(name[-7:-4]) % 6 for name in names}
        for name in names:
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_bytes(encoded(int(name[-7:-4]), "PNG"))
        text = json.dumps(labels) if form == "json" else "".join(f"{name} {label}\n" for name, label in labels.items())
        (tmp_path / folder / f"{split}.{form}").write_text(text)
    assert origin(tmp_path, task) == "lists"
    for split, names in lists().items():
        source = open_task(tmp_path, task, split)
        assert [source.id(n) for n in range(len(source))] == names
        assert [source.label(n) for n in range(len(source))] == [(int(name[-7:-4]) % 6,) for name in names]
        assert source.item(0).data == encoded(int(names[0][-7:-4]), "PNG")
        assert source.class_names == tuple("012345")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["a.png 1"], "lists 1 images, not 5"),
        ([f"{n}.png 6" for n in range(5)], "labels outside 0 to 5"),
        (["a.png 1"] * 5, "lists an image twice"),
        ([f"{n}.png 1" for n in range(5)], "5 images of clevr_distance/test.txt are missing"),
        (["no label"] * 5, "is not `NAME LABEL`"),
    ],
)
def test_wrong_lists_are_errors_of_one_line(tmp_path, task, lines, said):
    (tmp_path / "clevr_distance").mkdir()
    (tmp_path / "clevr_distance" / "train800val200.txt").touch()
    (tmp_path / "clevr_distance" / "test.txt").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=said):
        open_task(tmp_path, task, "test")


def test_images_outside_the_folder_are_not_read(tmp_path, task):
    (tmp_path / "secret.png").write_bytes(encoded(1, "PNG"))
    (tmp_path / "clevr_distance").mkdir()
    (tmp_path / "clevr_distance" / "train800val200.txt").touch()
    lines = [f"{'./' * n}../secret.png 1\n" for n in range(5)]
    (tmp_path / "clevr_distance" / "test.txt").write_text("".join(lines))
    with pytest.raises(ValueError, match="outside the data folder"):
        open_task(tmp_path, task, "test").item(0)


class TestSpec:
    def test_needs_a_task(self, tmp_path):
        with pytest.raises(ValueError, match="vtab needs a task"):
            vitlab.open_data(f"vtab:{tmp_path}")

    def test_names_what_is_missing(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"dsprites.*npz or .*hdf5 is missing"):
            vitlab.open_data(f"vtab:{tmp_path}?task=dspr-loc&split=test")

    def test_refuses_unknown_splits(self, tmp_path):
        with pytest.raises(ValueError, match="split 'train'; known are train800, val200, train800val200, test"):
            vitlab.open_data(f"vtab:{tmp_path}?task=dspr-loc&split=train")
