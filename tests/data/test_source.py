"""Every source is a torch Dataset: it works in somebody's own loop."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, random_split

import kinds
import vitlab
from vitlab.data.class_names import renumbered
from vitlab.data.sources.catalogue import KINDS, open_source, with_max_pixels
from vitlab.data.sources.shards import index_folder
from vitlab.data.splits import nested_subset

DRAWN = ("fractals?images=12&classes=3&size=32", "shapes?images=12&classes=3&size=32")
BUILT_IN = (*DRAWN, "letters?images=12&classes=3&size=32", "digits?split=test&shots=2")


def small(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(picture.resize((8, 8)))).permute(2, 0, 1).float() / 255


def check_in_a_loop(source, workers=0):
    loader = DataLoader(source, batch_size=4, shuffle=True, num_workers=workers)
    seen = 0
    for pictures, labels in loader:
        assert pictures.shape[1:] == (3, 8, 8)
        assert labels.shape == ((len(pictures), len(source.class_names)) if source.is_multi_label else (len(pictures),))
        seen += len(pictures)
    assert seen == len(source)


def made(kind, folder):
    spec, _ = kind(folder)
    if kind is kinds.shards:
        index_folder(folder)
    return spec


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_every_kind_of_files_is_a_torch_dataset(kind, tmp_path):
    spec = made(kind, tmp_path)
    source = vitlab.open_data(spec, transform=small)
    assert isinstance(source, Dataset)
    assert source.spec == spec
    picture, label = open_source(spec)[0]
    assert (picture.mode, label) == ("RGB", source.label(0)[0])
    check_in_a_loop(source)
    check_in_a_loop(pickle.loads(pickle.dumps(source)))  # noqa: S301


@pytest.mark.parametrize("spec", BUILT_IN)
def test_every_built_in_kind_is_a_torch_dataset(spec):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    source = vitlab.open_data(spec, transform=small)
    assert source.spec == spec
    check_in_a_loop(source)
    assert repr(spec) in repr(source)


def test_every_kind_stands_in_one_of_these_tests(tmp_path):
    here = {spec.partition("?")[0] for spec in BUILT_IN} | {"pictures", "cifar100"}  # the last is read as cifar10 is
    here |= {"hf"}  # needs a server: tests/data/remote
    here |= {"pets", "flowers"}  # they need thousands of images: tests/data/vtab/test_whole_sets.py
    for kind in kinds.KINDS:
        here.add(kind(tmp_path)[0].partition(":")[0])
    assert here == set(KINDS)


@pytest.fixture
def photos(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(6):
            Image.new("RGB", (10 + number, 12), (number, 0, 0)).save(tmp_path / name / f"{number}.png")
    return tmp_path


def test_a_source_works_with_a_transform_and_workers(photos):
    check_in_a_loop(vitlab.open_data(f"folder:{photos}", transform=small), workers=2)


def test_parts_of_a_source_keep_its_transform(photos):
    source = vitlab.open_data(f"folder:{photos}", transform=small)
    check_in_a_loop(nested_subset(source, 5))
    check_in_a_loop(renumbered(source, ("ape", "cat", "dog")))
    train, _ = random_split(source, [8, 4], torch.Generator().manual_seed(0))
    assert len(DataLoader(train, batch_size=4)) == 2


def test_a_source_is_returned_as_it_is_and_a_transform_makes_a_copy(photos):
    source = vitlab.open_data(f"folder:{photos}")
    assert vitlab.open_data(source) is source
    other = vitlab.open_data(source, transform=small)
    assert (source.transform, other.transform) == (None, small)
    assert other.spec == source.spec


def test_negative_numbers_count_from_the_end_as_in_a_list(photos):
    source = vitlab.open_data(f"folder:{photos}")
    assert source[-1][1] == source[11][1] == 1
    assert source[-12][0].size == source[0][0].size
    for number in (12, -13):
        with pytest.raises(IndexError):
            source[number]


def test_a_source_shows_in_a_notebook(photos):
    shown = vitlab.open_data(f"folder:{photos}")._repr_html_()
    assert all(text in shown for text in (f"folder:{photos}", "12", "2: cat, dog", "one per sample"))
    assert "any number per sample" in vitlab.open_data(f"pictures:{photos}")._repr_html_()


def test_a_label_is_a_number_and_of_a_multi_label_set_a_zero_or_one_for_each_class(photos):
    assert vitlab.open_data(f"folder:{photos}")[7][1] == 1
    assert vitlab.open_data(f"pictures:{photos}")[7][1].shape == (0,)
    (photos / "many.csv").write_text("path,label\ncat/0.png,furry;small\ndog/1.png,\n")
    many = vitlab.open_data(f"csv:{photos}/many.csv?separator=;")
    assert [many[i][1].tolist() for i in range(2)] == [[1, 1], [0, 0]]
    assert nested_subset(many, 2)[0][1].shape == (2,)


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_the_settings_of_a_source_reach_the_workers(kind, tmp_path):
    spec = made(kind, tmp_path)
    limit = 7 if KINDS[spec.partition(":")[0]].is_encoded else None
    spec = with_max_pixels(spec, limit)
    sent = pickle.loads(pickle.dumps(vitlab.open_data(spec, transform=small)))  # noqa: S301
    assert (sent.spec, sent.transform, sent.max_pixels) == (spec, small, limit)


def test_a_bad_image_is_an_error_that_names_it(photos):
    (photos / "cat" / "0.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"cat/0\.png.*starts with"):
        vitlab.open_data(f"folder:{photos}")[0]
