"""A folder of good and nasty files, in training and in evaluation: every file gets its outcome, none is lost."""

import os
import zlib

import numpy as np
import pytest
from PIL import Image

from pictures import animation, chunk, claiming, exif, jpeg, photo, png, saved, with_exif
from vitlab.data.accounting import Account, TooManyBadImages
from vitlab.data.folders import FolderSource
from vitlab.data.loading import counted, evaluation_batches, training_batches
from vitlab.data.order import Order
from vitlab.spec import CONVENTIONS, Augmentation

GOOD = 200

# name: bytes, and the reason it is refused for; None is accepted
NASTY = {
    "n01 cut in half.jpg": (jpeg()[: len(jpeg()) // 2], "truncated"),
    "n02 cut to 100.jpg": (jpeg()[:100], "truncated"),
    "n03 empty.jpg": (b"", "empty"),
    "n05 page.jpg": (b"<!DOCTYPE html><title>404</title>", "not_an_image"),
    "n06 png named.jpg": (saved(photo(), "PNG"), None),
    "n07 turned.jpg": (with_exif(jpeg(), exif(6)), None),
    "n09 inks.jpg": (jpeg(photo().convert("CMYK")), None),
    "n10 sixteen bits.png": (saved(Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000), "PNG"), None),
    "n12 alpha.png": (saved(photo().convert("RGBA"), "PNG"), None),
    "n13 one bit.png": (saved(photo().convert("1"), "PNG"), None),
    "n14 float.png": (saved(Image.new("F", (4, 4), -1.0), "TIFF"), "unsupported_mode"),
    "n15 frames.gif": (animation("GIF", 3), None),
    "n17 claims.png": (claiming("PNG", 60_000, 60_000), "too_many_pixels"),
    "n19 text bomb.png": (png(1, 1, b"\0\0", chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(20_000_000)))), "corrupt"),
    "n21 dot.png": (saved(Image.new("RGB", (1, 1)), "PNG"), None),
    "n21 thread.png": (saved(Image.new("L", (1, 20_000)), "PNG"), "aspect_ratio"),
    "n22 no width.png": (png(0, 4, b""), "corrupt"),
    "n24 script.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not_an_image"),
    "n25 =cmd<img onerror>\n\u202e.png": (saved(photo(), "PNG"), None),
}
SPECIAL = {
    "n26 fifo.jpg": "special_file",
    "n26 loop.jpg": "special_file",
    "n26 folder.jpg": "special_file",
    "n26 away.jpg": "outside_root",
}


@pytest.fixture
def source(tmp_path):
    root = tmp_path / "data" / "thing"
    root.mkdir(parents=True)
    for number in range(GOOD):
        (root / f"good{number:03}.jpg").write_bytes(jpeg(photo(20 + number % 7, 20)))
    for name, (data, _) in NASTY.items():
        (root / name).write_bytes(data)
    os.mkfifo(root / "n26 fifo.jpg")
    (root / "n26 loop.jpg").symlink_to(root / "n26 loop.jpg")
    (root / "n26 away.jpg").symlink_to("/etc/passwd")
    (root / "n26 folder.jpg").mkdir()
    return FolderSource(tmp_path / "data")


def expected_bad():
    refused = {f"thing/{name}": reason for name, (_, reason) in NASTY.items() if reason}
    return refused | {f"thing/{name}": reason for name, reason in SPECIAL.items()}


def evaluate(source, workers):
    how = CONVENTIONS["paper"].preprocessing
    return evaluation_batches(source, batch=16, size=(16, 16), preprocessing=how, workers=workers)


def train_one_epoch(source, workers):
    order = Order(len(source))
    options = {"batch": len(source) // 8 + 1, "size": (16, 16), "augmentation": Augmentation(), "workers": workers}
    return training_batches(source, order, stop=8, **options)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("workers", [0, 2])
def test_in_evaluation_every_file_gets_its_outcome(source, workers):
    account = Account(len(source) + source.excluded.total(), source.excluded)
    used = [name for batch in counted(evaluate(source, workers), account, max_bad=1.0) for name in batch.ids]
    assert {bad.id: bad.reason for bad in account.quarantined} == expected_bad()
    accepted = {f"thing/{name}" for name, (_, reason) in NASTY.items() if reason is None}
    assert accepted <= set(used)
    assert len(used) == GOOD + len(accepted)
    assert account.is_balanced


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("workers", [0, 2])
def test_in_training_every_file_gets_the_same_outcome(source, workers):
    found = {}
    used = set()
    for batch in train_one_epoch(source, workers):
        found |= {bad.id: bad.reason for bad in batch.bad}
        used |= set(batch.ids)
    assert found == expected_bad()
    assert len(used) + len(found) == len(source)


def test_evaluation_stops_at_a_bad_image_and_training_above_a_thousandth(source):
    for batches, max_bad in ((evaluate(source, 0), 0.0), (train_one_epoch(source, 0), 0.001)):
        with pytest.raises(TooManyBadImages, match="bad images"):
            list(counted(batches, Account(len(source)), max_bad=max_bad))
