"""What is written is written whole or not at all."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from vitlab.files import store
from vitlab.files.store import (
    LOCK,
    MANIFEST,
    Locked,
    is_locked,
    json_writer,
    locked,
    make_folder,
    remove_folder,
    remove_leftovers,
    replacing,
    verify_folder,
    write_folder,
)


def failing(path):
    path.write_text("half")
    raise OSError("disk full")


def test_a_folder_that_fails_halfway_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="disk full"):
        write_folder(tmp_path / "out", {"a.json": json_writer({"x": 1}), "b.bin": failing})
    assert not list(tmp_path.iterdir())


def test_a_file_that_fails_halfway_leaves_the_old_one(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(OSError, match="disk full"), replacing(tmp_path / "file") as temporary:
        failing(temporary)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_a_file_is_replaced_at_once(tmp_path):
    (tmp_path / "file").write_text("old")
    with replacing(tmp_path / "file") as temporary:
        temporary.write_text("new")
        assert (tmp_path / "file").read_text() == "old"
    assert (tmp_path / "file").read_text() == "new"


def test_everything_is_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    events = []
    from pathlib import Path

    sync, rename = os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda d: events.append(Path(f"/proc/self/fd/{d}").resolve().name) or sync(d))
    monkeypatch.setattr(Path, "rename", lambda a, b: events.append("rename") or rename(a, b))
    write_folder(tmp_path / "out", {"a.json": json_writer({})})
    temporary = next(name for name in events if name.startswith(".out.tmp"))
    assert events == ["a.json", MANIFEST, temporary, "rename", tmp_path.name]


def test_the_manifest_finds_missing_changed_and_unlisted_files(tmp_path):
    write_folder(tmp_path / "out", {"a": lambda p: p.write_text("one"), "b": lambda p: p.write_text("two")})
    verify_folder(tmp_path / "out", ["a", "b"])
    with pytest.raises(ValueError, match="does not list c"):
        verify_folder(tmp_path / "out", ["c"])
    (tmp_path / "out" / "a").write_text("eno")
    with pytest.raises(ValueError, match="SHA-256"):
        verify_folder(tmp_path / "out", ["a"])
    (tmp_path / "out" / "a").write_text("longer")
    with pytest.raises(ValueError, match="6 bytes"):
        verify_folder(tmp_path / "out", ["a"])
    (tmp_path / "out" / "a").unlink()
    with pytest.raises(ValueError, match="missing"):
        verify_folder(tmp_path / "out", ["a"])


def test_json_is_the_same_bytes_every_time(tmp_path):
    for name in ("one", "two"):
        json_writer({"b": 1, "a": "é"})(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert json.loads((tmp_path / "one").read_text()) == {"b": 1, "a": "é"}


def test_leftovers_of_dead_writers_go_and_nothing_else(tmp_path):
    for name in (".a.tmp-12", ".model.tmp-7", ".step-1.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("half")
    (tmp_path / ".file.json.tmp-5").write_text("half")
    kept = [".lock", ".hidden", "a.tmp-12", "b.old", ".tmp-5"]
    for name in kept:
        (tmp_path / name).write_text("whole")
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_a_folder_never_has_its_name_while_it_is_being_removed(tmp_path, monkeypatch):
    write_folder(tmp_path / "out", {"a": lambda p: p.write_text("one")})
    seen = []
    monkeypatch.setattr(shutil, "rmtree", lambda path: seen.append((path.name, (tmp_path / "out").exists())))
    remove_folder(tmp_path / "out")
    assert seen == [(".out.old", False)]


def test_the_names_of_new_folders_are_synced(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(store, "_sync", synced.append)
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]
    assert (tmp_path / "a" / "b").is_dir()


class TestLock:
    def test_this_process_does_not_enter_twice(self, tmp_path):
        with locked(tmp_path), pytest.raises(Locked, match="in use by this process already"), locked(tmp_path):
            pass

    def test_a_failure_frees_the_folder(self, tmp_path):
        with pytest.raises(RuntimeError, match="inside"), locked(tmp_path):
            raise RuntimeError("inside")
        with locked(tmp_path):
            assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"

    def test_the_note_of_a_dead_process_does_not_matter(self, tmp_path):
        (tmp_path / LOCK).write_text("99999999999\n")
        with locked(tmp_path):
            assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"

    def test_another_process_is_seen_without_taking_its_lock(self, tmp_path):
        assert not is_locked(tmp_path)
        code = (
            "import sys\nfrom pathlib import Path\nfrom vitlab.files.store import locked\n"
            "with locked(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()"
        )
        command = [sys.executable, "-c", code, str(tmp_path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() == "held\n"
            assert is_locked(tmp_path)
            with pytest.raises(Locked, match=str(child.pid)), locked(tmp_path):
                pass
            child.stdin.close()
        assert not is_locked(tmp_path)
        with locked(tmp_path):
            assert is_locked(tmp_path)
            check = "import sys; from vitlab.files.store import *; assert is_locked(Path(sys.argv[1]))"
            subprocess.run([sys.executable, "-c", check, str(tmp_path)], check=True)  # asking did not release it

    def test_a_lock_that_is_no_plain_file_is_not_held(self, tmp_path):
        os.mkfifo(tmp_path / LOCK)
        assert not is_locked(tmp_path)
        (tmp_path / LOCK).unlink()
        (tmp_path / LOCK).symlink_to(tmp_path / "elsewhere")
        assert not is_locked(tmp_path)
