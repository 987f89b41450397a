"""An index holds every sample of any data set, byte for byte, whoever made it and however often it was interrupted."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

import kinds
import vitlab
from nasty import NASTY
from stored_sets import photos, write_shards
from vitlab.cli import main
from vitlab.data.indexing.index_file import UNREADABLE, IndexFile
from vitlab.data.indexing.listing import write_listing
from vitlab.data.sources.catalogue import open_source
from vitlab.data.sources.folders import FolderSource
from vitlab.data.sources.shards import INDEX, ShardSource, index_folder
from vitlab.files.store import Locked, locked
from vitlab.runs.datasets import index as indexing


def rows(path: Path) -> dict[str, tuple[tuple[int, ...], int, str]]:
    """id -> labels, size, hash of an index."""
    return {os.fsdecode(row.id): (row.labels, row.size, row.hash.hex()) for row in IndexFile(path).rows()}


def blake(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def listed(spec: str, path: Path) -> list[tuple[str, tuple[int, ...]]]:
    write_listing(spec, path)
    return [(os.fsdecode(row.id), row.labels) for row in IndexFile(path).rows()]


# -- What is in it ---------------------------------------------------------------------------------


def test_the_index_of_a_folder_has_the_size_the_hash_and_the_class_of_every_file(tmp_path):
    made = vitlab.index_data(photos(tmp_path / "photos"), tmp_path / "x.index", quiet=True)
    files = sorted((tmp_path / "photos").rglob("*.jpg"))
    expected = {
        f"{file.parent.name}/{file.name}": (
            ("abc".index(file.parent.name),),
            file.stat().st_size,
            blake(file.read_bytes()),
        )
        for file in files
    }
    assert rows(made.path) == expected
    assert (made.samples, made.size) == (30, sum(file.stat().st_size for file in files))
    assert IndexFile(made.path).meta.class_names == made.class_names == ("a", "b", "c")
    assert {path.name for path in tmp_path.iterdir()} == {"photos", "x.index"}


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_every_kind_of_data_is_indexed_and_opens_as_before(kind, tmp_path):
    (tmp_path / "data").mkdir()
    spec, _ = kind(tmp_path / "data")
    made = vitlab.index_data(spec, None if kind is kinds.shards else tmp_path / "x.index", quiet=True)
    source = open_source(spec)
    found = [(row.labels, row.size) for row in IndexFile(made.path).rows()]
    data = [source.item(number) for number in range(len(source))]
    sizes = [len(item.data) if isinstance(item.data, bytes) else np.asarray(item.data).nbytes for item in data]
    if kind is kinds.objectnet:  # its files are indexed as they are, before their border is cut off
        sizes = [Path(source.paths()[number]).stat().st_size for number in range(len(source))]
    assert found == [(item.labels, size) for item, size in zip(data, sizes, strict=True)]
    assert made.class_names == source.class_names


def test_samples_with_several_labels_or_none_keep_them(tmp_path):
    photos(tmp_path, 4)
    (tmp_path / "t.csv").write_text("path,label\na/000.jpg,x;y\nb/001.jpg,\nc/002.jpg,y\n")
    made = vitlab.index_data(f"csv:{tmp_path}/t.csv?separator=;", tmp_path / "x.index", quiet=True)
    assert [labels for labels, *_ in rows(made.path).values()] == [(0, 1), (), (1,)]
    made = vitlab.index_data(f"pictures:{tmp_path}", tmp_path / "y.index", quiet=True)
    assert {labels for labels, *_ in rows(made.path).values()} == {()}


@pytest.mark.parametrize("names", ["words", "numbers"])
def test_a_folder_is_listed_as_it_is_opened(tmp_path, names):
    classes = ("cat", "dog", "emu", "fox") if names == "words" else ("1", "02", "10", "3")
    for place, name in enumerate(classes[:3]):
        for path in (f"{name}/a.jpg", f"{name}/deep/er/b.PNG", f"{name}/note.txt", f"{name}/.hidden.jpg"):
            (tmp_path / "d" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "d" / path).write_bytes(bytes([place]))
    (tmp_path / "d" / classes[3]).mkdir()
    (tmp_path / "d" / "stray.jpg").write_bytes(b"")
    source = FolderSource(tmp_path / "d")
    expected = [(source.id(number), source.label(number)) for number in range(len(source))]
    assert listed(f"folder:{tmp_path}/d", tmp_path / "x") == expected
    made = write_listing(f"folder:{tmp_path}/d", tmp_path / "x")
    assert IndexFile(tmp_path / "x").meta.class_names == source.class_names
    assert (made.excluded, made.excluded.kinds) == (source.excluded, source.excluded.kinds)


# -- Nasty data ------------------------------------------------------------------------------------


def test_files_that_cannot_be_read_are_indexed_as_such_and_named(tmp_path):
    folder = tmp_path / "photos" / "a"
    folder.mkdir(parents=True)
    for name, (data, _) in NASTY.items():
        (folder / name).write_bytes(data)
    os.mkfifo(folder / "fifo.jpg")
    (folder / "loop.jpg").symlink_to("loop.jpg")
    (folder / "nothing.jpg").symlink_to("gone")
    (folder / "outside.jpg").symlink_to("/etc/passwd")
    (folder / "folder.jpg").mkdir()
    (folder / "\udcff\udcfe.jpg").write_bytes(b"broken name")  # not valid UTF-8
    made = vitlab.index_data(f"folder:{tmp_path}/photos", tmp_path / "x.index", quiet=True)
    found = rows(made.path)
    bad = {name for name, (_, size, _) in found.items() if size == UNREADABLE}
    assert bad == {f"a/{name}.jpg" for name in ("fifo", "loop", "nothing", "outside", "folder")}
    assert (made.unreadable, len(made.problems)) == (5, 5)
    assert "a/fifo.jpg is a FIFO or a device" in "\n".join(made.problems)
    assert found["a/n25 =cmd<img onerror>\n\u202e.png"][2] == blake(NASTY["n25 =cmd<img onerror>\n\u202e.png"][0])
    assert found["a/\udcff\udcfe.jpg"][1] == len(b"broken name")
    assert all("\n" not in line and "\u202e" not in line for line in made.lines())


def test_data_that_is_drawn_has_nothing_to_index(tmp_path):
    with pytest.raises(ValueError, match="drawn on demand"):
        vitlab.index_data("fractals?images=4&classes=2", tmp_path / "x.index", quiet=True)


def test_a_file_that_is_no_index_is_not_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("words")
    with pytest.raises(ValueError, match="exists and is not an index"):
        vitlab.index_data(photos(tmp_path / "p"), tmp_path / "thesis.txt", quiet=True)
    assert (tmp_path / "thesis.txt").read_text() == "words"


def test_a_plain_folder_without_shards_says_what_to_give(tmp_path):
    photos(tmp_path / "p")
    with pytest.raises(ValueError, match=r"has no \*\.tar files; for class folders of images give folder:"):
        vitlab.index_data(tmp_path / "p", quiet=True)


def test_a_second_process_is_refused(tmp_path):
    spec = photos(tmp_path / "p")
    with locked(tmp_path / "x.index.parts"), pytest.raises(Locked, match="in use"):
        vitlab.index_data(spec, tmp_path / "x.index", quiet=True)


# -- Shards ----------------------------------------------------------------------------------------


def test_shards_indexed_in_parts_are_those_indexed_at_once(tmp_path):
    write_shards(tmp_path / "d")
    index_folder(tmp_path / "d")
    whole = (tmp_path / "d" / INDEX).read_bytes()
    made = vitlab.index_data(tmp_path / "d", quiet=True)
    assert made.path.read_bytes() == whole
    assert made.spec == f"shards:{tmp_path / 'd'}"
    assert rows(made.path)["3"] == ((3,), 150, blake(b"2 3" * 50))
    shard = IndexFile(made.path).meta.shard_entries[1]
    assert (shard.name, shard.samples, shard.hash) == ("s1.tar", 4, blake((tmp_path / "d/s1.tar").read_bytes()))
    source = ShardSource(tmp_path / "d")
    assert source.item(7).data == b"1 3" * 50


def test_compressed_shards_beside_others_are_counted(tmp_path):
    write_shards(tmp_path / "d")
    (tmp_path / "d/s3.tar.gz").write_bytes(b"")
    made = vitlab.index_data(tmp_path / "d", quiet=True)
    assert "excluded 1 compressed tar file, which is not read ('s3.tar.gz')" in list(made.lines())
    assert vitlab.open_data(made.spec).excluded == {"compressed_shard": 1}


def refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a path unreadable, also for root."""
    scandir, open_file = os.scandir, os.open

    def guarded(call):
        def opened(given, *more, **options):
            if str(given) == str(path):
                raise PermissionError(13, "Permission denied", str(path))
            return call(given, *more, **options)

        return opened

    monkeypatch.setattr(os, "scandir", guarded(scandir))
    monkeypatch.setattr(os, "open", guarded(open_file))


