"""Requests that wait for the worker: bounded by number and by bytes, taken in batches, cancelled when clients leave."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from vitlab.service.limits import Limits
from vitlab.service.refusals import Refused

Kind = Literal["predict", "explain", "trace"]
REMEMBERED = 1024  # inputs that ended the worker


class Answer(NamedTuple):
    """What the worker says to one request."""

    status: int
    media_type: str
    body: bytes


@dataclass(eq=False)
class Job:
    """A request for the worker: what to do with which model, the options, and the bytes that were uploaded."""

    kind: Kind
    model: str
    options: dict[str, Any]
    body: bytes
    answer: asyncio.Future[Answer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @cached_property
    def fingerprint(self) -> bytes:
        """The hash that an input is recognised by."""
        return hashlib.sha256(f"{self.kind} {self.model} ".encode() + self.body).digest()

    def refuse(self, code: str, message: str) -> None:
        """Answer with an error, unless the client has left or has its answer."""
        if not self.answer.done():
            self.answer.set_exception(Refused(code, message))


class Budget:
    """The bytes of all bodies in memory: requests, uploads in progress included, and answers until they are sent."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    def take(self, size: int) -> None:
        """Reserve bytes; raises Refused if there are too many."""
        if self.used + size > self.limit:
            raise Refused("overloaded", f"requests hold {self.used:,} of {self.limit:,} bytes; try again later")
        self.used += size

    def take_answer(self, size: int) -> None:
        """Reserve bytes for an answer; raises Refused if there are too many, unless it is the only body in memory."""
        if self.used:
            self.take(size)
        else:
            self.used = size

    def give(self, size: int) -> None:
        """Return bytes."""
        self.used -= size


class Waiting:
    """The jobs that no worker has yet, first come first served."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.arriving = 0  # requests whose bodies are still being read
        self.suspects = Suspects()
        self._jobs: list[Job] = []
        self._changed = asyncio.Event()
        self._last = 1  # size of the last batch of predictions

    def __len__(self) -> int:
        return sum(not job.answer.done() for job in self._jobs)

    def check_room(self) -> None:
        """Raise Refused if no job can be added."""
        if len(self._jobs) >= self.limits.queue:
            self._jobs = [job for job in self._jobs if not job.answer.done()]
        if len(self._jobs) >= self.limits.queue:
            raise Refused("overloaded", f"{len(self._jobs)} requests are waiting, which is the limit; try again later")

    def add(self, job: Job) -> None:
        """Let a job wait; raises Refused if there is no room, or if its input has ended the worker twice."""
        self.check_room()
        self.suspects.check(job)
        self._jobs.append(job)
        self._changed.set()

    def note_arrival(self) -> None:
        """Let a batch that waits for arriving requests look again."""
        self._changed.set()

    async def gather(self) -> None:
        """Wait for a job, and a moment for others; `take` takes them.

        Others are expected if they are arriving, or if the last batch was larger: clients that were answered together
        often send their next requests together.
        """
        while not self._next():
            await self._wait(None)
        until = asyncio.get_running_loop().time() + self.limits.wait / 1000
        while (found := len(self._next())) < self.limits.batch and (self.arriving or found < self._last):
            left = until - asyncio.get_running_loop().time()
            if left <= 0 or not await self._wait(left):
                break

    def take(self) -> list[Job]:
        """Take the jobs of the next batch; none if all clients have left.

        Predictions by one model are computed together, all else alone, and so is an input that was there when a worker
        ended: if it was innocent, it is known afterwards, and if not, no other request suffers.
        """
        taken = self._next()
        self._last = max(len(taken), 1)
        self._jobs = [job for job in self._jobs if job not in taken and not job.answer.done()]
        return taken

    def discard(self, job: Job) -> None:
        """Forget a job, with its body, if it still waits."""
        if job in self._jobs:
            self._jobs.remove(job)

    def clear(self, code: str, message: str) -> None:
        """Refuse all jobs."""
        for job in self._jobs:
            job.refuse(code, message)
        self._jobs.clear()

    def _next(self) -> list[Job]:
        """The jobs of the next batch."""
        live = [job for job in self._jobs if not job.answer.done()]
        if not live:
            return []
        first = live[0]
        if first.kind != "predict" or self.suspects.suspects(first):
            return [first]
        same = [job for job in live if (job.kind, job.model) == (first.kind, first.model)]
        return [job for job in same if not self.suspects.suspects(job)][: self.limits.batch]

    async def _wait(self, seconds: float | None) -> bool:
        """Wait for a change; false if there was none in time."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True


class Suspects:
    """Inputs that were being computed when a worker ended, and those that ended two.

    An input that was in a batch when a worker ended is computed alone the next time. If the worker ends again, the
    input is refused from then on; if not, it is cleared. Both lists forget the oldest.
    """

    def __init__(self, most: int = REMEMBERED) -> None:
        self.most = most
        self._once: OrderedDict[bytes, None] = OrderedDict()
        self._twice: OrderedDict[bytes, None] = OrderedDict()

    def check(self, job: Job) -> None:
        """Raise Refused for an input that ended two workers."""
        if self._twice and job.fingerprint in self._twice:
            raise Refused("killed_worker", "this input ended the worker twice; it is not tried again", "image")

    def suspects(self, job: Job) -> bool:
        """Whether this input was there when a worker ended."""
        return bool(self._once) and job.fingerprint in self._once

    def blame(self, jobs: Iterable[Job]) -> None:
        """Note that a worker ended while it computed these."""
        for job in jobs:
            if self.suspects(job):
                del self._once[job.fingerprint]
                self._remember(self._twice, job)
            else:
                self._remember(self._once, job)

    def clear(self, jobs: Iterable[Job]) -> None:
        """Note that these were computed."""
        if self._once:
            for job in jobs:
                self._once.pop(job.fingerprint, None)

    def _remember(self, where: OrderedDict[bytes, None], job: Job) -> None:
        where[job.fingerprint] = None
        while len(where) > self.most:
            where.popitem(last=False)
