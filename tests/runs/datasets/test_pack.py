"""Packed shards hold the same images, labels and classes, in the same bytes however they were made."""

import json
import os
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import kinds
import vitlab
from nasty import NASTY
from pictures import photo, saved
from stored_sets import photos
from vitlab.cli import main
from vitlab.data.images import gate
from vitlab.data.indexing.index_file import IndexFile
from vitlab.data.sources.catalogue import open_source
from vitlab.data.sources.shards import INDEX, index_folder
from vitlab.files.store import Locked, locked
from vitlab.runs.datasets import pack as packing
from vitlab.runs.datasets.index import PACK


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def pixels(source, number: int) -> np.ndarray:
    return np.asarray(source[number][0])


def test_a_packed_folder_has_the_same_files_labels_and_classes(tmp_path):
    spec = photos(tmp_path / "d")
    made = vitlab.pack_data(spec, tmp_path / "out", per_shard=8, quiet=True)
    assert (made.samples, made.shards, made.left_out) == (30, 4, 0)
    before, after = open_source(spec), open_source(made.spec)
    assert after.class_names == before.class_names
    for number in range(30):
        assert (after.item(number).data, after.label(number)) == (before.item(number).data, before.label(number))
    names = {"classnames.txt", INDEX, PACK, *(f"data-00000{n}.tar" for n in range(4))}
    assert set(files(tmp_path / "out")) == names


def test_other_tools_read_the_shards(tmp_path):
    vitlab.pack_data(photos(tmp_path / "d", 3), tmp_path / "out", quiet=True)
    with tarfile.open(tmp_path / "out/data-000000.tar") as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar}
    assert list(found) == [f"00000000{n}.{suffix}" for n in range(3) for suffix in ("jpg", "cls", "json")]
    assert found["000000002.jpg"] == (tmp_path / "d/c/002.jpg").read_bytes()
    assert json.loads(found["000000002.json"]) == {"id": "c/002.jpg", "label": 2}
    assert found["000000002.cls"] == b"2"


def test_the_index_of_a_pack_is_that_of_its_shards(tmp_path):
    vitlab.pack_data(photos(tmp_path / "d"), tmp_path / "out", per_shard=8, quiet=True)
    packed = IndexFile(tmp_path / "out" / INDEX)
    index_folder(tmp_path / "out", tmp_path / "again")
    again = IndexFile(tmp_path / "again")
    assert (again.records(0, 30) == packed.records(0, 30)).all()
    assert list(again.rows()) == list(packed.rows())
    assert again.meta.class_names == packed.meta.class_names
    shards = [entry._replace(modified=None) for entry in again.meta.shard_entries]
    assert shards == list(packed.meta.shard_entries)


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_every_kind_of_data_can_be_packed(kind, tmp_path):
    (tmp_path / "d").mkdir()
    spec, _ = kind(tmp_path / "d")
    if kind is kinds.shards:
        index_folder(tmp_path / "d")
    before = open_source(spec)
    after = open_source(vitlab.pack_data(spec, tmp_path / "out", quiet=True).spec)
    assert after.class_names == before.class_names
    assert [after.label(n) for n in range(len(after))] == [before.label(n) for n in range(len(before))]
    for number in range(len(before)):
        assert np.array_equal(pixels(after, number), pixels(before, number))
    assert vitlab.verify_data(tmp_path / "out", out=tmp_path / "v", quiet=True).is_sound


def test_nasty_files_are_packed_or_named(tmp_path):
    folder = tmp_path / "d" / "a\nb"  # a class that a text file cannot hold
    folder.mkdir(parents=True)
    for name, (data, _) in NASTY.items():
        (folder / name).write_bytes(data)
    (folder / "frames.gif").write_bytes(saved(photo(), "GIF"))
    os.mkfifo(folder / "fifo.jpg")
    (folder / "loop.jpg").symlink_to("loop.jpg")
    (folder / "\udcff.jpg").write_bytes(b"name")
    made = vitlab.pack_data(f"folder:{tmp_path}/d", tmp_path / "out", quiet=True)
    after = open_source(made.spec)
    assert (made.samples, made.left_out, made.converted) == (len(NASTY) + 2, 2, 3)
    assert after.class_names == ("a\nb",)
    assert not (tmp_path / "out/classnames.txt").exists()
    assert after.excluded == {"unreadable": 2}
    named = (tmp_path / "out/left-out.csv").read_text()
    assert "fifo.jpg" in named
    assert "loop.jpg" in named
    assert named.count("\n") == 3
    assert all("\n" not in line for line in made.lines())


