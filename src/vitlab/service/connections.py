"""Connections that cannot be held open: time limits on headers, idle and unread connections, errors as JSON.

h11 parses requests, because it is strict and bounds what it keeps of an incomplete one.
"""

import asyncio
import contextlib
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from vitlab.service.limits import DISCARDED, LINGER, MOST_CONNECTIONS, UNREAD, Limits
from vitlab.service.refusals import CODES, Refused

BY_STATUS = {400: "bad_request", 408: "timeout", 431: "headers_too_large", 501: "not_implemented", 503: "overloaded"}


class Lingering:
    """A transport whose `close` lets the client read the answer first.

    Closing a socket that has unread bytes resets the connection, and the client loses the answer to a body that it is
    still sending. So this closes one direction, and the other after a moment, or after some bytes that are discarded.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self.is_lingering, self.discarded = False, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether nothing more is written."""
        return self.is_lingering or self._transport.is_closing()

    def close(self) -> None:
        """Write what is waiting, and close soon."""
        if self.is_closing():
            return
        if not self._transport.can_write_eof():
            self._transport.close()
            return
        self.is_lingering = True
        self._transport.write_eof()
        self._transport.resume_reading()
        self._loop.call_later(LINGER, self._end, LINGER)

    def _end(self, waited: float) -> None:
        """Close, but not while the client is still reading the answer."""
        if self._transport.get_write_buffer_size() and waited < UNREAD:
            self._loop.call_later(LINGER, self._end, waited + LINGER)
        else:
            self._transport.abort()

    def discard(self, data: bytes) -> None:
        """Count bytes that nobody reads."""
        self.discarded += len(data)
        if self.discarded > DISCARDED:
            self._transport.abort()


class Connection(H11Protocol):
    """uvicorn's connection with time limits of its own; see the module."""

    limits = Limits()
    _lingering: Lingering
    _timer: asyncio.TimerHandle | None = None  # for the headers
    _unread: asyncio.TimerHandle | None = None  # for an answer that the client does not read
    _unread_cycle: Any = None  # the request that it answers

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyrefly: ignore - as in the base class
        self._lingering = Lingering(transport, self.loop)
        super().connection_made(self._lingering)  # pyrefly: ignore - it has all that is used of a transport
        if len(self.connections) > MOST_CONNECTIONS:
            self._refuse(Refused("overloaded", "too many connections are open; try again later"))
        else:
            self._watch(self.limits.header_seconds)

    def data_received(self, data: bytes) -> None:
        if self._lingering.is_lingering:
            self._lingering.discard(data)
            return
        super().data_received(data)
        self._watch_headers()

    def on_response_complete(self) -> None:
        self._forget_unread()
        super().on_response_complete()
        self._watch_headers()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:  # one deadline for the whole answer: a client that reads slowly does not move it
            self._unread = self.loop.call_later(UNREAD, self.transport.abort)
            self._unread_cycle = self.cycle

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_unread()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def _forget_unread(self) -> None:
        """End the deadline of an answer that the client has read, but for what the system keeps."""
        is_complete = self._unread_cycle is None or self._unread_cycle.response_complete
        if self._unread is not None and is_complete and not self.flow.write_paused:
            self._unread.cancel()
            self._unread = None

    def send_400_response(self, msg: str) -> None:
        """Answer a request that h11 cannot parse."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        code = BY_STATUS.get(status, "bad_request")
        self._refuse(Refused(code, CODES[code][1] if code != "bad_request" else f"not valid HTTP: {error}"))

    def _watch_headers(self) -> None:
        """Watch the time while headers are incomplete."""
        if self.conn.their_state is not h11.IDLE:
            self._unwatch()
        elif self._timer is None and self.conn.trailing_data[0]:
            self._watch(self.limits.header_seconds)

    def _watch(self, seconds: float) -> None:
        self._unwatch()
        message = f"the headers did not arrive within {seconds:g} s"
        self._timer = self.loop.call_later(seconds, lambda: self._refuse(Refused("timeout", message)))

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, refused: Refused) -> None:
        """Answer with an error if no answer has begun, and close."""
        self._unwatch()
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [("content-type", "application/json"), ("content-length", str(len(refused.body)))]
            headers += [("connection", "close"), ("x-content-type-options", "nosniff")]
            headers += [("retry-after", "1")] if refused.status == 503 else []
            reason = STATUS_PHRASES[refused.status]
            answer = h11.Response(status_code=refused.status, headers=headers, reason=reason)
            with contextlib.suppress(h11.LocalProtocolError):  # the answer to HEAD has no body
                for event in (answer, h11.Data(data=refused.body), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # nobody reads what the application says
            self.cycle.message_event.set()
        self.transport.close()
