"""Files that were overwritten under the same names are noticed, for every kind of data and without reading them."""

import gzip
import os
import struct
import tarfile

import numpy as np
import pytest

from vitlab.data.catalogue import open_source
from vitlab.data.shards import index_shards
from vitlab.data.splits import take
from vitlab.data.stamps import state
from vitlab.paper.imagenet import imagenet_classes

PIXELS = np.arange(4 * 6 * 5, dtype=np.uint8).reshape(4, 6, 5)
LABELS = np.array([0, 1, 1, 0], np.uint8)
WORDNET_ID = imagenet_classes()[0][0]


def folder(root):
    for name in ("ape/0.jpg", "ape/1.jpg", "bee/0.jpg"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"one picture")
    return f"folder:{root}", root / "ape/1.jpg"


def table(root):
    folder(root)
    (root / "table.csv").write_text("path,label\nape/1.jpg,a\nbee/0.jpg,b\n")
    return f"csv:{root}/table.csv", root / "ape/1.jpg"


def stored_arrays(root):
    np.savez(root / "a.npz", images=PIXELS, labels=LABELS)
    return f"npz:{root}/a.npz", root / "a.npz"


def packed_arrays(root):
    np.savez_compressed(root / "a.npz", images=PIXELS, labels=LABELS)
    return f"npz:{root}/a.npz", root / "a.npz"


def idx(root):
    for kind, array in (("images-idx3", PIXELS), ("labels-idx1", LABELS)):
        header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        (root / f"train-{kind}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))
    return f"idx:{root}", root / "train-images-idx3-ubyte.gz"


def cifar(root):
    (root / "test_batch.bin").write_bytes(bytes(3073 * 2))
    (root / "batches.meta.txt").write_text("\n".join(map(str, range(10))))
    return f"cifar10:{root}?split=test", root / "test_batch.bin"


def parquet(root):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"image": [b"x", b"y"], "label": [0, 1]}), root / "train.parquet")
    return f"parquet:{root}/train.parquet", root / "train.parquet"


def packed(root, *names):
    with tarfile.open(root / "images.tar", "w") as tar:
        for name in names:
            (root / name).write_bytes(b"0")
            tar.add(root / name, name)
            (root / name).unlink()
    return root / "images.tar"


def shards(root):
    return f"shards:{root}", packed(root, "a.jpg", "a.cls")


def imagenet_tar(root):
    (root / "labels.txt").write_text(f"ILSVRC2012_val_00000001 {WORDNET_ID}\n")
    file = packed(root, "ILSVRC2012_val_00000001.JPEG")
    return f"imagenet:{file}?labels={root}/labels.txt", file


def imagenet_folders(root):
    (root / WORDNET_ID).mkdir()
    (root / WORDNET_ID / "a.JPEG").write_bytes(b"0")
    return f"imagenet:{root}", root / WORDNET_ID / "a.JPEG"


KINDS = (
    *(folder, table, stored_arrays, packed_arrays, idx, cifar, parquet, shards),
    *(imagenet_tar, imagenet_folders),
)


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_of_files_changes_when_one_is_written_again(kind, tmp_path):
    spec, file = kind(tmp_path)

    def opened():
        if kind is shards:
            index_shards(tmp_path)
        return open_source(spec)

    before = state(opened())
    assert len(before) == 64
    assert state(opened()) == before
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))  # as after other bytes of the same number
    assert state(opened()) != before


def test_a_part_of_a_set_has_the_state_of_its_own_files_alone(tmp_path):
    spec, changed = folder(tmp_path)  # the second of three
    before = open_source(spec)
    os.utime(changed, ns=(0, 1))
    after = open_source(spec)
    assert state(take(before, [0, 2])) == state(take(after, [0, 2]))
    assert state(take(before, [0, 1])) != state(take(after, [0, 1]))


def test_what_lies_in_no_file_has_no_state():
    drawn = open_source("shapes?classes=3&images=9&size=16")
    assert state(drawn) == state(take(drawn, [1, 2])) == ""
