"""A tiny data set of every kind that lies in files: (its spec, a file in which images lie).

Another `shade` makes other images of the same names, labels and sizes.
"""

import gzip
import io
import json
import struct
import tarfile

import numpy as np
import pytest
from PIL import Image

from vitlab.paper.imagenet import imagenet_classes

PIXELS = np.arange(4 * 6 * 5, dtype=np.uint8).reshape(4, 6, 5)
LABELS = np.array([0, 1, 1, 0], np.uint8)
WORDNET_ID = imagenet_classes()[0][0]


def picture(shade):
    """A small image file, as long for every shade."""
    with io.BytesIO() as file:
        Image.new("RGB", (3, 2), (shade, 0, 0)).save(file, "BMP")
        return file.getvalue()


def folder(root, shade=0):
    for name in ("ape/0.jpg", "ape/1.jpg", "bee/0.jpg"):
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        (root / name).write_bytes(picture(shade))
    return f"folder:{root}", root / "ape/1.jpg"


def table(root, shade=0):
    folder(root, shade)
    (root / "table.csv").write_text("path,label\nape/1.jpg,a\nbee/0.jpg,b\n")
    return f"csv:{root}/table.csv", root / "ape/1.jpg"


def stored_arrays(root, shade=0):
    np.savez(root / "a.npz", images=PIXELS + np.uint8(shade), labels=LABELS)
    return f"npz:{root}/a.npz", root / "a.npz"


def packed_arrays(root, shade=0):
    np.savez_compressed(root / "a.npz", images=PIXELS + np.uint8(shade), labels=LABELS)
    return f"npz:{root}/a.npz", root / "a.npz"


def idx(root, shade=0):
    for kind, array in (("images-idx3", PIXELS + np.uint8(shade)), ("labels-idx1", LABELS)):
        header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        (root / f"train-{kind}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))
    return f"idx:{root}", root / "train-images-idx3-ubyte.gz"


def cifar(root, shade=0):
    (root / "test_batch.bin").write_bytes((bytes(1) + bytes([shade]) * 3072) * 2)
    (root / "batches.meta.txt").write_text("\n".join(map(str, range(10))))
    return f"cifar10:{root}?split=test", root / "test_batch.bin"


def parquet(root, shade=0):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    pyarrow.parquet.write_table(
        pyarrow.table({"image": [picture(9), picture(shade)], "label": [0, 1]}), root / "train.parquet"
    )
    return f"parquet:{root}/train.parquet", root / "train.parquet"


def packed(root, shade, *names):
    with tarfile.open(root / "images.tar", "w") as tar:
        for name in names:
            member, held = tarfile.TarInfo(name), b"0" if name.endswith("cls") else picture(shade)
            member.size = len(held)
            tar.addfile(member, io.BytesIO(held))
    return root / "images.tar"


def shards(root, shade=0):
    return f"shards:{root}", packed(root, shade, "a.jpg", "a.cls")


def imagenet_tar(root, shade=0):
    (root / "labels.txt").write_text(f"ILSVRC2012_val_00000001 {WORDNET_ID}\n")
    file = packed(root, shade, "ILSVRC2012_val_00000001.JPEG")
    return f"imagenet:{file}?labels={root}/labels.txt", file


def imagenet_folders(root, shade=0):
    (root / WORDNET_ID).mkdir(exist_ok=True)
    (root / WORDNET_ID / "a.JPEG").write_bytes(picture(shade))
    return f"imagenet:{root}", root / WORDNET_ID / "a.JPEG"


def objectnet(root, shade=0):
    order = list(range(1000))
    texts = {
        "folder_to_objectnet_label.json": {"pen": "Pen"},
        "objectnet_to_imagenet_1k.json": {"Pen": "class 418"},
        "pytorch_to_imagenet_2012_id.json": dict(zip(map(str, order), order, strict=True)),
    }
    for inside in ("mappings", "images/pen"):
        (root / "objectnet-1.0" / inside).mkdir(parents=True, exist_ok=True)
    for name, value in texts.items():
        (root / "objectnet-1.0" / "mappings" / name).write_text(json.dumps(value))
    lines = "\n".join(f"class {number}" for number in order)
    (root / "objectnet-1.0" / "mappings" / "imagenet_to_label_2012_v2").write_text(lines)
    for number in range(2):
        image = root / "objectnet-1.0" / "images" / "pen" / f"{number}.bmp"
        Image.new("RGB", (5, 4), (shade, number, 0)).save(image)
    return f"objectnet:{root}", root / "objectnet-1.0" / "images" / "pen" / "1.bmp"


def vtab(root, shade=0):
    """A task of VTAB-1k as others publish it: lists of images and labels."""
    names = [f"images/{number:03d}.jpg" for number in range(200)]
    (root / "cifar100" / "images").mkdir(parents=True, exist_ok=True)
    for name in names:
        (root / "cifar100" / name).write_bytes(picture(shade))
    for split in ("val200", "train800val200"):
        (root / "cifar100" / f"{split}.txt").write_text("".join(f"{name} 0\n" for name in names))
    return f"vtab:{root}?task=cifar100&split=val200", root / "cifar100" / names[7]


KINDS = (
    *(folder, table, stored_arrays, packed_arrays, idx, cifar, parquet, shards),
    *(imagenet_tar, imagenet_folders, objectnet, vtab),
)
