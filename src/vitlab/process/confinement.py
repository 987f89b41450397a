"""What a process that reads untrusted bytes may not do: open sockets, start programs, take any amount of memory."""

import contextlib
import os
import resource
import sys
from pathlib import Path

GIB = 2**30
TOKEN = "VITLAB_TOKEN"  # the variable with the token of `vitlab serve`
PROGRAMS = ("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "pty.")  # audit events
FORBIDDEN = (*PROGRAMS, "socket.", "urllib.", "ftplib.", "smtplib.")


def confine(*, limits_memory: bool = True, may_start_programs: bool = False) -> None:
    """Forbid sockets and programs, and limit memory, from here on.

    The limit is on the address space, of which torch reserves much when it is imported: call this after the imports. A
    GPU maps far more, so there must be no limit with one.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = Path("/proc/self/statm")
    if limits_memory and pages.exists():
        reserved, resident = (int(number) * resource.getpagesize() for number in pages.read_text().split()[:2])
        limit = reserved + 2 * GIB + 2 * resident
        with contextlib.suppress(ValueError, OSError):  # a lower limit is set already
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    forbid(tuple(set(FORBIDDEN) - set(PROGRAMS)) if may_start_programs else FORBIDDEN)


def forbid(events: tuple[str, ...] = FORBIDDEN) -> None:
    """Raise PermissionError at every audit event that begins like one of these, from here on."""

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith(events):
            raise PermissionError(f"{event} is not allowed in this process")

    sys.addaudithook(refuse)


def child_environment() -> dict[str, str]:
    """The environment for a child process that reads untrusted bytes: without the token."""
    return {name: value for name, value in os.environ.items() if name != TOKEN}
