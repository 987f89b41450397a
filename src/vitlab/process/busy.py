"""Detect that other programs use the processors, and choose how torch's threads wait then. Standard library only.

Torch's threads spin while they wait for each other, because waking a sleeping thread takes longer than a small
operation. If other programs compete for the processors, a spinning thread keeps one from the thread it waits for, and
a step takes many times as long (evidence/busy.txt). OMP_WAIT_POLICY=PASSIVE lets threads sleep instead. It must be set
before torch is imported, and changes no result.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

POLICY = "OMP_WAIT_POLICY"
SETTINGS = (POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # if one is set, the user has decided
SHARE = 0.25  # of the threads: too many if these have no processor of their own
SHORTEST = 0.1  # seconds between two readings; the kernel counts in hundredths
WATCHED = 15.0  # seconds between two readings during a run
chosen: list[str] = []  # why threads of this process sleep, once that is chosen


@dataclass(frozen=True)
class Reading:
    """Seconds so far: wall clock, processor time of this process, and of all programs on its processors."""

    clock: float
    own: float
    everyone: float


@dataclass(frozen=True)
class Place:
    """What a process may use: processors, a `quota` of processor time (in processors), and `threads`."""

    processors: int
    quota: float
    threads: int

    def crowd(self, others: float) -> str:
        """Why spinning threads are slow while other programs use `others` processors; empty if they are not."""
        free = min(self.processors - others, self.quota)
        if self.threads < 2 or self.threads - free < SHARE * self.threads:
            return ""
        if others >= SHARE * self.processors:
            return f"other programs use {others:.1f} of {self.processors} processors"
        return f"{self.threads} threads share {min(self.processors, self.quota):g} processors"


def place(environment: Mapping[str, str] = os.environ) -> Place:
    """What this process may use."""
    processors = len(_own_processors())
    asked = environment.get("OMP_NUM_THREADS", "").partition(",")[0]
    return Place(processors, _quota() or float(processors), int(asked) if asked.isdecimal() else processors)


def read() -> Reading | None:
    """Take a reading; None on systems other than Linux."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        ticks = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    return Reading(time.monotonic(), time.process_time(), busy_ticks(lines, _own_processors()) / ticks)


def busy_ticks(lines: Sequence[str], processors: frozenset[int]) -> int:
    """Busy ticks of the processors in /proc/stat: user, nice, system, interrupts and steal."""
    total = 0
    for line in lines:
        name, *values = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in processors:
            user, nice, system, _idle, _waiting, interrupts, soft, stolen = (*map(int, values), *[0] * 8)[:8]
            total += user + nice + system + interrupts + soft + stolen
    return total


def others_between(before: Reading, after: Reading) -> float:
    """How many processors other programs kept busy between two readings."""
    return max((after.everyone - before.everyone - (after.own - before.own)) / (after.clock - before.clock), 0.0)


def is_decided(environment: Mapping[str, str]) -> bool:
    """Whether the user or a launcher has decided how threads wait, or there is only one thread."""
    ranks = environment.get("WORLD_SIZE", "1")
    return any(name in environment for name in SETTINGS) or ranks != "1" or environment.get("OMP_NUM_THREADS") == "1"


# -- At the start --------------------------------------------------------------------------------


class BeforeTorch(MetaPathFinder):
    """Choose how threads wait right before torch is imported; commands without torch pay nothing."""

    def __init__(
        self,
        begin: Reading,
        look: Callable[[], Reading | None] = read,
        environment: MutableMapping[str, str] = os.environ,
    ) -> None:
        self.begin: Reading | None = begin
        self.look, self.environment = look, environment

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing, so that the other finders import torch."""
        if fullname == "torch" and self.begin is not None:
            begin, self.begin = self.begin, None  # not removed: Python is iterating over the list
            time.sleep(max(begin.clock + SHORTEST - time.monotonic(), 0.0))
            now = self.look()
            if now is not None:
                choose(place(self.environment), others_between(begin, now), self.environment)
        return None


def choose_before_torch(look: Callable[[], Reading | None] = read) -> None:
    """Watch other programs from now on, and choose how threads wait when torch is imported."""
    begin = None if is_decided(os.environ) else look()
    if begin is not None and "torch" not in sys.modules:
        sys.meta_path.insert(0, BeforeTorch(begin, look))


def choose(here: Place, others: float, environment: MutableMapping[str, str]) -> None:
    """Let threads sleep if spinning would be slow; `vitlab doctor` shows why. A user's own setting is kept."""
    why = here.crowd(others)
    if why and not is_decided(environment):
        environment[POLICY] = "PASSIVE"
        chosen.append(why)


# -- While something runs ------------------------------------------------------------------------


class Crowding:
    """Notice, once, that other programs compete with a long computation for its processors.

    `helpers` counts processes of our own, such as data workers, that are not other programs.
    """

    def __init__(
        self,
        helpers: int = 0,
        *,
        environment: Mapping[str, str] = os.environ,
        here: Place | None = None,
        look: Callable[[], Reading | None] = read,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.helpers, self._look, self._clock = helpers, look, clock
        self._here = here or place(environment)
        self._last = None if is_decided(environment) else look()

    def notice(self) -> str:
        """The reason, the first time that there is one; else empty."""
        if self._last is None or self._clock() - self._last.clock < WATCHED:
            return ""
        before, self._last = self._last, self._look()
        if self._last is None:
            return ""
        why = self._here.crowd(max(others_between(before, self._last) - self.helpers, 0.0))
        if why:
            self._last = None
        return why


def advice(why: str, again: str) -> str:
    """The reason in a sentence, with what to do about it."""
    return f"{why}: threads that wait for each other slow this down; {POLICY}=PASSIVE {again} lets them sleep"


# -- What this process may use -------------------------------------------------------------------


def _own_processors() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Processors that a container may use, from control groups of either version; None for all."""
    try:
        most, period = (root / "cpu.max").read_text().split()
        return None if most == "max" else int(most) / int(period)
    except (OSError, ValueError):
        pass
    try:
        most = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        return None if most <= 0 else most / int((root / "cpu" / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
