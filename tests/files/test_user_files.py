"""E14: whatever a user names, FIFOs, devices, folders and endless files are refused at once, with memory flat."""

import io
import os
import tracemalloc
import zipfile

import numpy as np
import pytest

from vitlab.data.feature_files import open_vectors
from vitlab.data.sources.catalogue import open_source
from vitlab.data.sources.shards import index_folder
from vitlab.files.store import sha256
from vitlab.files.strict_json import read_json
from vitlab.files.user_files import NotRegular, check_archive, open_regular, read_regular, stream_lines, stream_text
from vitlab.metrics.targets import read_label_map, read_real
from vitlab.report import ledger
from vitlab.run_dir import RunDir
from vitlab.weights.load import load_model

ENTRY = ledger.Entry(model="m", data="d", metric="top-1", got=1.0, n=1, command="c")


def linked(name):
    """What opens a folder in which the file of that name is the one to judge."""

    def make(open_folder):
        def opened(path):
            folder = path.parent / "folder"
            folder.mkdir()
            (folder / name).symlink_to(path)
            return open_folder(folder)

        return opened

    return make


@linked("train-images-idx3-ubyte")
def idx(folder):
    open_source(f"idx:{folder}")


@linked("data_batch_1.bin")
def cifar(folder):
    for number in range(2, 6):
        (folder / f"data_batch_{number}.bin").write_bytes(bytes(3073))
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij"))
    open_source(f"cifar10:{folder}")


@linked("classes.txt")
def imagenet_labels(folder):
    (folder / "images").mkdir()
    (folder / "images" / "ILSVRC2012_val_00000001.JPEG").write_bytes(b"")
    open_source(f"imagenet:{folder / 'images'}?labels={folder / 'classes.txt'}")


@linked("a.tar")
def tar(folder):
    index_folder(folder)


OPENERS = {
    "csv": lambda path: open_source(f"csv:{path}"),
    "npz": lambda path: open_source(f"npz:{path}"),
    "parquet": lambda path: open_source(f"parquet:{path}"),
    "idx": idx,
    "tar": tar,
    "cifar": cifar,
    "labels of imagenet": imagenet_labels,
    "index of shards": lambda path: open_source(f"shards:{path.parent}?index={path}"),
    "features npy": lambda path: open_vectors(f"{path}.npy?y={path}.npy"),
    "features npz": lambda path: open_vectors(f"{path}.npz"),
    "features parquet": lambda path: open_vectors(f"{path}.parquet"),
    "label map": lambda path: read_label_map(path, ["a"], ["a"], range(1)),
    "ReaL": read_real,
    "ledger to read": ledger.read,
    "ledger to add to": lambda path: ledger.append(path, [ENTRY]),
    "weights": load_model,
    "weights to hash": sha256,
    "JSON": read_json,
}


def named(path, opener):
    """Features are known by their suffix."""
    _, _, suffix = opener.partition("features ")
    return path.with_name(f"{path.name}.{suffix}") if suffix else path


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["a FIFO", "a device", "leads back to itself"])
@pytest.mark.parametrize("opener", sorted(set(OPENERS) - {"cifar"}))  # its files are looked for, and not found
def test_only_regular_files_are_opened(tmp_path, opener, kind):
    if "parquet" in opener:
        pytest.importorskip("pyarrow")
    path = tmp_path / "file"
    real = named(path, opener)
    if kind == "a FIFO":
        os.mkfifo(real)
    else:
        real.symlink_to("/dev/zero" if kind == "a device" else real)
    with pytest.raises((OSError, ValueError), match=kind):
        OPENERS[opener](path)


@pytest.mark.parametrize("opener", ["csv", "npz", "label map", "ReaL", "ledger to read", "JSON", "features npz"])
def test_a_folder_in_place_of_a_file_is_refused_in_words(tmp_path, opener):
    named(tmp_path / "file", opener).mkdir()
    with pytest.raises((OSError, ValueError), match=r"a folder|does not exist"):
        OPENERS[opener](tmp_path / "file")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("opener", sorted(set(OPENERS) - {"weights to hash", "ledger to add to", "idx"}))
def test_a_file_without_end_takes_no_memory(tmp_path, opener):
    """A terabyte of zeros, which takes no room on the disk."""
    if "parquet" in opener:
        pytest.importorskip("pyarrow")
    path = tmp_path / "file"
    with named(path, opener).open("wb") as file:
        file.truncate(2**40)
    tracemalloc.start()
    try:
        with pytest.raises((OSError, ValueError)):
            OPENERS[opener](path)
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


def test_a_link_to_a_regular_file_is_followed(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"abc"
    assert read_regular(tmp_path / "link", 3) == b"abc"
    with pytest.raises(ValueError, match="link has 3 bytes; at most 2 are read"):
        read_regular(tmp_path / "link", 2)


def test_a_file_that_claims_no_bytes_is_read_within_bounds():
    """Files of /proc have size 0 and hold more."""
    with pytest.raises(ValueError, match="at most 10 are read"):
        read_regular("/proc/self/maps", 10)


def test_missing_files_and_impossible_paths_are_told_apart(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")
    with pytest.raises(NotRegular, match="not a valid path"):
        open_regular("a\0b")


def test_lines_come_one_by_one_as_far_as_the_file_went_when_it_was_opened(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\nthree")
    lines = stream_lines(path)
    assert next(lines) == b"one\n"
    with path.open("ab") as file:
        file.write(b" and more\nfour\n")
    assert list(lines) == [b"two\n", b"three"]
    with pytest.raises(ValueError, match="lines, line 3 is longer than 4"):
        list(stream_lines(path, longest=4))
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\rc\xff")
    assert list(stream_text(path)) == ["a\r\n", "b\r", "c\udcff"]


@pytest.mark.parametrize("is_64", [False, True])
def test_an_archive_of_many_members_is_refused_by_its_directory_alone(tmp_path, monkeypatch, is_64):
    """60,000 members took 14 seconds; the directory is judged before `zipfile` reads it."""
    path = tmp_path / "many.npz"
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.zeros(1, np.float32))
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 100 if is_64 else 2**16)
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(5_000):
            archive.writestr(f"{number:0200d}.npy", buffer.getvalue())
    check_archive(path, 5_000)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(ValueError, match="lists its members in 1,250,000 bytes; at most 512,000 are read"):
        check_archive(path, 1_000)
    with pytest.raises(ValueError, match="at most 512,000 are read"):
        open_source(f"npz:{path}")


def test_weights_of_many_members_are_refused_before_one_is_opened(tmp_path, monkeypatch):
    path = tmp_path / "many.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(10_001):
            archive.writestr(f"{number}.npy", b"")
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    with pytest.raises(ValueError, match=": it has 10,001 members; at most 10,000 are read"):
        load_model(path)


def test_a_run_whose_data_card_or_log_is_lost_says_so(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match=r"has lost data\.json, the description of its data"):
        RunDir.open(tmp_path).card()
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(NotRegular, match="a FIFO"):
        RunDir.open(tmp_path)
