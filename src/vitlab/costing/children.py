"""A child process that carries out a task, killed when it exceeds its memory or its time.

The memory that counts is what the child holds (its resident set), read from /proc every few milliseconds. A limit on
the address space would not do: torch reserves far more than it uses. The child also volunteers to be the kernel's
first victim (`memory.be_killed_first`), so that no other program pays if memory runs out all the same.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import IO, Self

from vitlab.costing.child import Report, Task
from vitlab.costing.memory import resident
from vitlab.files.strict_json import from_json, parse_json

LOOK = 0.005  # seconds between two looks at the memory of a child
PATIENCE = 600.0  # seconds for a child to import torch and to build its model
COMMAND = (sys.executable, "-P", "-m", "vitlab.costing")  # -P: no modules from the current folder


class TooMuchMemory(Exception):  # noqa: N818 - says what happened
    """The child exceeded its memory."""


class TooLong(Exception):  # noqa: N818 - says what happened
    """The child exceeded its time."""


class ChildFailed(Exception):  # noqa: N818 - says what happened
    """The child ended with an error; the message says which."""


class Child:
    """A process for a task, with `limit` bytes of memory once torch is imported; None is no limit.

    Leave the block, whatever happens in it, and the process has ended.
    """

    def __init__(self, task: Task, limit: int | None) -> None:
        self.limit = limit
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
        self._lines = self._read()
        self._is_started = self._is_ready = False
        self._write(asdict(task))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill the process, and wait until it has ended."""
        self._process.kill()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                _there(file).close()
        self._process.wait()

    def reports(self, seconds: float) -> Iterator[Report]:
        """The reports as they come, until the child waits for a request; raises if it exceeds a limit or fails.

        `seconds` count from now, or from the report `ready` if that is still to come.
        """
        deadline = time.monotonic() + (seconds if self._is_ready else PATIENCE)
        for line in self._lines:
            if line is None:
                self._check(deadline)
                continue
            report = from_json(Report, parse_json(line, "a report"))
            if report.event == "waiting":
                return
            if report.event == "failed":
                raise ChildFailed(report.words)
            if report.event == "too-large":
                raise TooMuchMemory
            self._is_started = True
            if report.event == "ready":
                self._is_ready, deadline = True, time.monotonic() + seconds
            yield report
        self._explain()

    def request(self, batch: int) -> None:
        """Let a child that waits run a batch; `reports` has the result."""
        self._write(batch)

    def _write(self, value: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended: `reports` says why
            _there(self._process.stdin).write((json.dumps(value, allow_nan=False) + "\n").encode())
            _there(self._process.stdin).flush()

    def _check(self, deadline: float) -> None:
        held = resident(self._process.pid) if self._is_started and self.limit is not None else None
        if held is not None and self.limit is not None and held > self.limit:
            self._process.kill()  # at once: whoever catches the error may take its time
            raise TooMuchMemory
        if time.monotonic() > deadline:
            raise TooLong

    def _explain(self) -> None:
        """Raise for a child that has ended before its work was done."""
        code = self._process.wait()
        if code == -signal.SIGKILL:  # by the kernel, which has run out of memory
            raise TooMuchMemory
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        raise ChildFailed(f"its process ended with exit code {code}: {said[-1] if said else 'no message'}")

    def _read(self) -> Iterator[bytes | None]:
        """The lines that the child writes, and None before each wait for more, which takes `LOOK` seconds at most."""
        waiting, output = b"", _there(self._process.stdout)
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while True:
                yield None
                if not selector.select(LOOK):
                    continue
                more = os.read(output.fileno(), 65_536)
                if not more:
                    return
                *lines, waiting = (waiting + more).split(b"\n")
                yield from lines


def _there(file: IO[bytes] | None) -> IO[bytes]:
    assert file is not None  # Popen makes all pipes
    return file