def test_samples_need_one_label(tmp_path):
    photos(tmp_path)
    with pytest.raises(ValueError, match="has 0 labels, and shards hold one"):
        vitlab.pack_data(f"pictures:{tmp_path}", tmp_path / "out", quiet=True)
    assert not (tmp_path / "out" / PACK).exists()


def test_a_folder_of_other_files_or_another_pack_is_refused(tmp_path):
    spec = photos(tmp_path / "d")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/words.txt").write_text("words")
    with pytest.raises(FileExistsError, match="contains other files"):
        vitlab.pack_data(spec, tmp_path / "thesis", quiet=True)
    vitlab.pack_data(spec, tmp_path / "out", quiet=True)
    before = files(tmp_path / "out")
    with pytest.raises(ValueError, match=r"has a pack of 'folder:.*with other samples or settings"):
        vitlab.pack_data(spec, tmp_path / "out", per_shard=5, quiet=True)
    (tmp_path / "d/a/more.jpg").write_bytes(b"more")
    with pytest.raises(ValueError, match="with other samples"):
        vitlab.pack_data(spec, tmp_path / "out", quiet=True)
    assert files(tmp_path / "out") == before


def test_packing_again_changes_nothing(tmp_path):
    spec = photos(tmp_path / "d")
    first = vitlab.pack_data(spec, tmp_path / "out", per_shard=8, quiet=True)
    inodes = {path.name: path.stat().st_ino for path in (tmp_path / "out").iterdir()}
    assert vitlab.pack_data(spec, tmp_path / "out", per_shard=8, quiet=True) == first
    assert {path.name: path.stat().st_ino for path in (tmp_path / "out").iterdir()} == inodes


def test_a_second_process_is_refused(tmp_path):
    spec = photos(tmp_path / "d")
    with locked(tmp_path / "out" / ".vitlab-parts"), pytest.raises(Locked, match="in use"):
        vitlab.pack_data(spec, tmp_path / "out", quiet=True)


# -- A finished pack -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["removed", "cut", "flipped", "flipped and its time kept"])
def test_packing_again_writes_missing_and_damaged_shards_again(tmp_path, capsys, how):
    spec, out = photos(tmp_path / "d"), tmp_path / "out"
    vitlab.pack_data(spec, out, per_shard=8, quiet=True)
    before, inode = files(out), (out / "data-000000.tar").stat().st_ino
    shard = out / "data-000002.tar"
    status, data = shard.stat(), bytearray(shard.read_bytes())
    data[600] ^= 1
    if how == "removed":
        shard.unlink()
    else:
        shard.write_bytes(data[:1000] if how == "cut" else data)
    if "kept" in how:
        os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert main(["data", "pack", spec, str(out), "--per-shard", "8"]) == 0
    assert "data-000002.tar" in "".join(capsys.readouterr())
    assert files(out) == before
    assert (out / "data-000000.tar").stat().st_ino == inode, "the other shards are left alone"


def test_packing_again_writes_lost_class_names_again(tmp_path):
    spec, out = photos(tmp_path / "d"), tmp_path / "out"
    vitlab.pack_data(spec, out, quiet=True)
    before = files(out)
    (out / "classnames.txt").write_text("x\ny\nz\n")
    vitlab.pack_data(spec, out, quiet=True)
    assert files(out) == before


def test_packing_again_refuses_a_source_that_has_changed(tmp_path):
    spec, out = photos(tmp_path / "d"), tmp_path / "out"
    vitlab.pack_data(spec, out, quiet=True)
    before = files(out)
    (tmp_path / "d/a/000.jpg").write_bytes(b"IMAGE 0 ")
    with pytest.raises(ValueError, match=r"other sizes or times than when they were packed .*remove .* and pack again"):
        vitlab.pack_data(spec, out, quiet=True)
    assert files(out) == before


