"""Any torch Dataset of (picture, label) is data: pictures get a recipe's transforms, float tensors are left alone."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset, random_split

import vitlab
from vitlab.data import contents
from vitlab.data.fingerprint import fingerprint
from vitlab.data.images.refusals import BadImage
from vitlab.data.loading.batches import evaluation_batches, order_of, training_batches
from vitlab.data.sources.catalogue import open_source
from vitlab.data.sources.torch_dataset import DatasetSource
from vitlab.data.splits import development_split
from vitlab.data.transforms.corruption import Corruption
from vitlab.data.transforms.evaluation import as_model_input
from vitlab.errors import TooManyBadImages
from vitlab.spec.pixels import Augmentation, Preprocessing


def noise(number, height=20, width=24):
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)


class Items(Dataset):
    """`made(number)` for every item; an exception is raised."""

    def __init__(self, made, length=12, **attributes):
        self.made, self.length, self.reads = made, length, 0
        vars(self).update(attributes)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.reads += 1
        item = self.made(index)
        if isinstance(item, Exception):
            raise item
        return item


FORMS = {
    "PIL": lambda i: Image.fromarray(noise(i)),
    "array": noise,
    "uint8 tensor": lambda i: torch.from_numpy(noise(i)).permute(2, 0, 1),
}


@pytest.mark.parametrize("form", FORMS)
def test_pictures_of_every_form_are_the_same_samples(form):
    source = vitlab.open_data(Items(lambda i: (FORMS[form](i), i % 3)))
    assert (len(source), source.class_names, source.spec) == (12, ("0", "1", "2"), "dataset:Items")
    sample = source.item(7)
    assert (sample.labels, sample.id) == ((1,), "7")
    assert np.array_equal(sample.data, noise(7))
    picture, label = source[7]
    assert np.array_equal(np.asarray(picture), noise(7))
    assert label == 1
    (batch,) = evaluation_batches(source, batch=12, size=(16, 16), preprocessing=Preprocessing())
    assert (batch.pixels.dtype, batch.pixels.shape) == (torch.uint8, (12, 3, 16, 16))


def test_a_picture_is_turned_upright_and_made_rgb():
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = Image.new("RGB", (8, 4))
    turned.info["exif"] = exif.tobytes()
    source = vitlab.open_data([(turned, 0), (Image.new("L", (5, 6), 9), 1)])
    assert source[0][0].size == (4, 8)
    assert source.item(1).data.shape == (6, 5, 3)


def prepared(number):
    return torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(number))


def test_float_tensors_reach_the_model_as_they_are():
    source = vitlab.open_data(Items(lambda i: (prepared(i), i % 2)))
    assert source.is_prepared
    train, held_out = development_split(source, 0.25)
    for part in (train, held_out):
        assert part.is_prepared
    (batch,) = evaluation_batches(source, batch=12, size=(16, 16), preprocessing=Preprocessing())
    model_input = as_model_input(source, Preprocessing(mean=(0.1, 0.2, 0.3)))(batch.pixels)
    assert torch.equal(model_input, torch.stack([prepared(i) for i in range(12)]))
    batches = training_batches(
        source, order_of(source), batch=4, size=(16, 16), augmentation=Augmentation(), stop=3, workers=2
    )
    for batch in batches:
        assert torch.equal(batch.pixels, torch.stack([prepared(i) for i in batch.numbers]))
    assert torch.equal(source[5][0], prepared(5))


def test_pictures_are_normalised():
    source = vitlab.open_data(Items(lambda i: (noise(i), 0)))
    pixels = torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)
    assert torch.equal(as_model_input(source, Preprocessing())(pixels), torch.ones(1, 3, 2, 2))


def test_float_tensors_of_another_size_are_refused_with_both_sizes():
    source = vitlab.open_data(Items(lambda i: (prepared(i), 0)))
    with pytest.raises(ValueError, match="sample '0' is a float tensor of 16x16, and the model takes 32x32"):
        list(evaluation_batches(source, batch=4, size=(32, 32), preprocessing=Preprocessing()))


def test_too_many_bad_items_say_what_is_wrong_with_them():
    def item(number):
        if number == 3:
            raise OSError("the disk is gone")
        return (torch.full((3, 8, 8), torch.nan) if number == 4 else torch.zeros(3, 8, 8)), 0

    source = vitlab.open_data(Items(item))
    found = "'3' cannot be read: the dataset raised OSError: the disk is gone, '4' has NaN or infinite values"
    with pytest.raises(TooManyBadImages, match=f"2 bad images, none is allowed: {found}"):
        list(evaluation_batches(source, batch=8, size=(8, 8), preprocessing=Preprocessing()))


def test_float_tensors_cannot_be_masked():
    source = vitlab.open_data(Items(lambda i: (prepared(i), 0)))
    plan = Corruption(patches=16, chosen=8, masked=0.8, swapped=0.1)
    with pytest.raises(ValueError, match="needs pictures, not float tensors"):
        evaluation_batches(source, batch=4, size=(16, 16), preprocessing=Preprocessing(), corruption=plan)


# -- Labels and classes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "label", [lambda i: i % 3, lambda i: np.int64(i % 3), lambda i: torch.tensor(i % 3), lambda i: np.array(i % 3)]
)
def test_a_label_is_a_class_number(label):
    source = vitlab.open_data(Items(lambda i: (noise(i), label(i))))
    assert [source.label(i) for i in range(4)] == [(0,), (1,), (2,), (0,)]
    assert not source.is_multi_label


@pytest.mark.parametrize(
    "label",
    [
        lambda own: own,
        lambda own: torch.tensor([float(k in own) for k in range(4)]),
        lambda own: np.array([int(k in own) for k in range(4)]),
    ],
)
def test_a_label_may_be_several_class_numbers_or_a_place_for_each(label):
    labels = [[0, 2], [], [3], [1, 2, 3]]
    source = vitlab.open_data(Items(lambda i: (noise(i), label(labels[i])), length=4))
    assert [source.label(i) for i in range(4)] == [(0, 2), (), (3,), (1, 2, 3)]
    assert (source.class_names, source.first_not_single, source.is_multi_label) == (tuple("0123"), 0, True)
    assert source[0][1].tolist() == [1, 0, 1, 0]


def test_data_without_labels_has_no_classes():
    source = vitlab.open_data(Items(lambda i: (noise(i), None)))
    assert (source.class_names, source.label(0), source.first_not_single) == ((), (), None)


def test_torchvisions_attributes_name_the_classes_and_save_reading_the_items():
    data = Items(lambda i: (noise(i), i % 2), classes=["ape", "bee", "cat"], targets=torch.arange(12) % 2)
    source = vitlab.open_data(data)
    assert (source.class_names, source.label(3)) == (("ape", "bee", "cat"), (1,))
    assert data.reads == 1  # to see whether items are pictures or tensors
    assert source.item(3).labels == (1,)
    part = vitlab.open_data(Subset(data, [1, 3, 4]))
    assert (part.class_names, [part.label(i) for i in range(3)]) == (source.class_names, [(1,), (1,), (0,)])


def test_a_random_split_of_a_source_keeps_its_class_names():
    source = vitlab.open_data("shapes?classes=3&images=12&size=16")
    part, _ = random_split(source, [9, 3], torch.Generator().manual_seed(0))
    opened = vitlab.open_data(part)
    assert opened.class_names == source.class_names
    assert [opened.label(i) for i in range(9)] == [source.label(i) for i in part.indices]


@pytest.mark.parametrize(
    ("item", "attributes", "message"),
    [
        (lambda i: noise(i), {}, r"item 0 of Items is ndarray; it must be a pair \(picture, label\)"),
        (lambda i: (noise(i), 0, 1), {}, "item 0 of Items is tuple of length 3"),
        (
            lambda i: (noise(i), i / 2 if i == 5 else 0),
            {},
            "item 5 of Items has the label 2.5; a label is an int",
        ),
        (lambda i: (noise(i), "ape"), {}, "item 0 of Items has the label 'ape'"),
        (lambda i: (noise(i), -i), {}, "item 1 of Items has the label -1; class numbers go from 0"),
        (
            lambda i: (noise(i), i),
            {"classes": ["ape", "bee", "cat"]},
            "item 3 .* 3; class numbers go from 0 to 2",
        ),
        (lambda i: (noise(i), np.eye(3 + i)[0]), {}, "item 1 of Items has a label for 4 classes, earlier items for 3"),
        (lambda i: (noise(i), np.array([0, 2])), {}, "must hold a 0 or 1 for each of the 2 classes"),
    ],
)
def test_a_wrong_item_is_named(item, attributes, message):
    with pytest.raises(ValueError, match=message):
        vitlab.open_data(Items(item, **attributes))


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        ("photo.jpg", "item 4 of Items has str for a picture; return a PIL image"),
        (np.zeros((4, 4)), r"item 4 of Items: a picture as array is \(H, W, 3\) of uint8, not \(4, 4\) of float64"),
        (torch.zeros(3, 4, 5, dtype=torch.int32), r"item 4 of Items: a picture as tensor is \(3, H, W\) of uint8"),
        (torch.zeros(1, 4, 5), r"item 4 of Items is a float tensor of shape \(1, 4, 5\); it must be \(3, H, W\)"),
        (torch.zeros(3, 4, 5), "item 4 of Items is Tensor, the first item is not; return pictures"),
    ],
)
def test_a_wrong_picture_is_named_when_it_is_read(picture, message):
    source = vitlab.open_data(Items(lambda i: (picture if i == 4 else noise(i), 0)))
    with pytest.raises(ValueError, match=message):
        source.item(4)


def test_labels_that_are_not_those_of_targets_are_refused():
    source = vitlab.open_data(Items(lambda i: (noise(i), i % 2), targets=[i % 3 for i in range(12)]))
    with pytest.raises(ValueError, match=r"item 2 of Items has labels \(0,\), and had \(2,\) when"):
        source.item(2)


def test_an_item_that_raises_is_a_bad_image_that_is_counted_and_named():
    def item(i):
        if i == 3:
            return OSError("the disk is gone")
        return (prepared(i) * torch.nan if i == 5 else prepared(i)), i % 2

    source = vitlab.open_data(Items(item))
    assert (source.label(3), source.is_multi_label) == ((), False)
    with pytest.raises(BadImage, match="'3' cannot be read: the dataset raised OSError: the disk is gone"):
        source.item(3)
    (batch,) = evaluation_batches(source, batch=12, size=(16, 16), preprocessing=Preprocessing(), max_bad=0.5)
    assert len(batch.pixels) == 10
    assert [(sample.id, sample.reason) for _, sample in batch.bad] == [("3", "unreadable"), ("5", "corrupt")]


def test_a_dataset_of_which_no_item_can_be_read_is_refused():
    with pytest.raises(ValueError, match=r"no item can be read: .*KeyError"):
        vitlab.open_data(Items(lambda i: KeyError("x")))


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize("data", [Endless(), 3, {"a": 1}, np.zeros(3), torch.zeros(3)])
def test_what_has_no_numbered_items_is_refused_with_words(data):
    with pytest.raises(ValueError, match="items cannot be read by number; give a string such as 'folder:photos' or a"):
        vitlab.open_data(data)


def test_an_empty_dataset_is_refused():
    with pytest.raises(ValueError, match="is empty"):
        vitlab.open_data([])


# -- Recognising it again --------------------------------------------------------------------------


def recorded(source):
    return contents.take(source, fingerprint(source))


def compared(before, source):
    return contents.compare(before, source, fingerprint(source))


def test_an_equal_dataset_is_recognised_and_a_changed_one_is_not():
    before = recorded(vitlab.open_data(Items(lambda i: (noise(i), i % 2))))
    assert compared(before, vitlab.open_data(Items(lambda i: (noise(i), i % 2)))).is_same
    found = compared(before, vitlab.open_data(Items(lambda i: (noise(i + (i == 7)), i % 2))))
    assert (found.changed, found.hint) == ((7,), "")
    assert compared(before, vitlab.open_data(Items(lambda i: (noise(i), i % 3 % 2)))).has_other_samples
    assert compared(before, vitlab.open_data(Items(lambda i: (noise(i), i % 2), length=13))).has_other_samples


def test_of_a_large_dataset_a_thousand_evenly_spaced_items_are_hashed_and_named_by_their_number():
    pictures, labels = torch.zeros(5000, 3, 2, 2), torch.zeros(5000, dtype=torch.long)
    before = recorded(DatasetSource(TensorDataset(pictures, labels)))
    assert len(before.files) == 1000
    pictures[4995] += 1
    assert compared(before, DatasetSource(TensorDataset(pictures, labels))).changed == (4995,)


def test_a_dataset_that_augments_at_random_is_told_that_this_is_why():
    rng = np.random.default_rng()
    before = recorded(vitlab.open_data(Items(lambda i: (noise(rng.integers(10**9)), 0))))
    found = compared(before, vitlab.open_data(Items(lambda i: (noise(rng.integers(10**9)), 0))))
    assert not found.is_same
    assert "returns something else each time an item is read" in found.hint


def test_its_name_alone_does_not_open_it():
    with pytest.raises(ValueError, match=r"Python object .* vitlab.open_run\(PATH\).resume\(data=...\)"):
        open_source("dataset:Items")
