"""npz files written by numpy, and by a hostile hand."""

import io
import multiprocessing
import operator
import pickle
import zipfile

import numpy as np
import pytest

from vitlab.data.sources.arrays import ArraySource

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (5, 4, 3, 3), np.uint8)
GREY = COLOUR[..., 0]
LABELS = np.array([2, 0, 1, 2, 2])


def npy(array: np.ndarray, **options) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def zipped(path, method=zipfile.ZIP_STORED, **members: bytes):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "images", [COLOUR, GREY, np.asfortranarray(COLOUR), COLOUR[..., :1]], ids=["rgb", "grey", "f", "1"]
)
def test_every_image_has_its_pixels_label_and_number(tmp_path, save, images):
    save(tmp_path / "set.npz", images=images, labels=LABELS)
    source = ArraySource(tmp_path / "set.npz")
    assert len(source) == 5
    assert source.class_names == ("0", "1", "2")
    for index in range(5):
        item = source.item(index)
        expected = images[index] if images.ndim == 4 else images[index][..., None]
        assert item.data.shape == (4, 3, 3)
        assert (item.data == expected).all()
        assert (item.labels, item.id) == ((int(LABELS[index]),), str(index))


@pytest.mark.parametrize("names", [("x_test", "y_test"), ("test_images", "test_labels")])  # Keras, MedMNIST
def test_a_split_is_found_by_the_names_in_use(tmp_path, names):
    np.savez(tmp_path / "set.npz", **dict(zip(names, (GREY, LABELS[:, None]), strict=True)), x=COLOUR[:1], y=LABELS[:1])
    assert [ArraySource(tmp_path / "set.npz", "test").label(i) for i in range(5)] == [(2,), (0,), (1,), (2,), (2,)]
    assert len(ArraySource(tmp_path / "set.npz")) == 1


def test_several_labels_per_image_and_names(tmp_path):
    hot = np.array([[1, 0, 1], [0, 0, 0]], np.uint8)
    np.savez(tmp_path / "set.npz", images=GREY[:2], labels=hot, class_names=np.array(["a", "b", "ç"]))
    source = ArraySource(tmp_path / "set.npz")
    assert source.class_names == ("a", "b", "ç")
    assert [source.label(0), source.label(1)] == [(0, 2), ()]


def test_an_image_is_a_copy_that_may_be_written_to(tmp_path):
    np.savez(tmp_path / "set.npz", images=COLOUR, labels=LABELS)
    source = ArraySource(tmp_path / "set.npz")
    source.item(0).data[:] = 0
    assert (source.item(0).data == COLOUR[0]).all()


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (COLOUR.astype(np.float32), LABELS, "images of float32; allowed is uint8"),
        (COLOUR.transpose(0, 3, 2, 1), LABELS, "allowed is"),
        (GREY[:0], LABELS[:0], "allowed is"),
        (GREY[0], LABELS, "allowed is"),
        (GREY, LABELS[:4], "5 images and 4 labels"),
        (GREY, LABELS - 1, r"labels from -1 to 1; .* see image \d$"),
        (GREY, LABELS.astype(float), "labels of float64"),
        (GREY, LABELS + 10**7, "labels from 10000000"),
        (GREY, np.full((5, 2), 2), "not 0 or 1"),
    ],
)
def test_arrays_of_other_kinds_are_refused(tmp_path, images, labels, message):
    np.savez(tmp_path / "set.npz", images=images, labels=labels)
    with pytest.raises(ValueError, match=message):
        ArraySource(tmp_path / "set.npz")


def test_an_archive_without_the_arrays_says_what_it_has(tmp_path):
    np.savez(tmp_path / "set.npz", pictures=GREY)
    with pytest.raises(ValueError, match=r"no arrays images and labels or x and y; it has \['pictures'\]"):
        ArraySource(tmp_path / "set.npz")
    with pytest.raises(FileNotFoundError):
        ArraySource(tmp_path / "nowhere.npz")


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickled_objects_never_run(tmp_path):
    canary = tmp_path / "canary"
    evil = npy(np.array([Runs(canary)], object), allow_pickle=True)
    for members in ({"images": evil, "labels": npy(LABELS)}, {"images": npy(GREY), "labels": evil}):
        with pytest.raises(ValueError, match="pickled Python objects, which are never read"):
            ArraySource(zipped(tmp_path / "set.npz", **members))
    with pytest.raises(ValueError, match="magic"):
        ArraySource(zipped(tmp_path / "set.npz", images=pickle.dumps(Runs(canary)), labels=npy(LABELS)))
    assert not canary.exists()


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):  # N28
    bomb = npy(np.zeros((200, 512, 512), np.uint8))
    path = zipped(tmp_path / "set.npz", zipfile.ZIP_DEFLATED, images=bomb, labels=npy(LABELS), **{"../escape": b""})
    assert path.stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"would unpack to 52,.* bytes, over 100 times its size"):
        ArraySource(path)
    assert not (tmp_path.parent / "escape.npy").exists()


def test_a_header_that_claims_more_than_there_is_is_refused(tmp_path):
    huge = npy(GREY).replace(b"'shape': (5, 4, 3)", b"'shape': (5, 9, 9)")
    assert huge != npy(GREY)
    for data in (huge, npy(GREY)[:-1], npy(GREY) + b"x", b"", b"\x93NUMPY\x09\x00" + bytes(100)):
        with pytest.raises(ValueError):
            ArraySource(zipped(tmp_path / "set.npz", images=data, labels=npy(LABELS)))


def test_damaged_archives_are_refused(tmp_path):
    path = tmp_path / "set.npz"
    np.savez_compressed(path, images=COLOUR, labels=LABELS)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[150] ^= 0xFF
    for data in (b"", b"text", whole[: len(whole) // 2], bytes(flipped)):
        path.write_bytes(data)
        with pytest.raises(ValueError):
            ArraySource(path)


def test_stored_arrays_are_mapped_and_reopened_in_another_process(tmp_path):
    np.savez(tmp_path / "set.npz", images=np.zeros((1000, 64, 64, 3), np.uint8), labels=np.arange(1000))
    source = ArraySource(tmp_path / "set.npz")
    assert len(pickle.dumps(source)) < 1000
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        item = pool.apply(operator.methodcaller("item", 999), (source,))
    assert (item.labels, item.data.shape) == ((999,), (64, 64, 3))
    for index in (-1, 1000):
        with pytest.raises(IndexError):
            source.item(index)
