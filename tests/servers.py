"""Real services for tests: `vitlab serve` in a process of its own, and clients that behave well or badly."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self

PATIENCE = 120.0  # seconds to wait for anything on a busy machine; nothing here measures time


class Reply(NamedTuple):
    """What the service says: 0 is a connection that was closed without an answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return self.json["error"]["code"]


class Service:
    """`vitlab serve` on a free port of the loopback interface."""

    def __init__(
        self,
        *words: object,
        environment: dict[str, str] | None = None,
        program: Sequence[str] = ("-m", "vitlab"),
        command: Sequence[str] = (),
        is_awaited: bool = True,
    ) -> None:
        command = command or [sys.executable, *program, "serve", *map(str, words), "--port", "0"]
        given = {name: value for name, value in os.environ.items() if name != "VITLAB_TOKEN"} | (environment or {})
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=given)
        self.said: list[str] = []
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()
        self.port = 0
        if is_awaited:
            self.wait_for(lambda: self.address())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        workers = self.workers()
        self.process.kill()
        self.process.wait()
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.listener.join()
        self.process.stderr.close()

    def address(self) -> bool:
        """Whether the service has said where it is."""
        found = re.search(r" at http://[^ ]*?:(\d+)/", " ".join(self.said))
        self.port = int(found[1]) if found else 0
        return self.port > 0

    def wait_for(self, holds) -> None:
        """Wait until something holds; fails when the service ends or the patience does."""
        end = time.monotonic() + PATIENCE
        while not holds():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    # -- Processes

    def workers(self) -> list[int]:
        """The worker processes that run; none that is still a copy of the front, which waits until it is not."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        pids = [int(pid) for pid in found.read_text().split()] if found.exists() else []
        return [pid for pid in pids if b"vitlab.service.worker" in command_line(pid)]

    @contextlib.contextmanager
    def stopped_worker(self):
        """Let the worker stand still, so that requests wait."""
        (pid,) = self.workers()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def memory(self) -> int:
        """Bytes that the front and the worker hold."""
        return sum(resident(pid) for pid in (self.process.pid, *self.workers()))

    def descriptors(self) -> int:
        """Open files of the front."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    # -- Clients

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """Send one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.request("GET", path, **headers)

    def post(self, path: str, body: bytes, **headers: str) -> Reply:
        return self.request("POST", path, body, **headers)

    def together(self, path: str, bodies: list[bytes]) -> list[Reply]:
        """Send requests at the same time."""
        with ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(lambda body: self.post(path, body), bodies))

    def connect(self) -> socket.socket:
        """A connection to misuse."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def raw(self, data: bytes, *, is_complete: bool = True) -> Reply:
        """Send any bytes and read the answer; after incomplete ones, the client sends no more."""
        with self.connect() as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
                if not is_complete:
                    connection.shutdown(socket.SHUT_WR)
            return answer_of(connection, "HEAD" if data.startswith(b"HEAD ") else "GET")

    def metrics(self, **headers: str) -> dict[str, float]:
        """All numbers by name and labels."""
        lines = self.get("/metrics", **headers).body.decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    def _listen(self) -> None:
        for line in self.process.stderr:
            self.said.append(line.decode(errors="replace").rstrip())


def answer_of(connection: socket.socket, method: str = "GET") -> Reply:
    """The next answer on a connection."""
    answer = http.client.HTTPResponse(connection, method=method)
    try:
        answer.begin()
        return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    except (ConnectionError, http.client.BadStatusLine):
        return Reply(0, {}, b"")
    finally:
        answer.close()


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def multipart(*parts: bytes, name: str = "image", filename: str | None = "a.jpg", mark: str = "XX") -> bytes:
    """A form with these files."""
    about = f'Content-Disposition: form-data; name="{name}"' + (f'; filename="{filename}"' if filename else "")
    bodies = [f"--{mark}\r\n{about}\r\n\r\n".encode() + part + b"\r\n" for part in parts]
    return b"".join(bodies) + f"--{mark}--\r\n".encode()


FORM = "multipart/form-data; boundary=XX"


def command_line(pid: int) -> bytes:
    """The arguments of a process, empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
