"""What a signal does before and during a run. Standard library only.

Before there is anything to save, Ctrl-C ends the process at once, with one line. Raising KeyboardInterrupt there would
not be enough: a library whose import it interrupts may swallow it and continue half imported. During a run, TERM and
INT save and stop, and USR1 saves and continues.

Python allows signal handlers in the main thread only. A run in another thread does without them.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Self

from vitlab.errors import SIGNAL_CODES

Handler = Callable[[int, FrameType | None], Any] | int | None


def leave_when_interrupted() -> None:
    """Let an interrupt end the process at once from now on, unless a caller or a launcher has its own handler."""
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours and os.environ.get("WORLD_SIZE", "1") == "1":
        signal.signal(signal.SIGINT, _leave)


def raise_when_interrupted() -> None:
    """Let an interrupt raise KeyboardInterrupt again: there is something to finish or to clean up."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.stderr.write("vitlab: stopped; nothing was started\n")
    sys.stderr.flush()
    os._exit(SIGNAL_CODES[signal.SIGINT])


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore USR1 while the block runs: before and after the steps there is nothing to save."""
    before = _installed([signal.SIGUSR1], signal.SIG_IGN)
    try:
        yield
    finally:
        _restore(before)


class Signals:
    """Note signals while the block runs, so that the loop can save and stop between steps.

    A second TERM or INT ends the process at once. Under torchrun it does not: torchrun forwards to its ranks signals
    that they may have received already.
    """

    def __init__(self) -> None:
        self.stop = 0  # exit code of the signal that asked to stop; 0 for none
        self._save = False
        self._before: dict[signal.Signals, Handler] = {}

    def __enter__(self) -> Self:
        self._before = _installed((*SIGNAL_CODES, signal.SIGUSR1), self._note)
        return self

    def __exit__(self, *_: object) -> None:
        _restore(self._before)

    def take_save(self) -> bool:
        """Whether USR1 has asked to save since the last call."""
        wished, self._save = self._save, False
        return wished

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self._save = True
        elif not self.stop:
            self.stop = SIGNAL_CODES[signal.Signals(number)]
        elif "TORCHELASTIC_RUN_ID" not in os.environ:
            os._exit(SIGNAL_CODES[signal.Signals(number)])


def _installed(caught: Iterable[signal.Signals], handler: Handler) -> dict[signal.Signals, Handler]:
    """Install a handler for some signals; returns those it replaces. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {one: signal.signal(one, handler) for one in caught}


def _restore(before: dict[signal.Signals, Handler]) -> None:
    for caught, handler in before.items():
        signal.signal(caught, signal.SIG_DFL if handler is None else handler)
