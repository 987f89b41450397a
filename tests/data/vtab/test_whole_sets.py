"""Pets and Flowers whole, from the same readers as VTAB's tasks."""

from dataclasses import replace

import pytest

import vitlab
import vtab_miniatures
from vitlab.data.vtab import whole_sets
from vitlab.data.vtab.whole_sets import FlowersSource, PetsSource, open_whole
from vitlab.paper.finetuning import IMAGE_SETS
from vitlab.paper.vtab import TASKS


@pytest.fixture
def small(monkeypatch):
    """Let the sources expect the counts of a miniature."""

    def expect(truth, key, classes):
        monkeypatch.setattr(whole_sets, "vtab_task", lambda _: truth.task(key, classes))

    return expect


@pytest.mark.parametrize("form", ["tar.gz", "folder"])
def test_pets_are_all_images_of_a_list_in_its_order(tmp_path, small, form):
    truth = vtab_miniatures.oxford_iiit_pet(tmp_path, form)
    small(truth, "oxford_iiit_pet", 3)
    for split in ("train", "test"):
        source = PetsSource(tmp_path / "oxford_iiit_pet", split)
        assert [source.id(n) for n in range(len(source))] == list(truth.splits[split])
        assert [source.label(n)[0] + 1 for n in range(len(source))] == [
            facts for facts, _ in truth.splits[split].values()
        ]
        assert source.item(3).data == list(truth.splits[split].values())[3][1]
        assert source.class_names == ("Abyssinian", "american_bulldog", "Bengal")


def test_flowers_may_include_the_validation_images(tmp_path, small):
    truth = vtab_miniatures.oxford_flowers102(tmp_path)
    small(truth, "oxford_flowers102", 3)
    both = FlowersSource(tmp_path, "train+validation")
    expected = [*truth.splits["train"], *truth.splits["validation"]]
    assert [both.id(n) for n in range(len(both))] == expected
    assert both.label(len(both) - 1)[0] + 1 == list(truth.splits["validation"].values())[-1][0]
    assert len(FlowersSource(tmp_path, "test")) == len(truth.splits["test"])


def test_other_splits_and_incomplete_sets_are_errors(tmp_path):
    vtab_miniatures.oxford_iiit_pet(tmp_path)
    with pytest.raises(ValueError, match="split 'val'; known are train and test"):
        vitlab.open_data(f"pets:{tmp_path / 'oxford_iiit_pet'}?split=val")
    with pytest.raises(ValueError, match="has 50 images in the split train, not 3,680"):
        vitlab.open_data(f"pets:{tmp_path / 'oxford_iiit_pet'}")
    with pytest.raises(FileNotFoundError, match=r"102flowers\.tgz .*is missing"):
        vitlab.open_data(f"flowers:{tmp_path}")


def test_sizes_are_those_of_the_transfer_sets():
    sizes = {task.key: task.sizes for task in TASKS}
    pets, flowers = IMAGE_SETS["Oxford-IIIT Pets"], IMAGE_SETS["Oxford Flowers-102"]
    assert (sizes["oxford_iiit_pet"]["train"], sizes["oxford_iiit_pet"]["test"]) == (pets.train, pets.test)
    assert (sizes["oxford_flowers102"]["train"], sizes["oxford_flowers102"]["test"]) == (flowers.train, flowers.test)


def test_a_missing_image_is_an_error_before_training_begins(tmp_path):
    truth = vtab_miniatures.oxford_iiit_pet(tmp_path, "folder")
    task = replace(truth.task("oxford_iiit_pet", 3))
    (tmp_path / "oxford_iiit_pet" / "images" / "Bengal_2.jpg").unlink()
    with pytest.raises(ValueError, match=r"lacks 1 of 50 images, such as \['Bengal_2\.jpg'\]"):
        open_whole(tmp_path / "oxford_iiit_pet", task, ("train",))
