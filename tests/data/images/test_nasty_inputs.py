"""A folder of good and nasty files, in training and in evaluation: every file gets its outcome, none is lost."""

import os

import pytest

from nasty import NASTY
from pictures import jpeg, photo
from vitlab.data.loading.accounting import Account
from vitlab.data.loading.batches import evaluation_batches, training_batches
from vitlab.data.loading.order import Order
from vitlab.data.sources.folders import FolderSource
from vitlab.errors import TooManyBadImages
from vitlab.spec import CONVENTIONS
from vitlab.spec.pixels import Augmentation

GOOD = 200

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
