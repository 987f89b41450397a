"""What is left when the power goes: everything that was not synced may be gone, and a checkpoint still loads."""

import itertools
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import crashes
from vitlab.files import store
from vitlab.files.strict_json import read_json
from vitlab.run_dir import CHECKPOINTS, RUN, RunDir
from vitlab.spec.recipe import AdamW
from vitlab.train.checkpoints.checkpoints import Checkpoints
from vitlab.train.checkpoints.files import LATEST, verify_checkpoint
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import TrainState


class Disk:
    """Records what is done to the files under `root`; says what a disk may hold that kept only what was synced.

    Folders are lists of changes to their names; a change is safe once its folder was synced, a file's content once the
    file was. Of the changes that are not safe, a journal keeps any beginning; of contents that are not, nothing.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.numbers = itertools.count(1)
        self.live: dict[Path, int] = {root: 0}  # path now -> number of the file or folder
        self.changes: list[tuple[int, str, int | None]] = []  # (folder, name, what it stands for from now on)
        self.safe: set[int] = set()  # changes that are on disk
        self.folders = {0}
        self.contents: dict[int, bytes] = {}
        self.check = lambda: None
        for operation in ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync"):
            self._record(operation, monkeypatch)

    def _record(self, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(os, operation)

        def recorded(first: object, *rest: object, **options: object) -> None:
            both = (first, *rest) if operation in ("rename", "replace") else (first,)
            paths = [self._path(path, options.get("dir_fd")) for path in both]
            if not paths[0].is_relative_to(self.root):
                real(first, *rest, **options)
                return
            self._notice()
            real(first, *rest, **options)
            if operation == "fsync":
                self._sync(paths[0])
            elif operation in ("rename", "replace"):
                self._move(*paths)
            elif operation != "mkdir":
                self._change(paths[0], None)
                del self.live[paths[0]]
            self._notice()
            self.check()

        monkeypatch.setattr(os, operation, recorded)

    def _path(self, path: str | Path | int, folder: int | None) -> Path:
        if isinstance(path, int):
            return Path(f"/proc/self/fd/{path}").readlink()
        return Path(f"/proc/self/fd/{folder}").readlink() / path if folder is not None else Path(path)

    def _notice(self) -> None:
        """Files and folders that are new."""
        for path in sorted(self.root.rglob("*")):
            if path not in self.live:
                self.live[path] = next(self.numbers)
                self._change(path, self.live[path])
                if path.is_dir():
                    self.folders.add(self.live[path])

    def _change(self, path: Path, number: int | None) -> None:
        self.changes.append((self.live[path.parent], path.name, number))

    def _move(self, old: Path, new: Path) -> None:
        number = self.live[old]
        self._change(new, number)
        self._change(old, None)
        moved = {p: n for p, n in self.live.items() if p.is_relative_to(old)}
        for path in moved:
            del self.live[path]
        self.live |= {new / path.relative_to(old): n for path, n in moved.items()}

    def _sync(self, path: Path) -> None:
        number = self.live[path]
        if number in self.folders:
            self.safe |= {i for i, (folder, _, _) in enumerate(self.changes) if folder == number}
        else:
            self.contents[number] = path.read_bytes()

    def after_power_loss(self) -> list[dict[str, bytes]]:
        """Every state that may be found: files by name."""
        pending = [i for i in range(len(self.changes)) if i not in self.safe]
        return [self._state(self.safe | set(pending[:kept])) for kept in range(len(pending) + 1)]

    def _state(self, kept: set[int]) -> dict[str, bytes]:
        entries: dict[int, dict[str, int]] = {}
        for i in sorted(kept):
            folder, name, number = self.changes[i]
            entries.setdefault(folder, {}).pop(name, None)
            if number is not None:
                entries[folder][name] = number
        found: dict[str, bytes] = {}

        def collect(folder: int, prefix: str) -> None:
            for name, number in entries.get(folder, {}).items():
                if number in self.folders:
                    collect(number, f"{prefix}{name}/")
                else:
                    found[prefix + name] = self.contents.get(number, b"")

        collect(0, "")
        return found


def intact(state: dict[str, bytes], folder: Path) -> dict[str, Path]:
    """The checkpoints of a state that are whole, laid out to be looked at."""
    for name, content in state.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    whole = {}
    for path in (folder / "run" / CHECKPOINTS).glob("step-*"):
        try:
            verify_checkpoint(path)
        except (OSError, ValueError):
            continue
        whole[path.name] = path
    return whole


def train_and_watch(root: Path, spare: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Make a run and save three times, keeping one; look at what is left at every moment. Returns how many looks."""
    seen: set[tuple[tuple[str, bytes], ...]] = set()
    promised: str | None = None
    has_run = False
    module = nn.Linear(3, 2)
    state = TrainState(module, make_optimizer(module, AdamW()))
    with monkeypatch.context() as patch:
        disk = Disk(root, patch)
        disk_is_watched = True

        def check() -> None:
            nonlocal disk_is_watched
            if not disk_is_watched:
                return
            disk_is_watched = False  # what is laid out for looking is none of its business
            for found in disk.after_power_loss():
                key = (*sorted(found.items()), ("promised", str(promised).encode()))
                if key in seen:
                    continue
                seen.add(key)
                folder = spare / str(len(seen))
                whole = intact(found, folder)
                if has_run:
                    assert f"run/{RUN}" in found, "the run is gone"
                    assert read_json(folder / "run" / RUN)
                if promised is not None:
                    assert max(whole, default="") >= promised, f"{promised} is gone; there are {sorted(whole)}"
                    assert found[f"run/{CHECKPOINTS}/{LATEST}"].decode().strip() in whole, "LATEST names nothing whole"
            disk_is_watched = True

        disk.check = check
        spec = crashes.small_run()
        run = RunDir.create(root / "run", spec, {})
        has_run = True
        checkpoints = Checkpoints(run.path / CHECKPOINTS, keep=1, environment={})
        for step in range(3):
            state.progress.step = step
            with torch.no_grad():
                module.weight += 1
            checkpoints.save(state, wait=True)
            promised = f"step-{step:08d}"
    return len(seen)


@pytest.fixture
def places(in_memory):
    for name in ("disk", "looks"):
        (in_memory / name).mkdir()
    return in_memory / "disk", in_memory / "looks"


@pytest.mark.slow
def test_what_was_saved_is_there_after_a_power_loss_at_any_moment(places, monkeypatch):
    assert train_and_watch(*places, monkeypatch) > 50


@pytest.mark.parametrize("skipped", ["files", "folders"])
def test_a_writer_that_does_not_sync_loses_a_checkpoint(places, monkeypatch, skipped):
    """The control: without the syncs of files, or of folders, the same watch finds the loss."""
    sync = store._sync
    monkeypatch.setattr(store, "_sync", lambda p: None if p.is_dir() == (skipped == "folders") else sync(p))
    with pytest.raises((AssertionError, OSError, ValueError), match=r"is gone|is not readable JSON"):
        train_and_watch(*places, monkeypatch)
