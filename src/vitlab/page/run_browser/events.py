"""Follow the events of a run: read what was appended since the last time, whatever the file looks like."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitlab.files.strict_json import parse_json
from vitlab.files.user_files import NotRegular, open_regular
from vitlab.run_dir import EVENTS
from vitlab.spec.recipe import VALIDATION, measure_of

CHUNK = 2**20  # bytes read at a time
STEP = b'{"event": "step"'  # how `RunDir.record` begins most lines
BEGINS, ENDS = ("started", "resumed"), ("finished", "rebuilt")


@dataclass(frozen=True)
class Events:
    """Complete events from byte `start` of a file on, the place to continue at, and how many lines were damaged.

    `stream` changes if the file is replaced by another: then it has to be read again from 0.
    """

    events: tuple[dict[str, Any], ...]
    start: int
    next: int
    damaged: int
    stream: str
    is_behind: bool  # there is more to read at once


@dataclass(frozen=True)
class _Lines:
    """Complete lines from byte `start` of a file on; `is_cut` if one was too long."""

    lines: list[bytes] = field(default_factory=list)
    start: int = 0
    next: int = 0
    stream: str = ""
    size: int = 0
    is_cut: bool = False

    @property
    def is_behind(self) -> bool:
        return bool(self.lines) and self.next < self.size


def read_events(folder: Path, after: int = 0) -> Events:
    """Read the events that begin at byte `after` of a run's file; costs what is new, and at most CHUNK bytes.

    A line that is still being written is left for the next time. From beyond the end of the file, it begins again.
    """
    read = _read_lines(folder, after)
    found = [_event(line) for line in read.lines]
    events = tuple(event for event in found if event is not None)
    damaged = len(found) - len(events) + read.is_cut
    return Events(events, read.start, read.next, damaged, read.stream, read.is_behind)


def _read_lines(folder: Path, after: int) -> _Lines:
    path = folder / EVENTS
    try:
        if path.is_symlink():
            raise NotRegular(f"{EVENTS} is a symbolic link")
        file = open_regular(path)
    except FileNotFoundError:  # the run has only just been created
        return _Lines()
    with file:
        size = os.fstat(file.fileno()).st_size
        first = file.readline(4096)
        stream = hashlib.sha256(first).hexdigest()[:12] if first.endswith(b"\n") else ""
        after = after if 0 <= after <= size else 0
        file.seek(after)
        read = file.read(min(CHUNK, size - after))
    end = read.rfind(b"\n") + 1
    if not end and len(read) == CHUNK:  # no event is that long: what there is now is passed over
        return _Lines([], after, size, stream, size, is_cut=True)
    return _Lines(read[:end].split(b"\n")[:-1], after, after + end, stream, size)


def _event(line: bytes) -> dict[str, Any] | None:
    """A line as an event; None if it is damaged."""
    try:
        value = parse_json(line, EVENTS)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("event"), str) or not _is_step(value.get("step", 0)):
        return None
    return value


def _is_step(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53


def number(value: object) -> float | None:
    """A number of an event, which may be NaN or infinite; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


@dataclass
class Tally:
    """What the list of runs shows of the events; `catch_up` reads those that are new.

    Lines of single steps are only counted on; of them the last is read.
    """

    place: int = 0
    stream: str = ""
    began: float | None = None  # seconds since 1970
    last: dict[str, Any] = field(default_factory=dict)  # event
    last_step: dict[str, Any] = field(default_factory=dict)
    since: dict[str, Any] = field(default_factory=dict)  # the event that began or continued the run
    best: dict[str, Any] | None = None  # validation
    is_over: bool = False
    damaged: int = 0

    def catch_up(self, folder: Path) -> "Tally":
        """Read what was appended; returns a new tally if the file was replaced."""
        tally, is_behind = self, True
        while is_behind:
            read = _read_lines(folder, tally.place)
            if tally.place and (read.stream != tally.stream or read.start != tally.place):
                tally = Tally()
                continue
            tally.place, tally.stream, is_behind = read.next, read.stream, read.is_behind
            tally.damaged += read.is_cut
            tally._add(read.lines)
        return tally

    def _add(self, lines: list[bytes]) -> None:
        last_step = None
        for line in lines:
            if line.startswith(STEP) and self.began is not None:
                last_step = line
            else:
                if last_step is not None:
                    self._take(last_step)
                last_step = None
                self._take(line)
        if last_step is not None:
            self._take(last_step)

    def _take(self, line: bytes) -> None:
        event = _event(line)
        if event is None:
            self.damaged += 1
            return
        if self.began is None:
            self.began = number(event.get("time"))
        kind, self.last = event["event"], event
        if kind in BEGINS:
            self.since = event
        if kind == "step":
            self.last_step = event
        self.is_over = kind in ENDS or (self.is_over and kind not in BEGINS)
        if kind == VALIDATION and (found := measured(event)) is not None:
            best = None if self.best is None else measured(self.best)
            if best is None or found > best:
                self.best = event

    @property
    def step(self) -> int:
        """The last step that an event tells of."""
        return max(int(event.get("step", 0)) for event in (self.last, self.last_step))

    def speed(self, batch: int) -> float | None:
        """Images per second since the run was started or continued."""
        begin, end = number(self.since.get("time")), number(self.last_step.get("time"))
        steps = int(self.last_step.get("step", 0)) - int(self.since.get("step", 0))
        return None if begin is None or end is None or end <= begin or steps < 1 else steps * batch / (end - begin)


def measured(numbers: Mapping[str, object]) -> float | None:
    """The number by which validations are compared; None if it is missing or not a number."""
    found = number(numbers.get(measure_of(numbers)))
    return None if found is None or found != found else found