def test_a_class_folder_or_a_shard_without_permission_is_named_with_a_way_out(tmp_path, monkeypatch):
    spec = photos(tmp_path / "p")
    write_shards(tmp_path / "d")
    for data, path in ((spec, tmp_path / "p/b"), (tmp_path / "d", tmp_path / "d/s1.tar")):
        with monkeypatch.context() as patch:
            refused(path, patch)
            with pytest.raises(PermissionError, match=f"{path} cannot be read: permission denied; give yourself"):
                vitlab.index_data(data, tmp_path / "x.index", quiet=True)


def test_a_fifo_named_like_a_shard_is_named_with_a_way_out(tmp_path):
    write_shards(tmp_path / "d")
    os.mkfifo(tmp_path / "d/f.tar")
    with pytest.raises(ValueError, match=r"f\.tar is a FIFO, not a shard; move it out of the data"):
        vitlab.index_data(tmp_path / "d", quiet=True)


def test_an_index_elsewhere_opens_the_shards(tmp_path):
    write_shards(tmp_path / "d")
    made = vitlab.index_data(tmp_path / "d", tmp_path / "mine.index", quiet=True)
    assert len(vitlab.open_data(made.spec)) == 12
    assert not (tmp_path / "d" / INDEX).exists()


# -- Parts -----------------------------------------------------------------------------------------


