"""Local processes that take jobs. One that is killed is replaced; one whose parent is gone saves and ends."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import torch

from vitlab.jobs.job import LOG, LOOK, Ended, Job, ended_with
from vitlab.store import make_folder


@dataclass(frozen=True, eq=False)
class Worker:
    """A process, and the line to it."""

    process: BaseProcess
    line: Connection


class LocalPool:
    """Spawned processes, which have nothing of this one's threads or state; they begin when there is work for them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._threads = max(torch.get_num_threads() // size, 1)
        self._context = multiprocessing.get_context("spawn")
        self._idle: list[Worker] = []

    def start(self, job: Job) -> Worker:
        """Give the job to an idle worker that is alive, or to a new one."""
        while self._idle:
            worker = self._idle.pop()
            with contextlib.suppress(OSError):  # it died while it was idle
                worker.line.send(job)
                return worker
        worker = self._new()
        worker.line.send(job)
        return worker

    def ended(self, handles: list[Worker]) -> Iterator[tuple[Worker, Ended]]:
        """The workers that are done with their jobs, or dead."""
        waited = [what for worker in handles for what in (worker.line, worker.process.sentinel)]
        ready = connection.wait(waited, LOOK)
        for worker in handles:
            if worker.line not in ready and worker.process.sentinel not in ready:
                continue
            try:
                code = worker.line.recv()
            except (EOFError, OSError):
                worker.process.join()
                yield worker, ended_with(worker.process.exitcode or 0)
                continue
            self._idle.append(worker)
            yield worker, ended_with(code)

    def stop(self, handles: list[Worker]) -> None:
        """Ask politely: what they do is saved."""
        for worker in handles:
            worker.process.terminate()

    def close(self) -> None:
        """Idle workers end when the line to them does."""
        for worker in self._idle:
            worker.line.close()
        for worker in self._idle:
            worker.process.join()

    def _new(self) -> Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._threads), daemon=False)
        process.start()
        theirs.close()
        return Worker(process, ours)


def _serve(line: Connection, threads: int) -> None:
    """What a worker does until the line ends: jobs, with all output in their logs."""
    os.setpgrp()  # a terminal's Ctrl-C is for the parent, which tells everybody once
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, OSError):
        while True:
            job: Job = line.recv()
            make_folder(job.folder)
            with (job.folder / LOG).open("ab") as log:  # also what libraries write past Python
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            line.send(job.run_with_log())


def _stop_with_parent() -> None:
    """A polite stop when the parent is gone: nobody would take what this process makes."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
