"""Continued work never relies on a finished part whose files have changed since."""

import os
from pathlib import Path

import pytest

import vitlab
from stored_sets import photos, write_shards
from vitlab.cli import main
from vitlab.runs.datasets import index as indexing
from vitlab.runs.datasets import pack, verify

PER_PART = 4


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    for module in (indexing, verify):
        monkeypatch.setattr(module, "PER_PART", PER_PART)


@pytest.fixture
def interrupted(monkeypatch):
    """Stop a call after some parts; afterwards a list has the parts that further calls do."""

    def interrupt(kind: type, parts: int, call, *given: object, **named: object) -> list[int]:
        do, done = kind.do, []

        def until(self, part):
            if len(done) == parts:
                raise OSError(5, "Input/output error")
            done.append(part)
            return do(self, part)

        with monkeypatch.context() as patch:
            patch.setattr(kind, "do", until)
            with pytest.raises(OSError, match="Input/output"):
                call(*given, **named, quiet=True)
        done.clear()
        monkeypatch.setattr(kind, "do", lambda self, part: done.append(part) or do(self, part))
        return done

    return interrupt


def damage(path: Path, *, is_time_kept: bool = False) -> None:
    """Change one byte."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    if is_time_kept:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("is_time_kept", [False, True])
def test_a_continued_verification_reads_changed_files_again(tmp_path, interrupted, is_time_kept):
    index = vitlab.index_data(photos(tmp_path / "d"), tmp_path / "x.index", quiet=True).path
    read = interrupted(verify.CompareSamples, 2, vitlab.verify_data, index, out=tmp_path / "v")
    damage(tmp_path / "d/a/000.jpg", is_time_kept=is_time_kept)
    found = vitlab.verify_data(index, out=tmp_path / "v", quiet=True)
    assert [difference.id for difference in found.first] == ["a/000.jpg"]
    assert read == [0, *range(2, 8)], "only the part of the changed file, and those that were missing"


def test_a_continued_verification_of_shards_reads_changed_shards_again(tmp_path, interrupted):
    write_shards(tmp_path / "d", shards=4)
    vitlab.index_data(tmp_path / "d", quiet=True)
    read = interrupted(verify.CompareShards, 3, vitlab.verify_data, tmp_path / "d", out=tmp_path / "v")
    damage(tmp_path / "d/s1.tar", is_time_kept=True)
    assert not vitlab.verify_data(tmp_path / "d", out=tmp_path / "v", quiet=True).is_sound
    assert read == [1, 3]


def test_a_continued_verification_of_arrays_reads_a_changed_file_again(tmp_path, interrupted):
    import numpy as np

    images, labels = np.zeros((10, 4, 4, 3), np.uint8), np.arange(10) % 2
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    index = vitlab.index_data(f"npz:{tmp_path}/a.npz", tmp_path / "x.index", quiet=True).path
    interrupted(verify.CompareSamples, 1, vitlab.verify_data, index, out=tmp_path / "v")
    images[0] = 7
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    assert vitlab.verify_data(index, out=tmp_path / "v", quiet=True).counts == {"changed": 1}


def test_a_continued_index_has_the_bytes_of_an_unbroken_one_though_a_file_has_changed(tmp_path, interrupted):
    spec = photos(tmp_path / "d")
    read = interrupted(indexing.HashSamples, 3, vitlab.index_data, spec, tmp_path / "x.index")
    damage(tmp_path / "d/a/015.jpg")  # in the second part
    made = vitlab.index_data(spec, tmp_path / "x.index", quiet=True).path.read_bytes()
    assert read == [1, *range(3, 8)]
    assert made == vitlab.index_data(spec, tmp_path / "unbroken.index", quiet=True).path.read_bytes()


def test_a_continued_index_of_shards_scans_a_changed_shard_again(tmp_path, interrupted):
    write_shards(tmp_path / "d", shards=4)
    read = interrupted(indexing.ScanShards, 2, vitlab.index_data, tmp_path / "d", tmp_path / "x.index")
    damage(tmp_path / "d/s0.tar")
    made = vitlab.index_data(tmp_path / "d", tmp_path / "x.index", quiet=True)
    assert read == [0, 2, 3]
    assert vitlab.verify_data(made.path, out=tmp_path / "v", quiet=True).is_sound


def test_a_continued_pack_writes_shards_of_changed_files_again(tmp_path, interrupted):
    spec = photos(tmp_path / "d")
    written = interrupted(pack.PackSamples, 2, vitlab.pack_data, spec, tmp_path / "out", per_shard=8)
    damage(tmp_path / "d/a/000.jpg")
    vitlab.pack_data(spec, tmp_path / "out", per_shard=8, quiet=True)
    assert written == [0, 2, 3]
    vitlab.pack_data(spec, tmp_path / "unbroken", per_shard=8, quiet=True)
    assert files(tmp_path / "out") == files(tmp_path / "unbroken")


@pytest.mark.parametrize("how", ["damaged", "removed"])
def test_a_continued_pack_writes_a_damaged_shard_again(tmp_path, interrupted, how):
    spec = photos(tmp_path / "d")
    written = interrupted(pack.PackSamples, 2, vitlab.pack_data, spec, tmp_path / "out", per_shard=8)
    shard = tmp_path / "out/data-000001.tar"
    damage(shard) if how == "damaged" else shard.unlink()
    vitlab.pack_data(spec, tmp_path / "out", per_shard=8, quiet=True)
    assert written == [1, 2, 3]
    assert vitlab.verify_data(tmp_path / "out", out=tmp_path / "v", quiet=True).is_sound


# -- Nothing is left of work that never began ------------------------------------------------------


def test_data_that_does_not_exist_leaves_nothing_behind(tmp_path):
    index = vitlab.index_data(photos(tmp_path / "d"), tmp_path / "x.index", quiet=True).path
    before = set(tmp_path.rglob("*"))
    for call, given in (
        (vitlab.pack_data, ("folder:nowhere", tmp_path / "deep/p")),
        (vitlab.index_data, ("folder:nowhere", tmp_path / "y.index")),
        (vitlab.verify_data, (index, "folder:nowhere", tmp_path / "v")),
    ):
        with pytest.raises(ValueError, match="nowhere"):
            call(*given, quiet=True)
        assert set(tmp_path.rglob("*")) == before


def test_workers_that_cannot_be_reached_leave_nothing_behind(tmp_path, monkeypatch):
    spec = photos(tmp_path / "d")
    before = set(tmp_path.rglob("*"))

    def refuse(*_: object) -> None:
        raise ValueError("no cluster of Ray at bogus:1")

    monkeypatch.setattr("vitlab.runs.datasets.parts.Crew.__enter__", refuse)
    with pytest.raises(ValueError, match="no cluster"):
        vitlab.index_data(spec, tmp_path / "r.index", quiet=True)
    assert set(tmp_path.rglob("*")) == before


# -- Outputs are local -----------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["s3://pictures/out", "gs://pictures/out", "https://host/out"])
def test_addresses_are_refused_as_outputs(tmp_path, monkeypatch, capsys, address):
    monkeypatch.chdir(tmp_path)
    spec = photos(Path("d"))
    vitlab.index_data(spec, "x.index", quiet=True)
    before = set(tmp_path.rglob("*"))
    for command in (
        ["pack", spec, address],
        ["index", spec, "--out", f"{address}/x.index"],
        ["verify", "x.index", "--out", address],
        ["dedup", spec, "digits", "--out", address],
    ):
        assert main(["data", *command]) == 2
        assert "only local folders are written" in capsys.readouterr().err
    for call, given in (
        (vitlab.pack_data, (spec, address)),
        (vitlab.index_data, (spec, address)),
        (vitlab.verify_data, ("x.index", None, address)),
        (vitlab.dedup, (spec, "digits", address)),
    ):
        with pytest.raises(ValueError, match="only local folders are written"):
            call(*given, quiet=True)
    assert set(tmp_path.rglob("*")) == before