def test_the_index_does_not_depend_on_the_size_of_the_parts(tmp_path, monkeypatch):
    spec, made = photos(tmp_path / "p"), set()
    for size in (1, 7, 30, 4096):
        monkeypatch.setattr(indexing, "PER_PART", size)
        made.add(vitlab.index_data(spec, tmp_path / "x.index", quiet=True).path.read_bytes())
    assert len(made) == 1


def test_an_interrupted_index_continues_and_reads_nothing_twice(tmp_path, monkeypatch):
    spec = photos(tmp_path / "p")
    monkeypatch.setattr(indexing, "PER_PART", 4)
    whole = vitlab.index_data(spec, tmp_path / "whole.index", quiet=True).path.read_bytes()
    do, read = indexing.HashSamples.do, []

    def until_third(self, part):
        if len(read) == 3:
            raise OSError(28, "No space left on device")
        read.append(part)
        return do(self, part)

    monkeypatch.setattr(indexing.HashSamples, "do", until_third)
    with pytest.raises(OSError, match="No space left"):
        vitlab.index_data(spec, tmp_path / "x.index", quiet=True)
    assert read == [0, 1, 2]
    assert not (tmp_path / "x.index").exists()
    monkeypatch.setattr(indexing.HashSamples, "do", lambda self, part: read.append(part) or do(self, part))
    made = vitlab.index_data(spec, tmp_path / "x.index", quiet=True)
    assert read == list(range(8))
    assert made.path.read_bytes() == whole
    assert not (tmp_path / "x.index.parts").exists()


