"""Who is still there: every rank shows that it lives, and learns from the others' store when one has failed.

The keys of the store: beat/R counts while rank R lives, failure says who failed first and why, answer/R that rank R
has read it, told that all who live have, left/R that rank R is done, process/R which process it is.
"""

import contextlib
import faulthandler
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from vitlab.errors import LostRank
from vitlab.world.frozen import end_frozen, own_process

BEAT = 0.5  # seconds
ANSWER = 3.0  # seconds in which a rank that lives answers
FAREWELL = 8.0  # seconds after a failure in which a rank ends by itself
GONE = 3  # exit code of who has lost the others
QUIET = 1  # exit code of who ends because of another's failure
BROKEN = re.compile(r"connection (closed|reset|refused)|timed out|timeout|broken pipe|nccl", re.IGNORECASE)


class Watch(threading.Thread):
    """A thread that beats, and that ends the process when another rank has failed and this one hangs."""

    def __init__(self, store: dist.Store, rank: int, ranks: int) -> None:
        super().__init__(name="watch", daemon=True)
        # Its own connections: one that waits for an answer blocks all who use it.
        self._store, self._beats, self._last_words = (
            dist.PrefixStore(f"vitlab/{attempt()}", store.clone())  # pyrefly: ignore[missing-attribute] - all have it
            for _ in range(3)
        )
        self.rank, self.ranks = rank, ranks
        self.failure: dict[str, Any] | None = None
        self._done, self._told = threading.Event(), threading.Event()
        self._siblings: dict[int, list[str]] = {}
        self._store.set(f"process/{rank}", json.dumps(own_process()))
        self._beat()

    # -- What the ranks' own thread asks for ------------------------------------------------------

    def set(self, key: str, value: str) -> None:
        """Tell all ranks."""
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """What was told."""
        return self._store.get(key)

    def know(self, siblings: range) -> None:
        """Learn which processes the other ranks of this machine are, once all have met."""
        others = [rank for rank in siblings if rank != self.rank and 0 <= rank < self.ranks]
        self._siblings = {rank: json.loads(self._store.get(f"process/{rank}")) for rank in others}

    def wait_for(self, keys: Mapping[str, int], timeout: float) -> None:
        """Return when all keys are there; each is awaited as long as its rank beats, and `timeout` seconds more."""
        missing, pause = dict(keys), 0.005
        beats: dict[int, bytes] = {}
        changed = dict.fromkeys(missing.values(), time.monotonic())
        while True:
            if self.failure is not None:
                raise LostRank(f"rank {self.failure['rank']} failed")
            missing = {key: rank for key, rank in missing.items() if not self._store.check([key])}
            if not missing:
                return
            for rank in set(missing.values()):
                beat = self._store.get(f"beat/{rank}")
                if beats.get(rank) != beat:
                    beats[rank], changed[rank] = beat, time.monotonic()
                elif time.monotonic() - changed[rank] > timeout:
                    raise LostRank(f"timed out: rank {rank} has not shown for {timeout:g} seconds that it lives")
            time.sleep(pause)
            pause = min(2 * pause, BEAT)

    def leave(self, timeout: float) -> None:
        """End in peace; the first rank, which may keep the store, leaves last."""
        self._done.set()
        self.join()
        self._store.set(f"left/{self.rank}", "1")
        if self.rank == 0:
            with contextlib.suppress(RuntimeError):
                self._store.wait([f"left/{rank}" for rank in range(self.ranks)], timedelta(seconds=timeout))

    def judge(self, error: BaseException) -> None:
        """After an error: return if it is this rank's to tell; raises a LostRank, or SystemExit if another tells it."""
        is_connection = isinstance(error, LostRank | dist.DistError) or (
            isinstance(error, RuntimeError) and BROKEN.search(str(error)) is not None
        )
        said = {"rank": self.rank, "cause": "" if is_connection else f"{type(error).__name__}: {error}"}
        failure = self.failure or _within(ANSWER, lambda: self._claim(said))
        if failure is None:  # the store is gone
            if not is_connection:
                return
            self._end_frozen()
            if self.rank == 1:
                faulthandler.dump_traceback(sys.stderr)
                raise LostRank(f"rank 0 is gone or does not answer ({first_line(error)})") from error
            raise SystemExit(QUIET) from None
        if failure["rank"] != self.rank:
            self._outlive()
            self._end_frozen()
            raise SystemExit(QUIET) from None
        silent = self._linger(self._end_frozen())
        if is_connection:
            faulthandler.dump_traceback(sys.stderr)
            named = f"rank {', '.join(map(str, silent))} is" if silent else "a rank was"
            raise LostRank(f"{named} gone or does not answer ({first_line(error)}); all ranks stop") from error

    # -- What goes on beside ----------------------------------------------------------------------

    def run(self) -> None:
        """Beat until the ranks' own thread is done; end the process when all is lost and it is not."""
        lost_at = None
        while not self._done.wait(BEAT):
            if lost_at is not None:
                if time.monotonic() - lost_at > FAREWELL:
                    os._exit(GONE if self.failure is None else QUIET)
                continue
            try:
                self._beat()
                if self._beats.check(["failure"]):
                    self.failure = json.loads(self._beats.get("failure"))
                    self._beats.set(f"answer/{self.rank}", "1")
                    lost_at = time.monotonic()
                    if self.failure["rank"] != self.rank:  # whose store may be gone the moment after it has told
                        self._beats.wait(["told"], timedelta(seconds=ANSWER + BEAT))
                        self._told.set()
            except RuntimeError:  # rank 0 and the store are gone
                lost_at = time.monotonic()

    def _beat(self) -> None:
        self._beats.set(f"beat/{self.rank}", str(time.monotonic()))

    def _claim(self, said: dict[str, Any]) -> dict[str, Any]:
        """The first failure of all: this one, or another's that was told before."""
        return json.loads(self._last_words.compare_set("failure", "", json.dumps(said)))

    def _end_frozen(self) -> list[int]:
        """All ranks end now, and the launcher need not wait for those that cannot by themselves; returns them."""
        return [rank for rank, process in self._siblings.items() if end_frozen(process)]

    def _outlive(self) -> None:
        """Wait until the rank that failed has said why: launchers end all ranks when the first has ended."""
        self._told.wait(ANSWER + 2 * BEAT)
        time.sleep(2 * BEAT)

    def _linger(self, ended: list[int]) -> list[int]:
        """Wait until all who live have read of the failure; returns who has not, with those that are `ended`."""
        answers = {f"answer/{rank}": rank for rank in range(self.ranks) if rank not in (self.rank, *ended)}
        silent = list(answers.values())

        def ask() -> None:
            end = time.monotonic() + ANSWER
            while time.monotonic() < end and silent:
                silent[:] = [rank for key, rank in answers.items() if not self._last_words.check([key])]
                time.sleep(BEAT / 10)

        _within(ANSWER + BEAT, ask)
        _within(BEAT, lambda: self._last_words.set("told", "1"))
        return sorted(ended + silent)


def attempt() -> str:
    """What tells this life of the ranks from those before it in the same store, the same on all of them.

    The count of restarts is that of a machine's own launcher: where a rank of another machine failed, it stays. So it
    is asked only where launchers keep one store for all lives.
    """
    is_kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_kept else "0"


def answered(seconds: float, ask: Callable[[], Any]) -> Any:
    """What is answered in time, else TimeoutError: a store whose process is frozen never answers."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(seconds)


def _within(seconds: float, ask: Callable[[], Any]) -> Any:
    """What is answered in time and without failure, else None."""
    with contextlib.suppress(RuntimeError, TimeoutError):
        return answered(seconds, ask)
    return None


def first_line(error: BaseException) -> str:
    """What an error says, without what torch adds."""
    return str(error).partition("\n")[0]
