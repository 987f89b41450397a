"""Tar shards written by the standard library: every sample found by its number, every oddity counted."""

import json
import multiprocessing
import operator
import os
import pickle
import subprocess
import sys
import tarfile
import textwrap
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from vitlab.data.images.refusals import LARGEST_FILE, BadImage, Reason
from vitlab.data.sources import shards
from vitlab.data.sources.shards import INDEX, ShardSource, index_folder


def tar_of(members, format=tarfile.PAX_FORMAT) -> bytes:
    """A tar of (name, bytes) or TarInfo, in order."""
    file = BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                name, data = member
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, BytesIO(data))
    return file.getvalue()


def info(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


def pair(key: str, label: int, suffix: str = "jpg") -> list[tuple[str, bytes]]:
    return [(f"{key}.{suffix}", f"image {key}".encode() * 40), (f"{key}.cls", str(label).encode())]


def opened(folder, **contents: bytes) -> ShardSource:
    for name, data in contents.items():
        (folder / f"{name}.tar").write_bytes(data)
    index_folder(folder)
    return ShardSource(folder)


def everything(source) -> dict[str, tuple[bytes, tuple[int, ...]]]:
    items = [source.item(i) for i in range(len(source))]
    assert [(item.id, item.labels) for item in items] == [(source.id(i), source.label(i)) for i in range(len(source))]
    return {item.id: (item.data, item.labels) for item in items}


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_sample_has_its_bytes_label_and_key(tmp_path, format):
    keys = ["000", "a/b/001", "deep/" + "x" * 90 + "/002"]
    keys += [] if format == tarfile.USTAR_FORMAT else ["y" * 180 + "/003", "ümlaut"]
    one = [member for n, key in enumerate(keys) for member in pair(key, n, ["jpg", "JPEG", "png", "webp"][n % 4])]
    source = opened(tmp_path, one=tar_of(one, format), two=tar_of(pair("000", 7), format))
    expected = {f"one/{key}": (f"image {key}".encode() * 40, (n,)) for n, key in enumerate(keys)}
    assert everything(source) == expected | {"two/000": (b"image 000" * 40, (7,))}
    assert source.class_names == tuple("01234567")
    assert source.excluded == {}


def test_labels_may_stand_in_json(tmp_path):
    members = [("a.png", b"A"), ("a.json", b'{"label": 3, "caption": "x"}'), ("b.json", b'{"cls": 4}'), ("b.jpg", b"B")]
    source = opened(tmp_path, s=tar_of(members))
    assert everything(source) == {"s/a": (b"A", (3,)), "s/b": (b"B", (4,))}


def test_classes_are_named_by_the_file_beside_the_shards(tmp_path):
    (tmp_path / "classnames.txt").write_text("tench\ngoldfish\n")
    assert opened(tmp_path, s=tar_of(pair("a", 1))).class_names == ("tench", "goldfish")
    with pytest.raises(ValueError, match="has too few names, 2"):
        opened(tmp_path, s=tar_of(pair("a", 2)))


def test_hostile_members_are_counted_and_the_rest_is_used(tmp_path):  # N27, F8
    before = {path.name for path in tmp_path.parent.iterdir()}
    members = [
        *pair("good", 1),
        *pair("../escape", 1),
        *pair("/etc/absolute", 1),
        *pair("a/../../b", 1),
        info("link.jpg", tarfile.SYMTYPE, "/etc/passwd"),
        info("hard.jpg", tarfile.LNKTYPE, "good.jpg"),
        info("device.jpg", tarfile.CHRTYPE),
        info("fifo.jpg", tarfile.FIFOTYPE),
        info("folder.jpg", tarfile.DIRTYPE),
        ("good.pkl", pickle.dumps(os.getcwd)),
        ("good.pyd", b"x"),
        ("good.txt", b"caption"),
        (".DS_Store", b"x"),
        *pair("last", 2),
    ]
    source = opened(tmp_path, s=tar_of(members))
    assert [source.id(i) for i in range(len(source))] == ["s/good", "s/last"]
    assert source.excluded == {"unsafe_name": 6, "link": 2, "device": 2, "pickle": 2, "other_member": 2}
    assert {path.name for path in tmp_path.iterdir()} == {"s.tar", INDEX}
    assert {path.name for path in tmp_path.parent.iterdir()} == before


def test_duplicate_keys_and_missing_labels_are_counted(tmp_path):  # E9
    members = [
        *pair("a", 1),
        *pair("b", 2),
        *[("a.jpg", b"another"), ("a.cls", b"5")],
        ("c.jpg", b"no label"),
        *[("d.jpg", b""), ("d.cls", b"-1")],
        *[("e.jpg", b""), ("e.cls", b"cat")],
        *[("f.jpg", b""), ("f.json", b'{"label": true}')],
        *[("g.jpg", b""), ("g.json", b"[" * 100_000)],
        *[("h.jpg", b""), ("h.json", b'{"caption": "no label"}')],
        *[("i.jpg", b""), ("i.cls", b"999999999")],
        ("j.cls", b"1"),
    ]
    source = opened(tmp_path, s=tar_of(members))
    assert everything(source) == {"s/a": (b"image a" * 40, (1,)), "s/b": (b"image b" * 40, (2,))}
    assert source.excluded == {"duplicate_key": 1, "missing_label": 2, "bad_label": 5, "label_without_image": 1}


def test_of_a_cut_shard_what_is_whole_is_used(tmp_path):
    whole = tar_of([member for n in range(5) for member in pair(str(n), n)])
    samples = 2048  # bytes: two headers, an image and a label in a block each
    for cut, (used, missing) in {
        samples * 3: (3, 0),
        samples * 3 + 100: (3, 0),
        samples * 3 + 512 + 100: (3, 0),
        samples * 3 + 1024: (3, 1),
        samples * 3 + 1024 + 512: (3, 1),
    }.items():
        source = opened(tmp_path, cut=whole[:cut], whole=tar_of(pair("z", 0)))
        assert [source.id(i) for i in range(len(source))] == [f"cut/{n}" for n in range(used)] + ["whole/z"]
        assert source.excluded == {"truncated": 1} | ({"missing_label": missing} if missing else {}), cut


def test_a_broken_header_or_a_hole_ends_the_shard_and_is_counted(tmp_path):
    whole = tar_of([member for n in range(4) for member in pair(str(n), n)])
    for junk in (b"junk" * 128, bytes(512)):
        source = opened(tmp_path, s=whole[:4096] + junk + whole[4608:])
        assert len(source) == 2
        assert source.excluded == {"damaged": 1}


def test_an_extended_header_cannot_ask_for_memory(tmp_path):
    huge = tarfile.TarInfo("x.jpg")
    huge.pax_headers = {"comment": "x" * 3_000_000}
    source = opened(tmp_path, s=tar_of(pair("a", 0))[:2048] + tar_of([huge]))
    assert (len(source), source.excluded) == (1, {"damaged": 1})


def test_an_oversized_image_is_refused_unread(tmp_path):
    big = tarfile.TarInfo("big.jpg")
    big.size = LARGEST_FILE + 1
    with (tmp_path / "s.tar").open("wb") as file:
        file.write(big.tobuf())
        file.seek(-(-big.size // 512) * 512, 1)
        file.write(tar_of([("big.cls", b"0")]))
    index_folder(tmp_path)
    with pytest.raises(BadImage) as caught:
        ShardSource(tmp_path).item(0)
    assert caught.value.reason == Reason.too_large


def test_a_changed_shard_must_be_indexed_again(tmp_path):
    source = opened(tmp_path, s=tar_of([*pair("a", 0), *pair("b", 1)]))
    first = source.item(0)
    (tmp_path / "s.tar").write_bytes(tar_of([*pair("b", 1), *pair("a", 0)]))
    os.utime(tmp_path / "s.tar", ns=(5, 5))
    with pytest.raises(
        ValueError, match=r"shard s\.tar of .* changed since it was indexed; index the shards: vitlab data index"
    ):
        ShardSource(tmp_path)
    with pytest.raises(BadImage, match="changed since it was opened") as caught:
        source.item(0)
    assert caught.value.reason == Reason.changed
    index_folder(tmp_path)
    assert ShardSource(tmp_path).item(1) == first
    (tmp_path / "t.tar").write_bytes(tar_of(pair("a", 0)))
    with pytest.raises(ValueError, match=r"has other shards than were indexed: \['t\.tar'\]"):
        ShardSource(tmp_path)


def test_without_an_index_or_with_a_damaged_one_the_error_says_what_to_do(tmp_path):
    (tmp_path / "s.tar").write_bytes(tar_of(pair("a", 0)))
    with pytest.raises(FileNotFoundError, match="index the shards: vitlab data index"):
        ShardSource(tmp_path)
    index_folder(tmp_path)
    whole = (tmp_path / INDEX).read_bytes()
    for damaged in (b"", whole[:-1], whole + b"x", b"X" + whole[1:], whole[:8] + b"\xff" * 8 + whole[16:]):
        (tmp_path / INDEX).write_bytes(damaged)
        with pytest.raises(ValueError, match="index the shards: vitlab data index"):
            ShardSource(tmp_path)


def test_folders_without_usable_shards_are_errors(tmp_path):
    (tmp_path / "s.tar.gz").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"decompress .tar.gz files first"):
        index_folder(tmp_path)
    (tmp_path / "s.tar").write_bytes(tar_of([("a.jpg", b"")]))
    with pytest.raises(ValueError, match=r"no labelled images .* left out: 1 image without a label"):
        index_folder(tmp_path)
    assert not (tmp_path / INDEX).exists()
    os.mkfifo(tmp_path / "t.tar")
    with pytest.raises(ValueError, match="is a FIFO"):
        index_folder(tmp_path)


def test_an_index_may_lie_elsewhere(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/s.tar").write_bytes(tar_of(pair("a", 4)))
    index_folder(tmp_path / "data", tmp_path / "mine")
    assert ShardSource(tmp_path / "data", tmp_path / "mine").label(0) == (4,)
    assert [file.name for file in (tmp_path / "data").iterdir()] == ["s.tar"]


def test_shards_stay_open_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MOST_OPEN", 3)
    source = opened(tmp_path, **{f"s{n}": tar_of(pair("a", n)) for n in range(8)})
    for index in [*range(8), *range(8)]:
        assert source.item(index).labels == (index,)
    files = [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    assert len([file for file in files if file.endswith(".tar") and file.startswith(str(tmp_path))]) == 3


def test_shards_read_the_same_in_another_process(tmp_path):
    source = opened(tmp_path, s=tar_of([*pair("a", 0), *pair("b", 1)]))
    source.item(0)
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.apply(operator.methodcaller("item", 1), (source,)) == source.item(1)
    assert len(pickle.dumps(source)) < 1000
    for index in (-1, 2):
        with pytest.raises(IndexError):
            source.item(index)


def write_index(folder, entries: int) -> None:
    """An index in the documented layout, for one shard, of keys of 8 digits."""
    record = np.dtype("<u8,<u8,<u4,<u4,<u4,<i4")
    status = (folder / "s.tar").stat()
    meta = json.dumps(
        {"version": 1, "classes": 1000, "excluded": {}, "shards": [["s.tar", status.st_size, status.st_mtime_ns]]}
    ).encode()
    with (folder / INDEX).open("wb") as file:
        file.write(b"VITSHRD1" + np.array([entries, 8 * entries, len(meta)], "<u8").tobytes() + bytes(32))
        for start in range(0, entries, 1_000_000):
            numbers = np.arange(start, min(start + 1_000_000, entries))
            records = np.zeros(len(numbers), record)
            records["f0"], records["f1"], records["f2"] = 8 * numbers, 512 * (numbers % 3), 5
            records["f3"], records["f5"] = 8, numbers % 1000
            file.write(records.tobytes())
        powers = 10 ** np.arange(7, -1, -1)
        for start in range(0, entries, 1_000_000):
            numbers = np.arange(start, min(start + 1_000_000, entries))
            file.write((numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8).tobytes())
        file.write(meta)


@pytest.mark.slow
def test_an_index_of_ten_million_entries_opens_in_constant_memory_and_time(tmp_path):
    (tmp_path / "s.tar").write_bytes(bytes(range(256)) * 8)
    code = """
        import resource, sys, time
        from pathlib import Path
        from vitlab.data.sources.shards import ShardSource
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        before, start = peak(), time.perf_counter()
        source = ShardSource(Path(sys.argv[1]))
        seconds = time.perf_counter() - start
        last = len(source) - 1
        item = source.item(last)
        assert (item.id, item.labels) == (f"s/{last:08d}", (last % 1000,))
        assert item.data == bytes(range(5))
        sys.stdout.write(f"{seconds} {peak() - before}")
    """
    figures = {}
    for entries in (10, 10_000_000):
        write_index(tmp_path, entries)
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], capture_output=True, text=True, check=True
        )
        figures[entries] = [float(value) for value in done.stdout.split()]
    assert figures[10_000_000][0] < 0.5, figures
    assert figures[10_000_000][1] < figures[10][1] + 4096, figures  # KiB; the file has 400 MB
