"""One single-threaded stream per core: no core waits for another after every operator.

Torch's usual way is one operator on all cores at a time, with a barrier after each. A core that another program uses
for a moment then delays all the others. A stream computes a chunk of images alone, from the first operator to the last.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


class Streams(Generic[T, R]):
    """Threads that each compute on one core; `submit` queues chunks, which the streams take in order."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._pool: ThreadPoolExecutor | None = None
        self._starting = threading.Lock()

    def submit(self, function: Callable[[T], R], chunks: Sequence[T]) -> list[Future[R]]:
        """Queue a call for every chunk."""
        with self._starting:  # callers may be threads themselves
            self._pool = self._pool or self._started()
        return [self._pool.submit(function, chunk) for chunk in chunks]

    def _started(self) -> ThreadPoolExecutor:
        pool, before = ThreadPoolExecutor(self.number, "vitlab-stream"), torch.get_num_threads()
        everyone = threading.Barrier(self.number)
        try:
            for ready in [pool.submit(_compute_alone, everyone) for _ in range(self.number)]:
                ready.result()
        except BaseException:  # such as a thread that cannot start: those that have would wait for it forever
            everyone.abort()
            pool.shutdown()
            raise
        finally:
            torch.set_num_threads(before)  # a stream's setting is its own, but also the default of threads to come
        return pool


def _compute_alone(everyone: threading.Barrier) -> None:
    torch.get_num_threads()  # a thread takes the default when it first asks, which would undo the next line later
    torch.set_num_threads(1)
    everyone.wait()  # so that every thread of the pool has come here once
