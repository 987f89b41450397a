"""Data that holds something else is told from data that was copied, for every kind of data; E12."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import kinds
from vitlab.data import contents
from vitlab.data.contents import Contents, from_bytes, to_bytes
from vitlab.data.fingerprint import fingerprint
from vitlab.data.sources.arrays import PixelSource
from vitlab.data.sources.catalogue import open_source
from vitlab.data.sources.shards import index_folder


def take(source, known=None, **how):
    return contents.take(source, fingerprint(source), known, **how)


def compare(before, source, known=None):
    return contents.compare(before, source, fingerprint(source), known)


@pytest.fixture(params=kinds.KINDS, ids=lambda make: make.__name__)
def made(request, tmp_path):
    """(spec, a file in which images lie)"""
    (tmp_path / "here").mkdir()
    spec, file = request.param(tmp_path / "here")
    reopened(spec)
    return spec, file


def other_bytes(file):
    """As long as before, and as old, as far as a user can say."""
    status, held = file.stat(), file.read_bytes()
    file.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def reopened(spec):
    if spec.startswith("shards:"):
        index_folder(Path(spec.removeprefix("shards:")))
    return open_source(spec)


def test_what_did_not_change_is_not_read(made, reads):
    spec, _ = made
    before = take(open_source(spec))
    assert len(reads) == len(before.files) > 0
    assert before.is_hashed.all()
    reads.clear()
    found = compare(before, open_source(spec))
    assert found.is_same
    assert found.now.is_identical(before)
    assert not reads


def test_other_content_of_the_same_length_and_date_is_noticed(tmp_path, reads):
    spec, file = kinds.folder(tmp_path)
    source = open_source(spec)
    before = take(source)
    other_bytes(file)
    reads.clear()
    found = compare(before, open_source(spec))
    assert [source.paths()[number] for number in found.changed] == [str(file)]
    assert reads == [str(file)]


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_other_images_under_the_same_names_are_noticed_in_every_kind_of_data(kind, tmp_path):
    spec, _ = kind(tmp_path)
    before = take(reopened(spec))
    kind(tmp_path, shade=1)
    found = compare(before, reopened(spec))
    assert found.changed
    assert not found.has_other_samples
    kind(tmp_path)  # brought back, with other dates
    assert compare(before, reopened(spec)).is_same


def test_a_copy_is_the_same_data_and_is_read_once(made, reads, tmp_path):
    spec, _ = made
    before = take(open_source(spec))
    copy = shutil.copytree(tmp_path / "here", tmp_path / "there", copy_function=shutil.copyfile)
    spec = spec.replace(str(tmp_path / "here"), str(copy))
    reads.clear()
    found = compare(before, reopened(spec))
    assert found.is_same
    assert len(reads) == len(before.files)
    reads.clear()
    assert compare(found.now, open_source(spec)).is_same
    assert not reads


def test_hashes_that_are_known_are_not_made_again(made, reads):
    spec, _ = made
    known = take(open_source(spec))
    reads.clear()
    assert take(open_source(spec), known).is_identical(known)
    older = Contents(known.fingerprint, known.files.copy())
    older.files["mtime"] -= 1
    assert compare(older, open_source(spec), known).is_same
    assert not reads


def test_of_a_large_set_evenly_spaced_files_are_hashed_and_all_are_sized(tmp_path, reads):
    (tmp_path / "ape").mkdir()
    for number in range(20):
        (tmp_path / "ape" / f"{number:02}.jpg").write_bytes(bytes([number]) * 10)
    source = open_source(f"folder:{tmp_path}")
    before = take(source, most=100)
    assert sorted(Path(path).stem for path in reads) == [f"{number:02}" for number in range(0, 20, 2)]
    assert (before.files["size"] == 10).all()
    other_bytes(tmp_path / "ape" / "04.jpg")
    other_bytes(tmp_path / "ape" / "05.jpg")  # was not hashed
    (tmp_path / "ape" / "07.jpg").write_bytes(b"longer than before")
    found = compare(before, source)
    assert found.changed == (4, 7)
    assert found.unchecked == 1


def test_samples_that_lie_in_no_file_are_hashed_themselves():
    pixels = np.arange(3 * 4 * 4, dtype=np.uint8).reshape(3, 4, 4)
    labels = np.array([0, 1, 0])
    before = take(PixelSource(pixels, labels, (), "memory"))
    assert compare(before, PixelSource(pixels.copy(), labels, (), "memory")).is_same
    pixels[1, 2, 3] += 1
    assert compare(before, PixelSource(pixels, labels, (), "memory")).changed == (1,)


def test_what_is_drawn_is_not_read():
    before = take(open_source("fractals?images=1e5&classes=3&size=32"))
    assert len(before.files) == 0
    assert compare(before, open_source("fractals?images=1e5&classes=3&size=32")).is_same
    assert compare(before, open_source("fractals?images=1e5&classes=3&size=32&seed=1")).has_other_samples


def test_a_fifo_or_a_missing_file_is_no_reason_to_wait(tmp_path):
    spec, file = kinds.folder(tmp_path)
    source = open_source(spec)
    before = take(source)
    file.unlink()
    os.mkfifo(file)
    (number,) = compare(before, source).changed
    assert source.paths()[number] == str(file)
    file.unlink()
    assert compare(before, source).changed == (number,)
    assert not take(source).is_hashed[number]


def test_a_record_comes_back_as_it_was_and_a_damaged_one_is_refused(made):
    before = take(open_source(made[0]))
    data = to_bytes({"data": before})
    assert from_bytes(data)["data"].is_identical(before)
    for bad in (b"", b"nothing", data[: len(data) // 2], data[:60] + b"\xff" + data[61:]):
        with pytest.raises(ValueError, match="record"):
            from_bytes(bad)