def test_packing_again_refuses_a_damaged_index_and_strange_shards(tmp_path):
    spec, out = photos(tmp_path / "d"), tmp_path / "out"
    vitlab.pack_data(spec, out, quiet=True)
    (out / "more.tar").write_bytes(b"")
    with pytest.raises(ValueError, match=r"other shards: \['more.tar'\]"):
        vitlab.pack_data(spec, out, quiet=True)
    (out / "more.tar").unlink()
    data = bytearray((out / INDEX).read_bytes())
    data[100] ^= 1
    (out / INDEX).write_bytes(data)
    with pytest.raises(ValueError, match="is damaged; choose another folder, or remove"):
        vitlab.pack_data(spec, out, quiet=True)


def test_an_unfinished_pack_is_neither_indexed_nor_verified(tmp_path, monkeypatch):
    spec = photos(tmp_path / "d")
    with monkeypatch.context() as patch:
        patch.setattr(packing, "merge_shards", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            vitlab.pack_data(spec, tmp_path / "out", per_shard=8, quiet=True)
    again = f"out is an unfinished pack; to finish it, run vitlab data pack {spec} {tmp_path}/out --per-shard 8"
    with pytest.raises(ValueError, match=again):
        vitlab.index_data(tmp_path / "out", quiet=True)
    with pytest.raises(ValueError, match=again):
        vitlab.verify_data(tmp_path / "out", out=tmp_path / "v", quiet=True)
    assert vitlab.pack_data(spec, tmp_path / "out", per_shard=8, quiet=True).samples == 30
    assert vitlab.verify_data(tmp_path / "out", out=tmp_path / "v", quiet=True).is_sound


SECRET = "hunter2"


@pytest.mark.parametrize(
    "words",
    [
        ("check", f"https://user:{SECRET}@host.example/x"),
        ("check", "digits", "--against", f"shards:https://host.example/x?sig={SECRET}"),
        ("dedup", "digits", f"shards:https://host.example/x?sig={SECRET}"),
        ("index", f"shards:https://user:{SECRET}@host.example/x"),
        ("pack", f"shards:https://host.example/x?a=1&sig={SECRET}", "out"),
        ("pack", f"shards:https%3A//user:{SECRET}@host.example/x", "out"),
        ("verify", "x.index", "--data", f"shards:https://user:{SECRET}@host.example/x"),
        ("verify", f"s3://user:{SECRET}@host.example/x"),
        ("verify", f"shards:https://user:{SECRET}@host.example/x"),
    ],
    ids=" ".join,
)
def test_no_command_repeats_a_secret_in_an_address(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    vitlab.index_data(photos(tmp_path / "d"), "x.index", quiet=True)
    capsys.readouterr()
    assert main(["data", *words]) == 2
    said = capsys.readouterr()
    assert "credentials belong in the environment" in said.err
    assert SECRET not in said.out + said.err


def test_an_address_in_place_of_an_index_is_repeated_as_given(capsys):
    assert main(["data", "verify", "s3://pictures/packed"]) == 2
    said = capsys.readouterr().err
    assert "s3://pictures/packed names data, not its index" in said
    assert "--data shards:s3://pictures/packed" in said


def test_files_whose_format_needs_a_missing_package_stop_the_packing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    (tmp_path / "d/a").mkdir(parents=True)
    (tmp_path / "d/a/1.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    monkeypatch.setattr(gate, "check_structure", lambda *_: False)
    with pytest.raises(ValueError, match=r'a/1\.heic.* is HEIC, .* pip install "vitlab\[heic\]"'):
        vitlab.pack_data(f"folder:{tmp_path}/d", tmp_path / "out", quiet=True)


def test_files_that_cannot_be_decoded_keep_their_suffix_and_are_counted(tmp_path):
    (tmp_path / "d/a").mkdir(parents=True)
    for name, data in (("1.jpg", b"II*\0damaged"), ("2.avif", b"zeros"), ("3.jpg", b"zeros")):
        (tmp_path / "d/a" / name).write_bytes(data)
    made = vitlab.pack_data(f"folder:{tmp_path}/d", tmp_path / "out", quiet=True)
    with tarfile.open(tmp_path / "out/data-000000.tar") as tar:
        assert [name for name in tar.getnames() if "." in name and name[10:] not in ("cls", "json")] == [
            "000000000.tif",
            "000000001.avif",
            "000000002.jpg",
        ]
    assert "stored 3 samples that cannot be decoded" in "\n".join(made.lines())
    assert vitlab.index_data(tmp_path / "out", quiet=True).samples == 3
