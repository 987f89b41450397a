"""Stopped ranks of this machine: a launcher would wait for them long after all others have ended.

torchrun sends SIGTERM to the ranks that are left and waits (30 seconds, or TORCH_ELASTIC_SHUTDOWN_TIMEOUT) before it
kills them; a process that SIGSTOP has stopped takes no other signal. Linux only: elsewhere nothing is known or ended.
"""

import contextlib
import os
import signal
from pathlib import Path

STOPPED = "T"  # by a signal; one that a debugger holds is "t"


def own_process() -> list[str]:
    """What tells this process from any other, for ranks that are children of the same launcher; empty if unknown."""
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return [machine, str(Path("/proc/self/ns/pid").readlink()), str(os.getppid()), str(os.getpid()), _born("self")]
    except OSError:
        return []


def end_frozen(told: list[str]) -> bool:
    """Kill the process that `own_process` described if it is a stopped sibling of this one; whether it was."""
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
    """State, parent and the rest of what the kernel says of a process; its name may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _born(pid: str) -> str:
    """When a process was started, in ticks: a number that is given again is of another time."""
    return _fields(pid)[19]
