"""Counts of what was requested, over all processes that read one data set."""

import contextlib
import os
import secrets
import shutil
import struct
import threading
import time
import weakref
from dataclasses import dataclass, fields
from pathlib import Path

from vitlab.files.store import make_folder
from vitlab.files.user_files import read_regular


@dataclass(frozen=True)
class Counts:
    """What the processes of a run have requested."""

    requests: int = 0  # attempts, with the failed ones
    retries: int = 0
    received: int = 0  # bytes
    cached: int = 0  # blocks found in the cache
    damaged: int = 0  # blocks of the cache that did not match their hash, and were fetched again

    def __str__(self) -> str:
        damaged = f", {self.damaged:,} damaged blocks of the cache fetched again" if self.damaged else ""
        return (
            f"{self.requests:,} requests, {self.retries:,} of them retries, {self.received / 1e6:,.1f} MB received, "
            f"{self.cached:,} blocks from the cache{damaged}"
        )


OLD = 30 * 24 * 3600  # seconds
RECORD = struct.Struct(f"<{len(fields(Counts))}q")


class Traffic:
    """Counters in a folder: one small file per process, which only that process writes.

    Worker processes come and go, so their counts have to be where the process that started them finds them. The folder
    is removed with the object that created it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / secrets.token_hex(8)
        self._begin()
        make_folder(self._folder)
        _remove_old(folder)
        weakref.finalize(self, _remove, self._folder, os.getpid())

    def _begin(self) -> None:
        self._process, self._lock, self._counts = 0, threading.Lock(), (0,) * len(fields(Counts))

    def __getstate__(self) -> Path:
        return self._folder

    def __setstate__(self, folder: Path) -> None:
        self._folder = folder
        self._begin()

    def add(self, requests: int = 0, retries: int = 0, received: int = 0, cached: int = 0, damaged: int = 0) -> None:
        """Add to the counts of this process."""
        process = os.getpid()
        if self._process != process:  # also after a fork, perhaps while another thread held the lock
            self._begin()
            self._process, self._counts = process, _read(self._folder / f"{process}")
        with self._lock, contextlib.suppress(OSError):  # counts are no reason to stop
            new = (requests, retries, received, cached, damaged)
            self._counts = tuple(a + b for a, b in zip(self._counts, new, strict=True))
            file = os.open(self._folder / f"{process}", os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(file, RECORD.pack(*self._counts), 0)
            finally:
                os.close(file)

    def total(self) -> Counts:
        """The counts of all processes together."""
        found = [_read(file) for file in self._folder.iterdir()] if self._folder.is_dir() else []
        return Counts(*(sum(column) for column in zip(*found, strict=True)))


def _read(file: Path) -> tuple[int, ...]:
    try:
        return RECORD.unpack(read_regular(file, RECORD.size))
    except (OSError, ValueError, struct.error):  # there is none yet
        return (0,) * len(fields(Counts))


def _remove_old(folder: Path) -> None:
    """Remove the counts of processes that were killed long ago."""
    for old in folder.iterdir():
        with contextlib.suppress(OSError):
            if old.stat().st_mtime < time.time() - OLD:
                shutil.rmtree(old, ignore_errors=True)


def _remove(folder: Path, process: int) -> None:
    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)
