"""The server: one socket, one event loop, the worker beside it, and a clean end.

`vitlab serve` imports this module inside a function: uvicorn is an extra.
"""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from vitlab.errors import SIGNAL_CODES
from vitlab.service.app import Service, make_app
from vitlab.service.connections import Connection
from vitlab.service.limits import IDLE, LARGEST_HEADERS, Limits
from vitlab.service.supervision import CannotServe

BACKLOG = 256  # connections that the kernel keeps until they are accepted


class Server(uvicorn.Server):
    """uvicorn's server, which after a signal answers what it has accepted and then returns; a second one ends it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals in the block; does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self.handle_exit) for one in SIGNAL_CODES}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, leave at the second."""
        if self.should_exit:
            os._exit(SIGNAL_CODES[signal.Signals(sig)])
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A listening address; raises ValueError if it cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        # Connections inherit it. asyncio would set it only for sockets that name their protocol; without it, an answer
        # waits until the client has acknowledged its first part.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except socket.gaierror:
        raise ValueError(f"host={host!r} is not an address of this machine") from None
    except OverflowError:
        raise ValueError(f"port={port} is not between 0 and 65535") from None
    except OSError as error:
        taken = "is in use; choose another with port=, or port=0 for any" if error.errno == errno.EADDRINUSE else ""
        raise ValueError(f"port {port} of {host} {taken or f'cannot be used: {error.strerror}'}") from None


def run_server(service: Service, bound: socket.socket) -> None:
    """Serve until a signal comes and all accepted requests are answered; raises CannotServe if no model loads."""
    problems: list[CannotServe] = []

    @contextlib.asynccontextmanager
    async def beside(app: FastAPI) -> AsyncIterator[None]:
        """The worker runs while the server does."""
        running = asyncio.create_task(service.supervisor.run())
        running.add_done_callback(note)
        try:
            yield
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, CannotServe):
                await running
            for close in service.closing:
                close()

    def note(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            problems.append(error if isinstance(error, CannotServe) else CannotServe(repr(error), 3))
            server.should_exit = True

    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # clients' mistakes are not ours to log
    server = Server(_config(make_app(service, beside), service.limits))
    server.run(sockets=[bound])
    if problems:
        raise problems[0]


def _config(app: object, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # pyrefly: ignore - an ASGI application
        http=type("LimitedConnection", (Connection,), {"limits": limits}),
        ws="none",
        loop="asyncio",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=int(IDLE),
        timeout_graceful_shutdown=int(limits.body_seconds + limits.deadline + 1),
        h11_max_incomplete_event_size=LARGEST_HEADERS,
    )
