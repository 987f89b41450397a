"""Run many jobs. Finished jobs are skipped, so an interrupted map continues when it is started again."""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

from rich.console import Console

from vitlab.errors import JobsFailed
from vitlab.jobs.job import LOG, Here, Job, Pool, Processes, Ray, Workers
from vitlab.process.interrupts import Signals
from vitlab.require import require

RETRIES = 2  # of a job whose worker was killed
Event = Literal["started", "finished", "killed", "failed"]
Told = Callable[[Job, Event, str], None]
RAY_JOBS = 2  # default number at a time


def workers_of(jobs: int | None, ray: str) -> Workers:
    """The workers that the arguments jobs= and ray= ask for."""
    require(jobs is None or jobs >= 1, f"jobs= is {jobs}; at least 1 is needed")
    if ray:
        from vitlab.jobs.on_ray import require_ray

        require_ray()  # before anything is read
        return Ray(ray, jobs or RAY_JOBS)
    return Processes(jobs) if jobs is not None and jobs > 1 else Here()


def _nothing() -> None:
    pass


class Crew:
    """Workers for all maps of a `with` block; they start when the first job needs them."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self._pool: Pool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()

    def map(self, jobs: Sequence[Job], console: Console, told: Told, looked: Callable[[], None] = _nothing) -> int:
        """Run the unfinished jobs; returns 0, or the exit code of the signal that stopped it. The same call continues.

        A job whose worker was killed is retried twice. JobsFailed is raised once all other jobs are done. `told` is
        called with every event, and `looked` several times a second while other processes work.
        """
        waiting = [job for job in jobs if not job.is_done()]
        if not waiting:
            return 0
        if isinstance(self.workers, Here):
            with Signals() as signals:
                return _one_by_one(waiting, console, told, signals)
        pool = self._pool = self._pool or _opened(self.workers)
        with Signals() as signals:  # after the pool: Ray installs handlers too
            return _share_out(waiting, pool, told, signals, looked)


def _opened(workers: Workers) -> Pool:
    if isinstance(workers, Processes):
        from vitlab.jobs.processes import LocalPool

        return LocalPool(workers.count)
    from vitlab.jobs.on_ray import RayPool

    assert not isinstance(workers, Here)
    return RayPool(workers)


def _one_by_one(waiting: list[Job], console: Console, told: Told, signals: Signals) -> int:
    for job in waiting:
        told(job, "started", "")
        code = job.work(job.argument, console) or signals.stop
        if code:
            return code
        if not job.is_done():
            raise JobsFailed(f"{job.name} ended without a result in {job.folder}")
        told(job, "finished", "")
    return 0


def _share_out(
    waiting: list[Job], pool: Pool, told: Told, signals: Signals, looked: Callable[[], None] = _nothing
) -> int:
    running: dict[Any, Job] = {}
    tries: Counter[str] = Counter()
    failed: list[str] = []
    is_stopping = False
    while running or (waiting and not signals.stop):
        if signals.stop and not is_stopping:
            pool.stop(list(running))
            is_stopping = True
        while waiting and len(running) < pool.size and not signals.stop:
            job = waiting.pop(0)
            tries[job.name] += 1
            running[pool.start(job)] = job
            told(job, "started", f"try {tries[job.name]}" if tries[job.name] > 1 else "")
        for handle, how in pool.ended(list(running)):
            job = running.pop(handle)
            if job.is_done():
                told(job, "finished", "")
            elif signals.stop:
                continue
            elif how.killed and tries[job.name] <= RETRIES:
                told(job, "killed", f"{how.words}; retrying")
                waiting.insert(0, job)
            else:
                words = f"{how.words} {tries[job.name]} times" if how.killed else how.words or _last_line(job)
                told(job, "failed", words)
                failed.append(f"{job.name} failed: {words}; its log is {job.folder / LOG}")
        looked()
    if failed and not signals.stop:
        raise JobsFailed("; ".join(failed))
    return signals.stop


def _last_line(job: Job) -> str:
    """The last line of a job's log: the error, if there was one."""
    with contextlib.suppress(OSError):
        lines = (job.folder / LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if lines:
            return lines[-1]
    return "it ended without a result"
