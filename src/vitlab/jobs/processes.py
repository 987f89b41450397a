"""Local worker processes. A killed worker is replaced; a worker whose parent dies saves and exits."""

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

from vitlab.files.store import make_folder
from vitlab.jobs.job import LOG, LOOK, Ended, Job, ended_with


@dataclass(frozen=True, eq=False)
class Worker:
    """A process and the pipe to it."""

    process: BaseProcess
    line: Connection


class LocalPool:
    """Spawned processes, which inherit no threads or state of this one; they start when there is work."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._threads = max(torch.get_num_threads() // size, 1)
        self._context = multiprocessing.get_context("spawn")
        self._idle: list[Worker] = []

    def start(self, job: Job) -> Worker:
        """Send the job to an idle worker, or to a new one."""
        while self._idle:
            worker = self._idle.pop()
            with contextlib.suppress(OSError):  # it died while idle
                worker.line.send(job)
                return worker
        worker = self._new()
        worker.line.send(job)
        return worker

    def ended(self, handles: list[Worker]) -> Iterator[tuple[Worker, Ended]]:
        """Yield the workers that are done with their jobs or have died."""
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
        """Terminate the workers; they save their state first."""
        for worker in handles:
            worker.process.terminate()

    def close(self) -> None:
        """End the idle workers by closing their pipes."""
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
    """Run jobs until the pipe closes, with all output in their logs."""
    os.setpgrp()  # a terminal's Ctrl-C goes to the parent only, which stops the workers
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, OSError):
        while True:
            job: Job = line.recv()
            make_folder(job.folder)
            with (job.folder / LOG).open("ab") as log:  # also catches what C libraries write
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            line.send(job.run_with_log())


def _stop_with_parent() -> None:
    """Stop this process with SIGTERM when its parent dies."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
