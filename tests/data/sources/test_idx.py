"""idx files written with struct and gzip."""

import gzip
import multiprocessing
import operator
import os
import struct

import numpy as np
import pytest

from vitlab.data.images.refusals import BadImage
from vitlab.data.sources.idx import IdxSource

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 4), np.uint8)
LABELS = [3, 0, 9, 9, 1, 2]


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return struct.pack(">HBB", 0, kind, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(folder, prefix="train", dot="-", packed=False, pixels=PIXELS, labels=LABELS) -> None:
    for name, data in (
        (f"{prefix}-images{dot}idx3-ubyte", idx(pixels)),
        (f"{prefix}-labels{dot}idx1-ubyte", idx(np.array(labels, np.uint8))),
    ):
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)


def check(source) -> None:
    assert len(source) == 6
    assert source.class_names == tuple("0123456789")
    for index in range(6):
        item = source.item(index)
        assert (item.labels, item.id) == ((LABELS[index],), str(index))
        assert item.data.shape == (5, 4, 3)
        assert all((item.data[..., channel] == PIXELS[index]).all() for channel in range(3))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("prefix", "dot", "split"),
    [("train", "-", "train"), ("t10k", "-", "test"), ("t10k", ".", "test"), ("emnist-letters-test", "-", "test")],
)
def test_images_and_labels_by_number(tmp_path, prefix, dot, split, packed):
    write(tmp_path, prefix, dot, packed)
    write(tmp_path, "t10k" if split == "train" else "train", pixels=PIXELS[:1] + 1, labels=[0])
    check(IdxSource(tmp_path, split))


def test_an_unpacked_file_beside_its_packed_one_is_taken(tmp_path):
    write(tmp_path)
    write(tmp_path, packed=True, pixels=PIXELS + 1)
    check(IdxSource(tmp_path))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends in its header"),
        (idx(PIXELS)[:-1], r"shape \(6, 5, 4\), but 119 bytes of data"),
        (idx(PIXELS) + b"x", "but 121 bytes of data"),
        (idx(PIXELS, kind=13), "is not an idx file of 3 sides"),
        (idx(PIXELS[0]), "is not an idx file of 3 sides"),
        (b"<html>" * 9, "is not an idx file"),
        (idx(PIXELS[:0]), "but 0 bytes of data"),
        (struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1), "but 0 bytes of data"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, data, message):
    write(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(data)
    with pytest.raises(ValueError, match=f"train-images-idx3-ubyte .*{message}"):
        IdxSource(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip.compress(idx(PIXELS))[:-12], "not a valid gzip"),
        (b"not gzip at all", "not a valid gzip"),
        (gzip.compress(idx(PIXELS)[:-1]), "but not 120 bytes of data"),
        (gzip.compress(idx(PIXELS) + bytes(10**7)), "but not 120 bytes of data"),
        (gzip.compress(idx(PIXELS))[:40] + b"\0\0\0\0" + gzip.compress(idx(PIXELS))[44:], "not a valid gzip"),
        (gzip.compress(idx(np.zeros((50, 1000, 1000), np.uint8))), "would unpack to 50,000,000 bytes; at most"),
        (gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 2**20, 2**10, 2**10)), "would unpack to 1,099,511,627,776 bytes"),
    ],
    ids=["cut", "text", "short", "long", "crc", "bomb", "claim"],
)
def test_a_damaged_or_hostile_gzip_is_refused(tmp_path, data, message):
    write(tmp_path, packed=True)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        IdxSource(tmp_path)


def test_files_that_are_absent_or_two_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"needs one file of train images .*has \[\]"):
        IdxSource(tmp_path)
    write(tmp_path, "emnist-letters-train")
    write(tmp_path, "emnist-digits-train")
    with pytest.raises(ValueError, match=r"has .*digits.*letters"):
        IdxSource(tmp_path)
    with pytest.raises(ValueError, match="known are train, test"):
        IdxSource(tmp_path, "val")


def test_as_many_labels_as_images(tmp_path):
    write(tmp_path, labels=[1, 2])
    with pytest.raises(ValueError, match="6 images and 2 labels"):
        IdxSource(tmp_path)


def test_idx_reads_the_same_in_another_process(tmp_path):
    write(tmp_path)
    source = IdxSource(tmp_path)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert (pool.apply(operator.methodcaller("item", 5), (source,)).data == source.item(5).data).all()
    for index in (-1, 6):
        with pytest.raises(IndexError):
            source.item(index)


@pytest.mark.parametrize("change", ["cut", "overwritten", "gone"])
def test_a_file_that_changes_while_it_is_open_is_refused(tmp_path, change):
    write(tmp_path)
    source = IdxSource(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte"
    if change == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:30] if change == "cut" else idx(PIXELS[::-1].copy()) + b"")
        os.utime(file, ns=(0, 1))
    with pytest.raises(BadImage) as error:
        source.item(5)
    assert error.value.reason == ("unreadable" if change == "gone" else "changed")
