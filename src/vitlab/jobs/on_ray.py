"""Jobs as Ray tasks, on this machine or a cluster; needs the extra `ray`."""

import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from vitlab.jobs.job import LOOK, Ended, Job, Ray, ended_with

ANSWER = 10.0  # seconds
OBJECTS = 80 * 2**20  # bytes of a local Ray's object store: only short messages pass through it


def require_ray() -> Any:
    """Import ray, or raise an error that names the extra."""
    try:
        import ray
    except ImportError:
        raise ModuleNotFoundError("ray= needs Ray: pip install 'vitlab[ray]'") from None
    return ray


class RayPool:
    """Every job is a Ray task without retries of its own: `mapping` counts the tries."""

    def __init__(self, workers: Ray) -> None:
        self.size = workers.count
        self._ray = require_ray()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        if workers.address == "local":
            self._ray.init("local", num_cpus=self.size, include_dashboard=False, object_store_memory=OBJECTS, **quiet)
        else:
            try:
                _knock(workers.address)
                self._ray.init(workers.address, **quiet)
            except (OSError, ValueError, RuntimeError) as error:
                raise ValueError(
                    f"no Ray cluster responds at {workers.address!r}: {error}; give local or HOST:PORT of a cluster"
                ) from None
        self._remote = self._ray.remote(_run).options(num_cpus=1, num_gpus=workers.gpus, max_retries=0)

    def start(self, job: Job) -> Any:
        """Submit the job; Ray starts it when a worker is free."""
        return self._remote.remote(job)

    def ended(self, handles: list[Any]) -> Iterator[tuple[Any, Ended]]:
        """Yield the tasks that are done or whose workers died."""
        if not handles:
            time.sleep(LOOK)
            return
        for handle in self._ray.wait(handles, num_returns=len(handles), timeout=LOOK)[0]:
            yield handle, self._how(handle)

    def stop(self, handles: list[Any]) -> None:
        """Cancel the tasks: they receive SIGINT and save their state."""
        for handle in handles:
            self._ray.cancel(handle)

    def close(self) -> None:
        """Shut a local Ray down, or disconnect from a cluster."""
        self._ray.shutdown()

    def _how(self, handle: Any) -> Ended:
        lost = self._ray.exceptions
        try:
            return ended_with(self._ray.get(handle))
        except (lost.WorkerCrashedError, lost.NodeDiedError, lost.OutOfMemoryError) as error:
            return Ended(killed=True, words=f"its worker died ({type(error).__name__})")
        except lost.TaskCancelledError:
            return Ended(killed=True, words="cancelled")
        except lost.RayError as error:  # before the job started: vitlab is missing there, or has another version
            return Ended(killed=False, words=" ".join(str(error).split())[-300:])


def _knock(address: str) -> None:
    """Raise at once if nothing listens at HOST:PORT: Ray itself would wait for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=ANSWER).close()


def _run(job: Job) -> int:
    return job.run_with_log()
