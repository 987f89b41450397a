"""The worker process as the front sees it: started, given batches, watched, and started again when it ends."""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vitlab.errors import printable
from vitlab.process.confinement import child_environment
from vitlab.service import messages
from vitlab.service.limits import RETRY_AFTER, Limits
from vitlab.service.metrics import Metrics
from vitlab.service.refusals import Refused
from vitlab.service.waiting import Answer, Job, Waiting

COMMAND = (sys.executable, "-P", "-m", "vitlab.service.worker")  # -P: no modules from the current folder
PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)  # seconds before the worker is started again, by how often it failed to start
MOST_FAILURES = 3  # to start, before the service has ever been ready
LOADING = 600.0  # seconds to load the models
CLOSING = 5.0  # seconds to end after the front has closed its side
BUFFER = 2**20  # bytes

GONE = (asyncio.IncompleteReadError, OSError, messages.BrokenMessage)


class CannotServe(Exception):  # noqa: N818 - says what is wrong
    """The models cannot be served; the message is the worker's, `code` the exit code of the command."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Worker:
    """A running process and the socket to it."""

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def end(self, patience: float) -> int:
        """Close the socket, which ends the worker, or kill it after `patience` seconds; returns its exit code."""
        self.writer.close()
        try:
            async with asyncio.timeout(patience):
                return await self.process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            return await self.process.wait()


@dataclass
class Supervisor:
    """Keeps one worker running and gives it the jobs that wait.

    `setup` is the worker's first message: which models to load, and how. `ready` is its answer when it has loaded them,
    None while there is no such worker. `say` prints a line for whoever runs the service.
    """

    setup: dict[str, Any]
    limits: Limits
    waiting: Waiting
    metrics: Metrics
    say: Callable[[str], None]
    ready: messages.Message | None = None
    problem: str = "the models are loading"
    pid: int | None = None
    on_ready: list[Callable[[], None]] = field(default_factory=list)
    _computing: list[Job] = field(default_factory=list)

    async def run(self) -> None:
        """Keep a worker running until cancelled; raises CannotServe if the models never load."""
        failures, was_ready = 0, False
        while True:
            await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
            worker = None
            try:
                worker = await self._start()
                self.ready = await self._loaded(worker)
                self.problem, failures, was_ready = "", 0, True
                for call in self.on_ready:
                    call()
                await self._work(worker)
            except CannotServe as error:
                failures += 1
                if not was_ready:
                    raise
                self.problem = f"the models cannot be loaded again: {error}"
            except (*GONE, TimeoutError) as error:
                failures += self.ready is None
                is_stuck = isinstance(error, TimeoutError)
                self.problem = "the worker did not answer in time" if is_stuck else "the worker ended"
                self._lose()  # at once: its clients wait
                if worker is None:
                    how, self.problem = str(error), "the worker cannot be started"
                else:
                    how = _ending(await worker.end(0.0 if is_stuck else CLOSING))
                self.problem += f" ({how}) and is being started again"
                if failures >= MOST_FAILURES and not was_ready:
                    raise CannotServe(f"the worker ended {failures} times while it loaded: {how}", 3) from None
            finally:
                self.ready = self.pid = None
                if worker is not None:
                    with contextlib.suppress(Exception):
                        await asyncio.shield(worker.end(CLOSING))
            self.metrics.restarts.add()
            self.say(f"vitlab: {self.problem}")

    def check_ready(self) -> None:
        """Raise Refused while no worker is ready."""
        if self.ready is None:
            raise Refused("not_ready", f"{self.problem}; try again in {RETRY_AFTER} s")

    async def _start(self) -> Worker:
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as on_failure, theirs:
            on_failure.callback(ours.close)
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                env=child_environment(),
                start_new_session=True,  # Ctrl-C is for the front, which drains first
            )
            on_failure.pop_all()
        self.pid = process.pid
        reader, writer = await asyncio.open_connection(sock=ours, limit=BUFFER)
        return Worker(process, reader, writer)

    async def _loaded(self, worker: Worker) -> messages.Message:
        """Let the worker load its models; returns what it says about them."""
        async with asyncio.timeout(LOADING):
            await messages.send(worker.writer, self.setup)
            while True:
                header, parts = await messages.receive(worker.reader)
                event, text = header.get("event"), printable(str(header.get("text", "")))
                if event == "ready" and isinstance(header.get("models"), list):
                    return header, parts
                if event == "failed":
                    raise CannotServe(text, int(header.get("code", 2)))
                if event != "note":
                    raise messages.BrokenMessage(f"the event {event!r:.40} is unknown or incomplete")
                self.say(text)

    async def _work(self, worker: Worker) -> None:
        """Give the worker batch after batch; raises when it has gone, or does not answer within the deadline."""
        hearing = asyncio.ensure_future(messages.receive(worker.reader))
        try:
            while True:
                gathering = asyncio.ensure_future(self.waiting.gather())
                try:
                    await asyncio.wait({hearing, gathering}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    gathering.cancel()
                if hearing.done():
                    hearing.result()
                    raise messages.BrokenMessage("an answer to no question")
                self._computing = jobs = self.waiting.take()
                if not jobs:
                    continue
                self.metrics.batches.observe(len(jobs))
                items = [job.options for job in jobs]
                header = {"kind": jobs[0].kind, "model": jobs[0].model, "items": items}
                async with asyncio.timeout(self.limits.deadline):
                    await messages.send(worker.writer, header, [job.body for job in jobs])
                    said, parts = await hearing
                self._answer(jobs, said, parts)
                hearing = asyncio.ensure_future(messages.receive(worker.reader))
        finally:
            hearing.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await hearing

    def _answer(self, jobs: list[Job], said: dict[str, Any], parts: list[bytes]) -> None:
        answers = said.get("answers")
        if not isinstance(answers, list) or not len(answers) == len(parts) == len(jobs):
            raise messages.BrokenMessage("another number of answers than of requests")
        self._computing = []
        self.waiting.suspects.clear(jobs)
        for job, (status, kind), body in zip(jobs, answers, parts, strict=True):
            if not job.answer.done():
                job.answer.set_result(Answer(int(status), str(kind), body))

    def _lose(self) -> None:
        """Refuse what the worker was computing when it ended."""
        self.ready = None
        jobs, self._computing = self._computing, []
        self.waiting.suspects.blame(jobs)
        for job in jobs:
            job.refuse("worker_lost", f"{self.problem} while it computed this request; send it again")


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
