"""Memory of this machine and of processes: how much is free, how much a process holds, sizes as users write them.

The kernel's files under /proc are read where they exist (Linux); elsewhere the answers are None.
"""

import math
import os
import re
from contextlib import suppress
from pathlib import Path

from vitlab.errors import InvalidValue

UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
UNITS |= {"ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}
MARGIN = 0.1  # of the free memory: left to other programs
LEAST_MARGIN = 256 * 2**20  # bytes
PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def parse_memory(given: int | str) -> int:
    """Bytes of a size such as 8GiB, 500MB or 2e9; an InvalidValue unless it is positive."""
    match = re.fullmatch(r"\s*([+-]?[\d.]+(?:e\d+)?)\s*([kmgt]i?|)b?\s*", str(given).lower(), re.ASCII)
    try:
        size = float(match[1]) * UNITS[match[2]] if match else math.nan
    except ValueError:  # as in 1.2.3GB
        size = math.nan
    if not 1 <= size < 2**63:
        raise InvalidValue(f"is {given!r:.60}; expected a positive size such as 8GiB or 500MB", field="memory")
    return int(size)


def show_memory(size: int) -> str:
    """Bytes as text, in the units of the tables: 1.5 GB, 220 MB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def default_limit() -> int | None:
    """The memory that one more process may use: what is free now, minus a margin; None where it is unknown."""
    free = free_memory()
    return None if free is None else max(free - max(int(MARGIN * free), LEAST_MARGIN), 1)


def free_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Bytes that can be allocated without swapping, within the limits of this process's control groups."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        (available,) = (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        groups = (proc / "self" / "cgroup").read_text().splitlines()
    except (OSError, ValueError):
        return None
    return min([available, *(left for group in groups for left in _left_in_groups(group, cgroups))])


def _left_in_groups(line: str, root: Path) -> list[int]:
    """Bytes that a line of /proc/self/cgroup leaves: of its group and of every group above it, in either version."""
    _, controllers, path = line.split(":", 2)
    if controllers == "":
        top, names, cache = root, ("memory.max", "memory.current"), "inactive_file"
    elif "memory" in controllers.split(","):
        top, names, cache = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_inactive_file"
    else:
        return []
    folder, found = top / path.lstrip("/"), []
    for group in (folder, *folder.parents):
        if group.is_relative_to(top):
            try:
                limit, used = (int((group / name).read_text()) for name in names)
                statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):  # no such file, or "max"
                continue
            found.append(max(limit - used + int(statistics.get(cache, 0)), 0))  # the file cache makes room
    return found


def resident(pid: int) -> int | None:
    """Bytes of memory that a process holds now; None if it has ended or the system does not say."""
    try:
        pages = (PROC / str(pid) / "statm").read_text().split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def own_peak() -> int | None:
    """Bytes of memory that this process has held at most. Unlike `ru_maxrss` it does not start at the parent's peak."""
    try:
        lines = (PROC / "self" / "status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def reset_own_peak() -> None:
    """Let `own_peak` count from now on."""
    with suppress(OSError):  # not Linux
        (PROC / "self" / "clear_refs").write_text("5")


def be_killed_first() -> None:
    """Make this process the first that the kernel kills when memory runs out, instead of another program."""
    with suppress(OSError):  # not Linux
        (PROC / "self" / "oom_score_adj").write_text("1000")
