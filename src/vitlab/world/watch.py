"""Detect dead ranks: every rank sends heartbeats through a shared store and reads there when another has failed.

Keys of the store: beat/R is the heartbeat of rank R, failure names the rank that failed first and why, answer/R says
that rank R has read the failure, told that all living ranks have, left/R that rank R is done, process/R its process.
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
ANSWER = 3.0  # seconds within which a living rank responds
FAREWELL = 8.0  # seconds after a failure that a rank has to end by itself
GONE = 3  # exit code of a rank that has lost the others
QUIET = 1  # exit code of a rank that ends because another failed
BROKEN = re.compile(r"connection (closed|reset|refused)|timed out|timeout|broken pipe|nccl", re.IGNORECASE)


class Watch(threading.Thread):
    """A thread that sends heartbeats, and ends the process if another rank has failed and this one hangs."""

    def __init__(self, store: dist.Store, rank: int, ranks: int) -> None:
        super().__init__(name="watch", daemon=True)
        # Separate connections: one that waits for a response blocks all its users.
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

    # -- Called by the rank's main thread ----------------------------------------------------------

    def set(self, key: str, value: str) -> None:
        """Set a key of the store."""
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """Read a key of the store."""
        return self._store.get(key)

    def know(self, siblings: range) -> None:
        """Read the processes of the other ranks of this machine, once all ranks have joined."""
        others = [rank for rank in siblings if rank != self.rank and 0 <= rank < self.ranks]
        self._siblings = {rank: json.loads(self._store.get(f"process/{rank}")) for rank in others}

    def wait_for(self, keys: Mapping[str, int], timeout: float) -> None:
        """Wait until all keys are set; raises LostRank `timeout` seconds after the last heartbeat of a key's rank."""
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
                    raise LostRank(f"timed out: no heartbeat of rank {rank} for {timeout:g} seconds")
            time.sleep(pause)
            pause = min(2 * pause, BEAT)

    def leave(self, timeout: float) -> None:
        """Stop after success. Rank 0, which may host the store, leaves last."""
        self._done.set()
        self.join()
        self._store.set(f"left/{self.rank}", "1")
        if self.rank == 0:
            with contextlib.suppress(RuntimeError):
                self._store.wait([f"left/{rank}" for rank in range(self.ranks)], timedelta(seconds=timeout))

    def judge(self, error: BaseException) -> None:
        """Decide who reports an error: returns if this rank does, raises LostRank for a lost connection, or SystemExit
        if another rank reports it.
        """
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
                raise LostRank(f"rank 0 is dead or not responding ({first_line(error)})") from error
            raise SystemExit(QUIET) from None
        if failure["rank"] != self.rank:
            self._outlive()
            self._end_frozen()
            raise SystemExit(QUIET) from None
        silent = self._linger(self._end_frozen())
        if is_connection:
            faulthandler.dump_traceback(sys.stderr)
            named = f"rank {', '.join(map(str, silent))} is dead" if silent else "a rank was dead"
            raise LostRank(f"{named} or not responding ({first_line(error)}); all ranks stop") from error

    # -- The thread --------------------------------------------------------------------------------

    def run(self) -> None:
        """Send heartbeats until the main thread is done; end the process if it hangs after a failure."""
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
                    if self.failure["rank"] != self.rank:  # its store may vanish right after `told`
                        self._beats.wait(["told"], timedelta(seconds=ANSWER + BEAT))
                        self._told.set()
            except RuntimeError:  # rank 0 and the store are dead
                lost_at = time.monotonic()

    def _beat(self) -> None:
        self._beats.set(f"beat/{self.rank}", str(time.monotonic()))

    def _claim(self, said: dict[str, Any]) -> dict[str, Any]:
        """Record this failure unless another rank has recorded one; returns the first."""
        return json.loads(self._last_words.compare_set("failure", "", json.dumps(said)))

    def _end_frozen(self) -> list[int]:
        """Kill stopped ranks of this machine, which cannot end by themselves; returns them."""
        return [rank for rank, process in self._siblings.items() if end_frozen(process)]

    def _outlive(self) -> None:
        """Wait until the failed rank has reported: launchers end all ranks as soon as one has ended."""
        self._told.wait(ANSWER + 2 * BEAT)
        time.sleep(2 * BEAT)

    def _linger(self, ended: list[int]) -> list[int]:
        """Wait until all living ranks have read the failure; returns those that have not, and those `ended`."""
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
    """A name for this attempt of the ranks, the same on all of them, that tells it from earlier ones in the same store.

    The restart count is that of this machine's launcher and does not grow when a rank of another machine fails. So it
    is used only if the launchers keep one store over all attempts.
    """
    is_kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_kept else "0"


def answered(seconds: float, ask: Callable[[], Any]) -> Any:
    """The result of `ask`, or TimeoutError: a store whose process is stopped never responds."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(seconds)


def _within(seconds: float, ask: Callable[[], Any]) -> Any:
    """The result of `ask` if it succeeds in time, else None."""
    with contextlib.suppress(RuntimeError, TimeoutError):
        return answered(seconds, ask)
    return None


def first_line(error: BaseException) -> str:
    """The first line of an error, without what torch adds."""
    return str(error).partition("\n")[0]
