"""The ledger: one line of JSON for each measured number, with the expected one. Lines are only appended."""

import fcntl
import json
import math
import os
import platform
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from vitlab.files.strict_json import check_fields, from_json, parse_json, to_json
from vitlab.files.user_files import check_regular, stream_lines
from vitlab.require import require

LEDGER = Path("results/ledger.jsonl")
LARGEST_LINE = 2**20  # bytes
PACKAGES = ("vitlab", "torch", "numpy", "pillow")


@dataclass(frozen=True)
class Entry:
    """One measurement, in percent; `spread` is the standard deviation over `runs`, `n` the number of samples."""

    model: str
    data: str
    metric: str
    got: float
    n: int
    command: str
    runs: int = 1
    spread: float | None = None
    expected: float | None = None
    expected_from: str = ""  # such as a table of the paper or a model card
    weights: str = ""  # the file's name
    engine: str = ""  # that computed the logits; empty if it was not recorded
    task: str = ""  # the paper's name of the data set, if it is one of its tasks
    when: str = ""  # UTC
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.n >= 0 and self.runs >= 1, f"n {self.n} and runs {self.runs} must be counts")
        require(self.expected is None or bool(self.expected_from), "an expected number needs a source")


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that produced a number."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "missing"
    return found


def check_ledger(path: Path | None, expected: float | None = None, expected_from: str = "", rows: int = 1) -> None:
    """Raise if results could not be appended; called first, because measuring may take days."""
    if expected is not None:
        require(path is not None, "expected= is for the ledger; add ledger=FILE")
        require(bool(expected_from), "an expected number needs a source; add expected_from=TEXT")
        require(math.isfinite(expected), f"expected= is {expected}, not a number; give the accuracy in percent")
        require(rows < 2, f"one expected number for {rows} rows; evaluate them one by one")
    require(expected is not None or not expected_from, "expected_from= goes with expected=")
    require(path is None or not path.is_dir(), f"{path} is a folder; name a file such as {LEDGER.name} in it")
    if path is not None and (path.exists() or path.is_symlink()):
        check_regular(path)


def append(path: Path, entries: list[Entry]) -> None:
    """Append entries on lines of their own, with time and versions unless they have them.

    Safe with concurrent writers and after an incomplete line.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    dated = [replace(one, when=one.when or now, versions=one.versions or versions()) for one in entries]
    lines = [json.dumps(to_json(entry), ensure_ascii=True, allow_nan=False) for entry in dated]
    if not lines:
        return
    check_ledger(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        size = file.seek(0, os.SEEK_END)
        torn = b""
        if size:
            file.seek(size - 1)
            torn = b"" if file.read(1) == b"\n" else b"\n"
        file.write(torn + "".join(f"{line}\n" for line in lines).encode())
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> tuple[list[Entry], list[str]]:
    """Read the entries, with a remark on each invalid line; invalid lines are skipped, never repaired."""
    check_ledger(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; vitlab evaluate and vitlab transfer append to it with ledger=")
    entries, remarks = [], []
    for number, line in enumerate(stream_lines(path, 16 * LARGEST_LINE), 1):
        try:
            require(line.endswith(b"\n"), "is incomplete")
            require(len(line) <= LARGEST_LINE, f"has {len(line):,} bytes; at most {LARGEST_LINE:,} are read")
            entries.append(from_json(Entry, parse_json(line, "the line")))
        except ValueError as error:
            remarks.append(f"{path}, line {number} is skipped: {error}")
    return entries, remarks
