"""Retries: bounded attempts with pauses that grow, every one counted."""

import logging
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from vitlab.data.remote.faults import Passing
from vitlab.data.remote.traffic import Traffic
from vitlab.errors import RemoteFailed

Result = TypeVar("Result")
# A request may fail in any process and thread, where no console is at hand. Python prints warnings of a logger to
# standard error unless the user's own code handles them.
LOG = logging.getLogger("vitlab.remote")
SOON, OFTEN = 2.0, 20.0  # seconds until a request that fails is reported, and between two reports


@dataclass(frozen=True)
class Patience:
    """How often a request is tried, and how many seconds lie between two attempts."""

    attempts: int = 10
    first: float = 0.25
    longest: float = 30.0

    def pause(self, attempt: int, asked: float, draw: float) -> float:
        """Seconds after the failed attempt 0, 1, ...: doubled each time, `draw` (0 to 1) of the second half."""
        usual = min(self.longest, self.first * 2**attempt) * (0.5 + 0.5 * draw)
        return min(self.longest, max(usual, asked))


PATIENCE = Patience()


def persist(request: Callable[[], Result], address: object, traffic: Traffic) -> Result:
    """Return the result of a request, which is repeated while it raises Passing; raises RemoteFailed in the end."""
    jitter = random.Random(f"{os.getpid()} {address}")  # many processes must not come back at the same moment
    began, fault, patience = time.monotonic(), Passing(""), PATIENCE
    next_report = began + SOON
    for attempt in range(patience.attempts):
        try:
            traffic.add(requests=1)
            return request()
        except Passing as passing:
            fault = passing
        if attempt + 1 < patience.attempts:
            pause = patience.pause(attempt, fault.wait, jitter.random())
            if time.monotonic() + pause > next_report:
                next_report = time.monotonic() + OFTEN
                tried = f"attempt {attempt + 1} of {patience.attempts}"
                LOG.warning("reading %s failed (%s: %s); trying again", address, tried, fault)
            traffic.add(retries=1)
            time.sleep(pause)
    tried = f"failed {patience.attempts} times in {time.monotonic() - began:.0f} s (last: {fault})"
    again = "check the connection and the server, then run the command again; finished parts and checkpoints are kept"
    raise RemoteFailed(f"reading {address} {tried}; {again}")
