"""Whatever happens to a data set after it was indexed is found, and nothing else is reported."""

import csv
import os
import random
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import kinds
import vitlab
from stored_sets import photos, write_shards
from vitlab.cli import main
from vitlab.data.images.refusals import LARGEST_FILE
from vitlab.data.indexing import comparison, index_file
from vitlab.data.indexing.comparison import rows_at
from vitlab.data.indexing.index_file import IndexFile, IndexMeta, ShardEntry, index_writer, records_of
from vitlab.data.sources import folders
from vitlab.runs.datasets import index as indexing
from vitlab.runs.datasets import verify


def found(index: Path, out: Path, **more: object) -> dict[str, list[str]]:
    """state -> ids of the report."""
    result = vitlab.verify_data(index, out=out, quiet=True, **more)
    with result.report.open(newline="") as file:
        lines = list(csv.DictReader(file))
    by_state: dict[str, list[str]] = {}
    for line in lines:
        by_state.setdefault(line["state"], []).append(line["id"])
    assert {state: len(ids) for state, ids in by_state.items()} == result.counts
    assert result.is_sound == (not lines)
    return by_state


def shards(root: Path) -> str:
    """A folder of three shards."""
    write_shards(root)
    return f"shards:{root}"


def flip(path: Path, rng: random.Random) -> None:
    """Change one bit of any byte of a file, and keep its times."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def pictures(root: Path, count: int) -> list[Path]:
    """Real JPEG and PNG files, half of each."""
    rng, paths = np.random.default_rng(0), []
    for number in range(count):
        path = root / f"class{number % 5}" / f"{number:03d}.{('jpg', 'png')[number % 2]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (9, 11, 3), np.uint8)).save(path)
        paths.append(path)
    return paths


# -- Flips -----------------------------------------------------------------------------------------


def test_300_of_300_flipped_bits_in_jpeg_and_png_files_are_found(tmp_path):  # E4
    paths, rng = pictures(tmp_path / "d", 300), random.Random(0)
    index = vitlab.index_data(f"folder:{tmp_path}/d", tmp_path / "x.index", quiet=True).path
    assert found(index, tmp_path / "v") == {}
    for path in paths:
        flip(path, rng)
    names = sorted(str(path.relative_to(tmp_path / "d")) for path in paths)
    assert found(index, tmp_path / "v") == {"changed": names}


def test_without_hashes_none_of_the_flips_would_be_found(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "stream_hash", lambda file: (len(file.read()), bytes(16)))
    paths, rng = pictures(tmp_path / "d", 20), random.Random(0)
    index = vitlab.index_data(f"folder:{tmp_path}/d", tmp_path / "x.index", quiet=True).path
    for path in paths:
        flip(path, rng)
    assert found(index, tmp_path / "v") == {}


def test_a_single_flipped_bit_is_found_among_others(tmp_path):
    paths, rng = pictures(tmp_path / "d", 20), random.Random(1)
    index = vitlab.index_data(f"folder:{tmp_path}/d", tmp_path / "x.index", quiet=True).path
    for path in paths:
        before = path.read_bytes()
        flip(path, rng)
        assert found(index, tmp_path / "v") == {"changed": [str(path.relative_to(tmp_path / "d"))]}
        path.write_bytes(before)


@pytest.mark.slow
def test_300_of_300_flipped_bits_in_any_byte_of_a_shard_are_found(tmp_path):
    """Also those in headers, in labels, in the padding, and behind the end."""
    rng = random.Random(2)
    pictures(tmp_path / "d", 6)
    vitlab.pack_data(f"folder:{tmp_path}/d", tmp_path / "out", quiet=True)
    (shard,) = (tmp_path / "out").glob("*.tar")
    whole = shard.read_bytes()
    states = set()
    for _ in range(300):
        flip(shard, rng)
        told = found(tmp_path / "out", tmp_path / "v")
        assert told, "a flip was not found"
        states |= set(told)
        shard.write_bytes(whole)
    assert {"changed", "missing", "shard"} <= states
    assert found(tmp_path / "out", tmp_path / "v") == {}


# -- Other changes ---------------------------------------------------------------------------------


def test_truncated_missing_added_moved_and_unreadable_files_are_each_named(tmp_path):
    index = vitlab.index_data(photos(tmp_path / "d"), tmp_path / "x.index", quiet=True).path
    folder = tmp_path / "d"
    os.truncate(folder / "a/003.jpg", 5)
    (folder / "b/001.jpg").unlink()
    (folder / "c/new.jpg").write_bytes(b"new")
    (folder / "a/000.jpg").rename(folder / "b/000.jpg")
    (folder / "c/002.jpg").unlink()
    os.mkfifo(folder / "c/002.jpg")
    assert found(index, tmp_path / "v") == {
        "changed": ["a/003.jpg"],
        "missing": ["a/000.jpg", "b/001.jpg"],
        "added": ["b/000.jpg", "c/new.jpg"],
        "unreadable": ["c/002.jpg"],
    }


def test_changed_labels_and_classes_are_named(tmp_path):
    photos(tmp_path, 6)
    table = tmp_path / "t.csv"
    rows = ["a/000.jpg,cat", "b/001.jpg,dog", "c/002.jpg,cat", "a/003.jpg,dog"]
    table.write_text("\n".join(["path,label", *rows]))
    index = vitlab.index_data(f"csv:{table}", tmp_path / "x.index", quiet=True).path
    table.write_text("\n".join(["path,label", *reversed(rows)]))
    assert found(index, tmp_path / "v") == {}, "another order of the same rows is the same data"
    table.write_text("\n".join(["path,label", *rows[:3], "a/003.jpg,cat"]))
    assert found(index, tmp_path / "v") == {"label": ["a/003.jpg"]}
    table.write_text("\n".join(["path,label", *rows, "b/004.jpg,bee"]))
    assert found(index, tmp_path / "v") == {"class": ["bee"], "added": ["b/004.jpg"]}


def test_a_reordered_label_map_beside_shards_is_found(tmp_path):
    write_shards(tmp_path / "d")
    (tmp_path / "d/classnames.txt").write_text("ape\nbee\ncat\ndog\n")
    vitlab.index_data(tmp_path / "d", quiet=True)
    (tmp_path / "d/classnames.txt").write_text("ape\ncat\nbee\ndog\n")
    assert found(tmp_path / "d", tmp_path / "v") == {"class": ["cat", "bee"]}


def test_missing_added_and_cut_shards_are_told_sample_by_sample(tmp_path):
    write_shards(tmp_path / "d", shards=4)
    vitlab.index_data(tmp_path / "d", quiet=True)
    (tmp_path / "d/s0.tar").unlink()
    (tmp_path / "d/s1.tar").rename(tmp_path / "d/new.tar")
    os.truncate(tmp_path / "d/s2.tar", 2048 * 3)  # three samples of four
    assert found(tmp_path / "d", tmp_path / "v") == {
        "missing": [*(f"s0/{n}" for n in range(4)), *(f"s1/{n}" for n in range(4)), "s2/3"],
        "added": [f"new/{n}" for n in range(4)],
    }


def test_damaged_shards_are_named_by_the_index_and_are_no_difference_later(tmp_path, capsys):
    write_shards(tmp_path / "d", shards=2)
    os.truncate(tmp_path / "d/s1.tar", 2048 * 3)
    (tmp_path / "d/s2.tar").write_bytes(b"garbage" * 1000)
    (tmp_path / "d/s3.tar").write_bytes(b"")
    assert main(["data", "index", str(tmp_path / "d")]) == 1
    said = capsys.readouterr().out
    assert "3 damaged shards: s1.tar, s2.tar, s3.tar" in said
    assert "2 tar files that end too early ('s1.tar', 's3.tar')" in said
    assert found(tmp_path / "d", tmp_path / "v") == {}
    (tmp_path / "d/s2.tar").write_bytes(b"Garbage" * 1000)
    (tmp_path / "d/s3.tar").unlink()
    assert found(tmp_path / "d", tmp_path / "v") == {"shard": ["s2.tar", "s3.tar"]}


def test_every_added_shard_is_named_even_without_samples(tmp_path):
    write_shards(tmp_path / "d", shards=1)
    vitlab.index_data(tmp_path / "d", quiet=True)
    (tmp_path / "d/empty.tar").write_bytes(bytes(10240))
    (tmp_path / "d/zzz.tar").write_bytes(b"garbage" * 1000)
    assert found(tmp_path / "d", tmp_path / "v") == {"added": ["empty.tar", "zzz.tar"]}


def test_the_entries_of_an_index_are_made_once_and_not_for_each_shard(tmp_path, monkeypatch):
    write_shards(tmp_path / "d", shards=20, samples=1)
    vitlab.index_data(tmp_path / "d", quiet=True)
    made = []

    def counting(*row: object) -> ShardEntry:
        made.append(row)
        return ShardEntry(*row)

    monkeypatch.setattr(index_file, "ShardEntry", counting)
    assert found(tmp_path / "d", tmp_path / "v") == {}
    assert len(made) <= 3 * 20


def test_a_label_that_changed_in_a_shard_is_named(tmp_path):
    write_shards(tmp_path / "d", shards=1)
    vitlab.index_data(tmp_path / "d", quiet=True)
    shard = tmp_path / "d/s0.tar"
    data = bytearray(shard.read_bytes())
    place = data.index(b"3.cls") + 512
    data[place : place + 1] = b"2"
    shard.write_bytes(data)
    assert found(tmp_path / "d", tmp_path / "v") == {"label": ["s0/3"]}


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_other_images_of_the_same_names_and_sizes_are_found_in_every_kind(kind, tmp_path):
    (tmp_path / "d").mkdir()
    spec, _ = kind(tmp_path / "d")
    index = vitlab.index_data(spec, None if kind is kinds.shards else tmp_path / "x.index", quiet=True).path
    assert found(index, tmp_path / "v") == {}
    kind(tmp_path / "d", 1)
    assert set(found(index, tmp_path / "v")) == {"changed"}


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_copy_elsewhere_is_the_same_data(kind, tmp_path):
    (tmp_path / "d").mkdir()
    spec, _ = kind(tmp_path / "d")
    index = vitlab.index_data(spec, tmp_path / "x.index", quiet=True).path
    shutil.copytree(tmp_path / "d", tmp_path / "copy")
    shutil.rmtree(tmp_path / "d")
    moved = spec.replace(str(tmp_path / "d"), str(tmp_path / "copy"))
    assert found(index, tmp_path / "v", data=moved) == {}


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize("make", [photos, shards], ids=["folder", "shards"])
def test_a_place_that_does_not_exist_is_refused_and_not_reported_as_damage(make, is_given, tmp_path):
    index = vitlab.index_data(make(tmp_path / "d"), tmp_path / "x.index", quiet=True).path
    shutil.rmtree(tmp_path / "d")
    kind = "folder" if make is photos else "shards"
    advice = "; if the data has been moved, name its present place"
    with pytest.raises(ValueError, match="is not a folder") as told:
        vitlab.verify_data(index, f"{kind}:nowhere" if is_given else None, tmp_path / "v", quiet=True)
    assert (advice in str(told.value)) == (not is_given)
    assert not (tmp_path / "v" / "verification.csv").exists()


@pytest.mark.parametrize("spec", ["folder:photos", "shards:s3://pictures/out"])
def test_data_in_place_of_its_index_says_what_to_give(spec, tmp_path, capsys):
    assert main(["data", "verify", spec, "--out", str(tmp_path / "v")]) == 2
    assert "names data, not its index; give the file that vitlab data index wrote" in capsys.readouterr().err


@pytest.mark.parametrize("place", [0.3, 0.6])
def test_a_damaged_index_is_not_compared_with(place, tmp_path):
    """A label or an id of the index that has changed, while the shards have not."""
    index = vitlab.index_data(shards(tmp_path / "d"), tmp_path / "x.index", quiet=True).path
    data = bytearray(index.read_bytes())
    data[64 + int(place * (data.index(b'{"') - 64))] ^= 1
    index.write_bytes(data)
    with pytest.raises(ValueError, match=r"x.index is damaged; index the data again"):
        vitlab.verify_data(index, out=tmp_path / "v", quiet=True)


def test_files_that_cannot_be_read_are_counted_even_if_they_never_could(tmp_path, capsys):
    spec = photos(tmp_path / "d")
    os.mkfifo(tmp_path / "d/a/fifo.jpg")
    index = vitlab.index_data(spec, tmp_path / "x.index", quiet=True).path
    assert found(index, tmp_path / "v") == {"unreadable": ["a/fifo.jpg"]}
    assert main(["data", "verify", str(index), "--out", str(tmp_path / "v")]) == 1
    said = capsys.readouterr().out
    assert "checked 30 samples" in said
    assert "against 31 in the index: 1 unreadable" in said
    (tmp_path / "d/a/fifo.jpg").unlink()
    (tmp_path / "d/a/fifo.jpg").write_bytes(b"now a file")
    assert found(index, tmp_path / "v") == {"changed": ["a/fifo.jpg"]}


def test_a_file_that_is_too_large_to_decode_is_hashed_all_the_same(tmp_path):
    spec, large = photos(tmp_path / "d"), tmp_path / "d/a/large.tif"
    large.write_bytes(b"II*\0")
    os.truncate(large, LARGEST_FILE + 1)
    made = vitlab.index_data(spec, tmp_path / "x.index", quiet=True)
    assert (made.unreadable, made.size > LARGEST_FILE) == (0, True)
    assert found(made.path, tmp_path / "v") == {}
    with large.open("r+b") as file:
        file.seek(LARGEST_FILE - 100)
        file.write(b"flip")
    assert found(made.path, tmp_path / "v") == {"changed": ["a/large.tif"]}


def test_what_index_data_returns_is_verified(tmp_path):
    made = vitlab.index_data(photos(tmp_path / "d"), tmp_path / "x.index", quiet=True)
    assert vitlab.verify_data(made, out=tmp_path / "v", quiet=True).is_sound


def test_a_folder_in_place_of_its_index_says_where_the_index_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "d")
    vitlab.index_data("folder:d", quiet=True)
    with pytest.raises(ValueError, match=r"give the index of the folder, such as d\.index"):
        vitlab.verify_data("d", quiet=True)


def test_an_index_without_hashes_cannot_be_verified(tmp_path):
    meta = b'{"version": 1, "classes": 1, "excluded": {}, "shards": [["s.tar", 5, 5]]}'
    record = np.zeros(1, "<u8,<u8,<u4,<u4,<u4,<i4")
    header = b"VITSHRD1" + np.array([1, 1, len(meta)], "<u8").tobytes() + bytes(32)
    (tmp_path / "old.index").write_bytes(header + record.tobytes() + b"k" + meta)
    with pytest.raises(ValueError, match="older version and has no hashes"):
        vitlab.verify_data(tmp_path / "old.index", out=tmp_path / "v", quiet=True)


def test_a_folder_with_other_files_is_not_written_to(tmp_path):
    index = vitlab.index_data(photos(tmp_path / "d"), tmp_path / "x.index", quiet=True).path
    with pytest.raises(FileExistsError, match="contains other files"):
        vitlab.verify_data(index, out=tmp_path / "d", quiet=True)


# -- Matching --------------------------------------------------------------------------------------


def matched_plainly(then: list[bytes], now: list[bytes]) -> tuple[list[int], list[int]]:
    """The n-th sample of an id is the n-th there."""
    waiting: dict[bytes, list[int]] = {}
    for number, name in enumerate(then):
        waiting.setdefault(name, []).append(number)
    places = [waiting[name].pop(0) if waiting.get(name) else -1 for name in now]
    return places, sorted(number for numbers in waiting.values() for number in numbers)


@pytest.mark.parametrize(("bucket", "most"), [(1, 1024), (3, 1024), (1, 2), (1000, 1024)])
def test_ids_are_matched_as_a_dictionary_would(tmp_path, monkeypatch, bucket, most):
    monkeypatch.setattr(comparison, "BUCKET", bucket)
    monkeypatch.setattr(comparison, "MOST_BUCKETS", most)
    rng = random.Random(bucket)
    for _ in range(20):
        lists = [[b"%d" % rng.randrange(30) for _ in range(rng.randrange(1, 25))] for _ in range(2)]
        indexes = []
        for place, ids in enumerate(lists):
            with index_writer(tmp_path / f"{place}.index") as writer:
                writer.add(*records_of(ids, [(0,)] * len(ids)))
                writer.finish(IndexMeta(2, "", 1, ("a",), {}, ""))
            indexes.append(IndexFile(tmp_path / f"{place}.index"))
        matches = comparison.match_ids(*indexes, tmp_path)
        places = matches.place(0, len(lists[1]))
        assert (places.tolist(), sorted(matches.missing_numbers())) == matched_plainly(*lists)
        rows = [row and row.id for row in rows_at(indexes[0], places)]
        assert rows == [lists[0][place] if place >= 0 else None for place in places.tolist()]


def test_matching_needs_memory_for_one_bucket(tmp_path, monkeypatch):
    assert comparison.BUCKET <= 2**16
    monkeypatch.setattr(comparison, "BUCKET", 2**10)
    monkeypatch.setattr(comparison, "CHUNK", 2**10)
    peaks = []
    for count in (2**11, 2**13):
        ids = [b"%09d" % number for number in range(count)]
        with index_writer(tmp_path / "x.index") as writer:
            writer.add(*records_of(ids, [(0,)] * count))
            writer.finish(IndexMeta(2, "", 1, ("a",), {}, ""))
        index = IndexFile(tmp_path / "x.index")
        tracemalloc.start()
        comparison.match_ids(index, index, tmp_path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


# -- Parts and the command -------------------------------------------------------------------------


def test_an_interrupted_verification_continues_and_reads_nothing_twice(tmp_path, monkeypatch):
    for module in (indexing, verify):
        monkeypatch.setattr(module, "PER_PART", 4)
    index = vitlab.index_data(photos(tmp_path / "d"), tmp_path / "x.index", quiet=True).path
    (tmp_path / "d/a/000.jpg").write_bytes(b"changed")
    do, read = verify.CompareSamples.do, []

    def until_third(self, part):
        if len(read) == 3:
            raise OSError(5, "Input/output error")
        read.append(part)
        return do(self, part)

    monkeypatch.setattr(verify.CompareSamples, "do", until_third)
    with pytest.raises(OSError, match="Input/output"):
        vitlab.verify_data(index, out=tmp_path / "v", quiet=True)
    monkeypatch.setattr(verify.CompareSamples, "do", lambda self, part: read.append(part) or do(self, part))
    assert found(index, tmp_path / "v") == {"changed": ["a/000.jpg"]}
    assert read == list(range(8))
    assert found(index, tmp_path / "v") == {"changed": ["a/000.jpg"]}
    assert len(read) == 16, "the next verification reads everything again"


def test_the_command_says_what_differs_and_ends_with_1(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "d")
    assert main(["data", "index", "folder:d"]) == 0
    assert "indexed 30 samples in 3 classes" in capsys.readouterr().out
    assert main(["data", "verify", "d.index"]) == 0
    assert "checked 30 samples" in capsys.readouterr().out
    for number in range(0, 30, 2):
        (tmp_path / "d" / "abc"[number % 3] / f"{number:03d}.jpg").write_bytes(b"x")
    assert main(["data", "verify", "d.index"]) == 1
    said = capsys.readouterr().out
    assert "changed    a/000.jpg has 1 bytes, 8 when it was indexed" in said
    assert "and 5 more" in said
    assert "15 changed" in said
    assert len((tmp_path / "data-verify/verification.csv").read_text().splitlines()) == 16
