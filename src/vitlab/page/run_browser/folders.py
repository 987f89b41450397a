"""Find runs, sweeps, studies, evaluations and ledgers below a folder; unchanged folders are not read again."""

import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitlab.report.answers import RESULTS
from vitlab.report.ledger import LEDGER
from vitlab.require import require
from vitlab.run_dir import RUN, SWEEP
from vitlab.studies.study_file import ROW, STUDY

Kind = Literal["run", "sweep", "study", "row", "evaluation", "ledger"]
PROGRESS = "progress"  # a folder that every evaluation has
MARKS: dict[str, Kind] = {
    RUN: "run",
    SWEEP: "sweep",
    STUDY: "study",
    ROW: "row",
    RESULTS: "evaluation",
    LEDGER.name: "ledger",
}
WHOLE = ("run", "evaluation")  # folders below them are theirs
DEEPEST = 8  # folders below each other
MOST_FOLDERS, MOST_ENTRIES = 20_000, 20_000  # of all folders, of one
RECENT = 2.0  # seconds; a folder that has just changed may change again within the resolution of its time


@dataclass(frozen=True)
class Found:
    """Something found below the root. Its id says nothing about its path, and is the same in every process."""

    kind: Kind
    path: Path
    name: str  # of the folder, below the root

    @property
    def id(self) -> str:
        """A hash of kind and name."""
        return hashlib.sha256(f"{self.kind}\0".encode() + os.fsencode(self.name)).hexdigest()[:20]


@dataclass(frozen=True)
class _Scan:
    """What a folder held: what it is, and the folders in it with their inodes."""

    kinds: tuple[Kind, ...]
    folders: tuple[tuple[str, int], ...]
    changed: int  # when, in nanoseconds
    is_cut: bool  # there were too many entries
    is_settled: bool  # it had not just changed


class Folders:
    """The folders below a root. Symbolic links below the root are not followed."""

    def __init__(self, root: Path) -> None:
        require(root.is_dir(), f"{root} is not a folder; give the folder that holds your runs")
        self.root = root.resolve()
        self.is_cut = False  # there were too many folders or entries to look at all
        self._scans: dict[tuple[str, int], _Scan] = {}

    def find(self) -> dict[str, Found]:
        """Everything below the root, by id. The folder of a known run costs nothing, any other folder one stat."""
        found, scans, self.is_cut = {}, {}, False
        for name, key, scan in self._walk():
            scans[key] = scan
            self.is_cut |= scan.is_cut
            for kind in scan.kinds:
                one = Found(kind, self.root / name, name or ".")
                found[one.id] = one
        self._scans = scans
        return found

    def _walk(self) -> Iterator[tuple[str, tuple[str, int], _Scan]]:
        left, seen = [("", 0, 0)], 0
        while left:
            name, inode, depth = left.pop()
            if seen == MOST_FOLDERS:
                self.is_cut = True
                return
            seen += 1
            scan = self._scan(name, inode)
            if scan is None:
                continue
            yield name, (name, inode), scan
            if not set(scan.kinds) & set(WHOLE):
                is_deep = depth == DEEPEST
                self.is_cut |= is_deep and bool(scan.folders)
                inner = () if is_deep else scan.folders
                left += [(f"{name}/{one}" if name else one, number, depth + 1) for one, number in reversed(inner)]

    def _scan(self, name: str, inode: int) -> _Scan | None:
        """Look into a folder, unless it is known and unchanged; None if it has gone."""
        known = self._scans.get((name, inode))
        if known is not None and "run" in known.kinds:
            return known
        path = self.root / name
        try:
            changed = path.stat(follow_symlinks=False).st_mtime_ns
            if known is not None and known.is_settled and known.changed == changed:
                return known
            return _look(path, changed)
        except OSError:
            return None


def _look(path: Path, changed: int) -> _Scan:
    files, folders, is_cut = set(), [], False
    with os.scandir(path) as entries:
        for number, entry in enumerate(entries):
            if number == MOST_ENTRIES:
                is_cut = True
                break
            if entry.is_dir(follow_symlinks=False):
                folders += [(entry.name, entry.inode())] if not entry.name.startswith(".") else []
            elif entry.name in MARKS and entry.is_file(follow_symlinks=False):
                files.add(entry.name)
    kinds = [kind for name, kind in MARKS.items() if name in files]
    if PROGRESS not in dict(folders):
        kinds = [kind for kind in kinds if kind != "evaluation"]
    is_settled = time.time() - changed / 1e9 > RECENT
    return _Scan(tuple(kinds), tuple(sorted(folders)), changed, is_cut, is_settled)
