"""Jobs as tasks of Ray, on this machine or a cluster; needs the extra `ray`."""

import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from vitlab.jobs.job import LOOK, Ended, Job, Ray, ended_with

ANSWER = 10.0  # seconds
OBJECTS = 80 * 2**20  # bytes of a local Ray's store: what goes to and fro are words


def require_ray() -> Any:
    """The ray module, or an error that names the extra."""
    try:
        import ray
    except ImportError:
        raise ModuleNotFoundError("--ray needs Ray: pip install 'vitlab[ray]'") from None
    return ray


class RayPool:
    """Every job is a task that Ray does not repeat by itself: how often a job is tried is counted in one place."""

    def __init__(self, workers: Ray) -> None:
        self.size = workers.count
        self._ray = require_ray()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        if workers.address == "local":
            self._ray.init("local", num_cpus=self.size, include_dashboard=False, object_store_memory=OBJECTS, **quiet)
        else:
            try:
                _knock(workers.address)
                self._ray.init(workers.address, **quiet)
            except (OSError, ValueError, RuntimeError) as error:
                raise ValueError(f"no Ray answers at {workers.address!r}: {error}") from None
        self._remote = self._ray.remote(_run).options(num_cpus=1, num_gpus=workers.gpus, max_retries=0)

    def start(self, job: Job) -> Any:
        """Hand the job over; Ray begins it when a worker is free."""
        return self._remote.remote(job)

    def ended(self, handles: list[Any]) -> Iterator[tuple[Any, Ended]]:
        """The tasks that are done, or whose workers are dead."""
        if not handles:
            time.sleep(LOOK)
            return
        for handle in self._ray.wait(handles, num_returns=len(handles), timeout=LOOK)[0]:
            yield handle, self._how(handle)

    def stop(self, handles: list[Any]) -> None:
        """Ask politely: it arrives as SIGINT, and what they do is saved."""
        for handle in handles:
            self._ray.cancel(handle)

    def close(self) -> None:
        """A local Ray ends; a cluster goes on without us."""
        self._ray.shutdown()

    def _how(self, handle: Any) -> Ended:
        lost = self._ray.exceptions
        try:
            return ended_with(self._ray.get(handle))
        except (lost.WorkerCrashedError, lost.NodeDiedError, lost.OutOfMemoryError) as error:
            return Ended(killed=True, words=f"its worker died ({type(error).__name__})")
        except lost.TaskCancelledError:
            return Ended(killed=True, words="cancelled")
        except lost.RayError as error:  # before the job began: vitlab is missing there, or another version
            return Ended(killed=False, words=" ".join(str(error).split())[-300:])


def _knock(address: str) -> None:
    """Raise at once when nobody listens at HOST:PORT: Ray itself would wait for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=ANSWER).close()


def _run(job: Job) -> int:
    return job.run_with_log()
