"""Killed at any moment, an index, a verification and a packing continue, and end in the bytes of an unbroken one."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import crashes
import kinds
import vitlab
from stored_sets import photos, write_shards
from vitlab.data.sources.shards import INDEX
from vitlab.errors import SIGNAL_CODES
from vitlab.runs.datasets import index as indexing
from vitlab.runs.datasets import verify

KILLS = int(os.environ.get("VITLAB_KILLS", "8"))  # of each kind of work
SAMPLES = 120


def slowly(kind: type, seconds: float = 0.002) -> None:
    """Let every sample take a little longer, so that a kill finds the work unfinished."""
    do = kind.do

    def slow(self, part):
        for step in do(self, part):
            time.sleep(seconds)
            yield step

    kind.do = slow


def finish(work: Callable[..., object], *given: object, **named: object) -> None:
    """End this process with code 0, or with that of a signal."""
    try:
        work(*given, **named, quiet=True)
    except vitlab.Stopped as stop:
        os._exit(stop.exit_code)
    os._exit(0)


def index_folder(data: Path, out: Path) -> None:
    indexing.PER_PART = 7
    slowly(indexing.HashSamples)
    finish(vitlab.index_data, f"folder:{data}", out / "x.index")


def index_the_shards(data: Path, out: Path) -> None:
    slowly(indexing.ScanShards)
    finish(vitlab.index_data, f"shards:{data}?index={out}/x.index")


def pack(data: Path, out: Path) -> None:
    from vitlab.runs.datasets.pack import PackSamples

    slowly(PackSamples)
    finish(vitlab.pack_data, f"folder:{data}", out / "packed", per_shard=7)


def check(data: Path, out: Path) -> None:
    indexing.PER_PART = 7
    slowly(verify.CompareSamples)
    finish(vitlab.verify_data, out.parent / "known.index", out=out / "v")


def left(folder: Path) -> dict[str, bytes]:
    """Everything below a folder, hidden files too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def progress(out: Path) -> int:
    """How many files there are, of results and of parts."""
    return sum(len(files) for _, _, files in os.walk(out))  # ignores folders that are just being removed


@pytest.mark.slow
@pytest.mark.parametrize("work", [index_folder, index_the_shards, pack, check])
def test_killed_work_ends_in_the_bytes_of_unbroken_work(tmp_path, work):
    data, rng = tmp_path / "data", random.Random(work.__name__)
    if work is index_the_shards:
        write_shards(data, shards=20, samples=6)
    else:
        photos(data, SAMPLES)
    vitlab.index_data(data if work is index_the_shards else f"folder:{data}", tmp_path / "known.index", quiet=True)
    if work is check:
        (data / "a/003.jpg").write_bytes(b"changed")
        (data / "b/001.jpg").unlink()
    unbroken = tmp_path / "unbroken"
    unbroken.mkdir()
    assert crashes.code_of(crashes.start(work, data, unbroken)) == 0
    kills, rounds = 0, 0
    while kills < KILLS:
        out = tmp_path / f"out{rounds}"
        out.mkdir()
        rounds += 1
        while True:
            start, steps = progress(out), rng.randrange(1, 8)
            child = crashes.start(work, data, out)
            if crashes.wait_for(lambda goal=start + steps, out=out: progress(out) >= goal, child):
                time.sleep(rng.random() * 0.02)
                os.kill(child.pid, rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
            code = crashes.code_of(child)
            if code == 0:
                break
            assert code in (-signal.SIGKILL, SIGNAL_CODES[signal.SIGTERM], -signal.SIGTERM)
            kills += code == -signal.SIGKILL
        assert without_paths(left(out), out) == without_paths(left(unbroken), unbroken)


def without_paths(files: dict[str, bytes], folder: Path) -> dict[str, bytes]:
    return {name: data.replace(os.fsencode(folder), b"OUT") for name, data in files.items()}


@pytest.mark.slow
def test_a_quota_stops_the_work_and_more_room_continues_it(tmp_path):
    photos(tmp_path / "d", 30)
    (tmp_path / "unbroken").mkdir()
    assert crashes.code_of(crashes.start(pack, tmp_path / "d", tmp_path / "unbroken")) == 0
    (tmp_path / "out").mkdir()
    assert crashes.code_of(crashes.start(_within_a_quota, tmp_path / "d", tmp_path / "out")) == 3
    assert not (tmp_path / "out/packed" / INDEX).exists()
    assert crashes.code_of(crashes.start(pack, tmp_path / "d", tmp_path / "out")) == 0
    assert left(tmp_path / "out") == left(tmp_path / "unbroken")


def _within_a_quota(data: Path, out: Path) -> None:
    crashes.limit_files(20_000)
    try:
        vitlab.pack_data(f"folder:{data}", out / "packed", per_shard=7, quiet=True)
    except OSError as error:
        os._exit(3 if "large" in str(error) else 4)
    os._exit(0)


# -- Several processes -----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_bytes_do_not_depend_on_the_number_of_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(indexing, "PER_PART", 7)
    spec = photos(tmp_path / "d", 40)
    for jobs in (None, 2, 3):
        out = tmp_path / f"out{jobs}"
        vitlab.index_data(spec, out / "x.index", jobs=jobs, quiet=True)
        vitlab.pack_data(spec, out / "packed", per_shard=7, jobs=jobs, quiet=True)
        assert vitlab.verify_data(out / "x.index", out=out / "v", jobs=jobs, quiet=True).checked == 40
        assert vitlab.verify_data(out / "packed", out=out / "v", jobs=jobs, quiet=True).is_sound
        assert without_paths(left(out), out) == without_paths(left(tmp_path / "outNone"), tmp_path / "outNone")


@pytest.mark.slow
def test_ray_packs_the_same_bytes(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    kinds.stored_arrays(tmp_path)  # every worker opens it by its relative path
    here = vitlab.pack_data("npz:a.npz", "here", per_shard=1, quiet=True)
    there = vitlab.pack_data("npz:a.npz", "there", per_shard=1, jobs=2, ray="local", quiet=True)
    assert left(here.folder) == left(there.folder)
