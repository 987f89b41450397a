"""A polite stop: TERM and INT save and end the run, USR1 saves and goes on; a second signal ends it at once.

Under a launcher, which hands on to its ranks what they may have got already, a second one is the first again.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Self

from vitlab.errors import SIGNAL_CODES
from vitlab.world.group import has_launcher


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """USR1 ends nothing while the block runs: before and after the steps there is nothing to save."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


class Signals:
    """Catches signals while the block runs; the loop asks between steps what was wished."""

    def __init__(self) -> None:
        self.stop = 0  # the exit code that is wished for
        self._save = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        for caught in (*SIGNAL_CODES, signal.SIGUSR1):
            self._before[caught] = signal.signal(caught, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for caught, handler in self._before.items():
            signal.signal(caught, handler)  # pyrefly: ignore[bad-argument-type] - as it was

    def take_save(self) -> bool:
        """Whether a save was wished for since the last time."""
        wished, self._save = self._save, False
        return wished

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self._save = True
        elif self.stop:
            if not has_launcher():
                os._exit(SIGNAL_CODES[signal.Signals(number)])
        else:
            self.stop = SIGNAL_CODES[signal.Signals(number)]
