"""Kill ranks of this machine that SIGSTOP has stopped, so that the launcher does not wait for them.

torchrun sends SIGTERM to the remaining ranks and waits (30 seconds, or TORCH_ELASTIC_SHUTDOWN_TIMEOUT) before it kills
them, but a stopped process does not handle SIGTERM. Works on Linux only; elsewhere nothing is found or killed.
"""

import contextlib
import os
import signal
from pathlib import Path

STOPPED = "T"  # by a signal; under a debugger it is "t"


def own_process() -> list[str]:
    """Identify this process among the children of the same launcher; empty if unknown."""
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return [machine, str(Path("/proc/self/ns/pid").readlink()), str(os.getppid()), str(os.getpid()), _born("self")]
    except OSError:
        return []


def end_frozen(told: list[str]) -> bool:
    """Kill the process that `own_process` described if it is a stopped sibling; returns whether it was."""
    own = own_process()
    if not own or told[:3] != own[:3] or told == own:
        return False
    with contextlib.suppress(OSError, IndexError):
        pid, born = told[3:]
        if _born(pid) == born and _fields(pid)[0] == STOPPED and _fields(pid)[1] == own[2]:
            os.kill(int(pid), signal.SIGKILL)
            return True
    return False


def _fields(pid: str) -> list[str]:
    """State, parent and further fields of /proc/PID/stat; the name before them may contain anything."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _born(pid: str) -> str:
    """Start time of a process in ticks, which tells it from a later process with the same number."""
    return _fields(pid)[19]
