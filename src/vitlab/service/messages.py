"""Messages between the front process and the worker: the length of a JSON header, the header, then raw parts.

The header's `sizes` are the lengths of the parts. Nothing is pickled, so neither side can make the other run code.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

from vitlab.files.strict_json import parse_json
from vitlab.service.limits import LARGEST_ANSWER

LENGTH = struct.Struct("<I")
LARGEST_HEADER = 2**26  # bytes: the cards of several models with thousands of class names
JSON = "application/json"
Answered = tuple[int, str, bytes]  # what the worker says to one request: status, media type, body
Message = tuple[dict[str, Any], list[bytes]]  # the header and the parts


class BrokenMessage(ValueError):  # noqa: N818 - says what is wrong
    """The other side sent something that is no message."""


def packed(header: dict[str, Any], parts: Sequence[bytes] = ()) -> list[bytes]:
    """A message as pieces to write one after the other."""
    text = json.dumps({**header, "sizes": [len(part) for part in parts]}, allow_nan=False).encode()
    return [LENGTH.pack(len(text)), text, *parts]


def _header_of(text: bytes) -> dict[str, Any]:
    try:
        header = parse_json(text, "a message")
    except ValueError as error:
        raise BrokenMessage(str(error)) from None
    sizes = header.get("sizes") if isinstance(header, dict) else None
    if not isinstance(sizes, list) or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise BrokenMessage("a message without sizes")
    if sum(sizes) > LARGEST_ANSWER:
        raise BrokenMessage(f"a message of {sum(sizes):,} bytes; at most {LARGEST_ANSWER:,} are allowed")
    return dict(header)  # pyrefly: ignore - a dictionary, as checked


def _length_of(prefix: bytes) -> int:
    (length,) = LENGTH.unpack(prefix)
    if length > LARGEST_HEADER:
        raise BrokenMessage(f"a header of {length:,} bytes; at most {LARGEST_HEADER:,} are allowed")
    return length


class Channel:
    """The worker's end of a pair of sockets: it waits while it reads and writes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._input = connection.makefile("rb", buffering=2**16)

    def receive(self) -> Message | None:
        """The next message; None once the other side has closed."""
        prefix = self._input.read(LENGTH.size)
        if len(prefix) < LENGTH.size:
            return None
        header = _header_of(self._exactly(_length_of(prefix)))
        return header, [self._exactly(size) for size in header["sizes"]]

    def send(self, header: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
        """Write a message."""
        for piece in filter(None, packed(header, parts)):  # after the last byte the other side may have closed
            self._connection.sendall(piece)

    def _exactly(self, size: int) -> bytes:
        data = self._input.read(size)
        if len(data) < size:
            raise BrokenMessage("the other side closed in the middle of a message")
        return data


async def receive(reader: asyncio.StreamReader) -> Message:
    """The next message, in the front; raises IncompleteReadError or an OSError once the worker has gone."""
    header = _header_of(await reader.readexactly(_length_of(await reader.readexactly(LENGTH.size))))
    return header, [await reader.readexactly(size) for size in header["sizes"]]


async def send(writer: asyncio.StreamWriter, header: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
    """Write a message, in the front."""
    writer.writelines(packed(header, parts))
    await writer.drain()