def test_parts_of_other_data_are_not_used(tmp_path, monkeypatch):
    spec = photos(tmp_path / "p")
    monkeypatch.setattr(indexing, "PER_PART", 4)
    parts = tmp_path / "x.index.parts"
    with monkeypatch.context() as patch:
        patch.setattr(indexing, "_merge_samples", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            vitlab.index_data(spec, tmp_path / "x.index", quiet=True)
    assert len(list(parts.glob("*.part"))) == 8
    (tmp_path / "p/a/000.jpg").rename(tmp_path / "p/a/new.jpg")
    (tmp_path / "p/a/new.jpg").write_bytes(b"other")
    made = vitlab.index_data(spec, tmp_path / "x.index", quiet=True)
    assert rows(made.path)["a/new.jpg"][2] == blake(b"other")
    assert "a/000.jpg" not in rows(made.path)


# -- An older index --------------------------------------------------------------------------------


def shards(root: Path) -> str:
    write_shards(root)
    return f"shards:{root}"


@pytest.mark.parametrize("make", [photos, shards], ids=["folder", "shards"])
def test_an_index_of_data_that_has_changed_is_kept_unless_it_may_be_replaced(tmp_path, monkeypatch, capsys, make):
    monkeypatch.chdir(tmp_path)
    spec, index = make(tmp_path / "d"), tmp_path / "x.index"
    before = vitlab.index_data(spec, index, quiet=True).path.read_bytes()
    assert main(["data", "index", spec, "--out", "x.index"]) == 0
    assert "replaced" not in capsys.readouterr().out
    assert index.read_bytes() == before
    if make is photos:
        (tmp_path / "d/a/003.jpg").write_bytes(b"other")
        (tmp_path / "d/b/001.jpg").unlink()
        counts, name = "1 sample with other contents, 1 sample missing", "a/003.jpg"
    else:
        shard = tmp_path / "d/s1.tar"
        shard.write_bytes(shard.read_bytes().replace(b"1 3" * 50, b"9 3" * 50))
        (tmp_path / "d/s2.tar").unlink()
        counts, name = "1 sample with other contents, 4 samples missing", "s1/3"
    assert main(["data", "index", spec, "--out", "x.index"]) == 2
    said = capsys.readouterr().err
    assert counts in said
    assert name in said
    assert "give --replace" in said
    assert index.read_bytes() == before
    assert main(["data", "index", spec, "--out", "x.index", "--replace"]) == 0
    assert (
        "replaced an index that is not of this data any more: 1 sample with other contents" in capsys.readouterr().out
    )
    assert vitlab.verify_data(index, out=tmp_path / "v", quiet=True).is_sound


def relabelled(root: Path) -> str:
    """A table of four images, of which one gets another label."""
    if not root.exists():
        photos(root, 4)
    last = "cat" if (root / "t.csv").exists() else "dog"
    (root / "t.csv").write_text(f"path,label\na/000.jpg,cat\nb/001.jpg,dog\nc/002.jpg,cat\na/003.jpg,{last}\n")
    return f"csv:{root}/t.csv"


def relabelled_shards(root: Path) -> str:
    """Shards, in which a label is overwritten the second time."""
    shard = root / "s0.tar"
    if not root.exists():
        write_shards(root)
    else:
        data = shard.read_bytes()
        place = data.index(b"3.cls") + 512
        shard.write_bytes(data[:place] + b"2" + data[place + 1 :])
    return f"shards:{root}"


def renamed_classes(root: Path) -> str:
    """Shards with class names, of which two change places the second time."""
    names = "ape\ncat\nbee\ndog\n" if root.exists() else "ape\nbee\ncat\ndog\n"
    write_shards(root)
    (root / "classnames.txt").write_text(names)
    return f"shards:{root}"


@pytest.mark.parametrize(
    ("make", "lost"),
    [
        (relabelled, "1 sample with another label"),
        (relabelled_shards, "1 sample with another label"),
        (renamed_classes, "2 classes missing or renumbered"),
    ],
)
def test_an_index_of_other_labels_or_classes_is_kept_unless_it_may_be_replaced(tmp_path, make, lost):
    index = vitlab.index_data(make(tmp_path / "d"), tmp_path / "x.index", quiet=True).path
    before = index.read_bytes()
    spec = make(tmp_path / "d")
    with pytest.raises(ValueError, match=f"is kept: {lost}"):
        vitlab.index_data(spec, index, quiet=True)
    assert index.read_bytes() == before
    assert lost in "\n".join(vitlab.index_data(spec, index, replace=True, quiet=True).lines())


def test_a_damaged_index_is_kept_unless_it_may_be_replaced(tmp_path):
    spec = photos(tmp_path / "d")
    index = vitlab.index_data(spec, tmp_path / "x.index", quiet=True).path
    whole = index.read_bytes()
    for damaged in (whole[:-1], whole[:70] + bytes([whole[70] ^ 1]) + whole[71:]):
        index.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"is damaged, so it cannot be compared .* give replace=True"):
            vitlab.index_data(spec, index, quiet=True)
        assert index.read_bytes() == damaged
        assert vitlab.index_data(spec, index, replace=True, quiet=True).path.read_bytes() == whole


def test_classes_and_samples_that_are_added_replace_an_index(tmp_path):
    spec = photos(tmp_path / "d")
    vitlab.index_data(spec, tmp_path / "x.index", quiet=True)
    (tmp_path / "d/0").mkdir()  # the first class, so that all others are renumbered
    (tmp_path / "d/0/new.jpg").write_bytes(b"new")
    made = vitlab.index_data(spec, tmp_path / "x.index", quiet=True)
    assert (made.samples, made.replaced) == (31, {})


def test_index_shards_replaces_neither_other_files_nor_an_index_of_data_that_has_changed(tmp_path):
    write_shards(tmp_path / "d")
    (tmp_path / "victim.jpg").write_bytes(b"a photograph")
    with pytest.raises(ValueError, match="exists and is not an index"):
        vitlab.index_shards(tmp_path / "d", tmp_path / "victim.jpg")
    assert (tmp_path / "victim.jpg").read_bytes() == b"a photograph"
    made = vitlab.index_shards(tmp_path / "d")
    assert (made.spec, made.samples, made.excluded) == (f"shards:{tmp_path / 'd'}", 12, {})
    (tmp_path / "d/s0.tar").unlink()
    with pytest.raises(ValueError, match="is kept: 4 samples missing"):
        vitlab.index_shards(tmp_path / "d")
    assert vitlab.index_shards(tmp_path / "d", replace=True).samples == 8
