"""Ctrl-C before there is anything to save: the process ends at once, with one line. Standard library only.

An exception would do if everybody let it pass; but a library whose import it breaks off may swallow it and go on half
imported, and what comes of that is told as an error of its own.
"""

import os
import signal
import sys
from types import FrameType

CODE = 130  # as a shell reports it


def leave_when_interrupted() -> None:
    """From now on an interrupt ends the process at once, unless a caller or a launcher has plans of its own."""
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours and os.environ.get("WORLD_SIZE", "1") == "1":
        signal.signal(signal.SIGINT, _leave)


def raise_when_interrupted() -> None:
    """From now on an interrupt is Python's exception again: there is something to finish or to clean up."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.stderr.write("vitlab: stopped; nothing was begun\n")
    sys.stderr.flush()
    os._exit(CODE)
