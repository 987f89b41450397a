"""A folder of good and nasty files, in training and in evaluation: every file gets its outcome, none is lost."""

import os
import zlib

import numpy as np
import pytest
from PIL import Image

from pictures import animation, chunk, claiming, exif, jpeg, photo, png, saved, with_exif
from vitlab.data.loading.accounting import Account
from vitlab.data.loading.batches import evaluation_batches, training_batches
from vitlab.data.loading.order import Order
from vitlab.data.sources.folders import FolderSource
from vitlab.errors import TooManyBadImages
from vitlab.pixels import Augmentation
from vitlab.spec import CONVENTIONS

GOOD = 200

# name: bytes, and the reason it is refused for; None is accepted
NASTY = {
    "n01 cut in half.jpg": (jpeg()[: len(jpeg()) // 2], "truncated"),
    "n02 cut to 100.jpg": (jpeg()[:100], "truncated"),
    "n03 empty.jpg": (b"", "empty"),
    "n04 overwritten.jpg": (jpeg()[:30] + bytes(300) + jpeg()[330:], "corrupt"),
    "n08 broken exif.jpg": (with_exif(jpeg(), b"Exif\0\0II*\0\xff\xff\xff\xff"), None),
    "n05 page.jpg": (b"<!DOCTYPE html><title>404</title>", "not_an_image"),
    "n06 png named.jpg": (saved(photo(), "PNG"), None),
    "n07 turned.jpg": (with_exif(jpeg(), exif(6)), None),
    "n09 inks.jpg": (jpeg(photo().convert("CMYK")), None),
    "n10 sixteen bits.png": (saved(Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000), "PNG"), None),
    "n11 palette.png": (saved(photo().convert("P"), "PNG", transparency=bytes(range(256))), None),
    "n12 alpha.png": (saved(photo().convert("RGBA"), "PNG"), None),
    "n13 one bit.png": (saved(photo().convert("1"), "PNG"), None),
    "n14 float.png": (saved(Image.new("F", (4, 4), -1.0), "TIFF"), "unsupported_format"),
    "n15 frames.gif": (animation("GIF", 3), None),
    "n16 many frames.gif": (animation("GIF", 60), None),
    "n17 claims.png": (claiming("PNG", 60_000, 60_000), "too_many_pixels"),
    "n19 text bomb.png": (png(1, 1, b"\0\0", chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(20_000_000)))), "corrupt"),
    "n18 bomb.png": (claiming("PNG", 13_000, 13_000), "too_many_pixels"),
    "n20 checksum.png": (saved(photo(), "PNG")[:-13] + b"\0" + saved(photo(), "PNG")[-12:], "corrupt"),
    "n21 dot.png": (saved(Image.new("RGB", (1, 1)), "PNG"), None),
    "n21 thread.png": (saved(Image.new("L", (1, 20_000)), "PNG"), "aspect_ratio"),
    "n22 no width.png": (png(0, 4, b""), "corrupt"),
    "n23 loop.png": (b"II*\0\x08\0\0\0\1\0" + bytes(12) + b"\x08\0\0\0", "unsupported_format"),
    "n24 script.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not_an_image"),
    "n25 =cmd<img onerror>\n\u202e.png": (saved(photo(), "PNG"), None),
}
SPECIAL = {
    "n26 fifo.jpg": "special_file",
    "n26 loop.jpg": "special_file",
    "n26 folder.jpg": "special_file",
    "n26 away.jpg": "outside_root",
    "n26 dangling.jpg": "missing",
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
    (root / "n26 dangling.jpg").symlink_to(root / "nothing")
    (root / "n26 folder.jpg").mkdir()
    return FolderSource(tmp_path / "data")


def expected_bad():
    refused = {f"thing/{name}": reason for name, (_, reason) in NASTY.items() if reason}
    return refused | {f"thing/{name}": reason for name, reason in SPECIAL.items()}


def evaluate(source, workers, **options):
    how = CONVENTIONS["paper"].preprocessing
    return list(evaluation_batches(source, batch=16, size=(16, 16), preprocessing=how, workers=workers, **options))


def train_one_epoch(source, workers, **options):
    batch = 17
    while len(source) % batch:  # whole batches, so that the epoch ends with one
        batch += 1
    options |= {"batch": batch, "size": (16, 16), "augmentation": Augmentation(), "workers": workers}
    return list(training_batches(source, Order(len(source)), stop=len(source) // batch, **options))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("read", [evaluate, train_one_epoch], ids=["evaluation", "training"])
def test_every_file_gets_its_outcome(source, read, workers):
    account = Account(len(source) + source.excluded.total(), source.excluded)
    used = [name for batch in read(source, workers, account=account, max_bad=1.0) for name in batch.ids]
    assert {bad.id: bad.reason for bad in account.quarantined.values()} == expected_bad()
    accepted = {f"thing/{name}" for name, (_, reason) in NASTY.items() if reason is None}
    assert accepted <= set(used)
    assert len(used) == GOOD + len(accepted)
    assert account.is_balanced()


@pytest.mark.parametrize("read", [evaluate, train_one_epoch], ids=["evaluation", "training"])
def test_both_stop_by_default_and_name_what_is_bad(source, read):
    with pytest.raises(TooManyBadImages, match=r"bad images?.*thing/"):
        read(source, 0)
