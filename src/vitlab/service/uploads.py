"""What a client uploads: the body of a request, read within its limits, and the one file of a multipart form."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

from vitlab.service.limits import Limits
from vitlab.service.refusals import Refused
from vitlab.service.waiting import Budget

UNNAMED = "-"  # a picture without a name, as `vitlab predict MODEL -` calls standard input
LONGEST_NAME = 255  # characters
MULTIPART = "multipart/form-data"
BOUNDARY = re.compile(r'boundary=(?:"([^"\r\n]{1,70})"|([\w\'()+,./:=?-]{1,70}))\s*(?:;|$)', re.ASCII | re.IGNORECASE)
DISPOSITION = re.compile(
    rb'^content-disposition:[ \t]*form-data[ \t]*(?:;[ \t]*[\w*-]+=(?:"(?:[^"\\\r\n]|\\.)*"|[^;"\s]*))*[ \t]*$', re.I
)
FILE_NAME = re.compile(rb';[ \t]*filename="((?:[^"\\\r\n]|\\.)*)"', re.IGNORECASE)
LARGEST_PART_HEADERS = 4096  # bytes


class Upload(NamedTuple):
    """An uploaded picture and the name that the client gave it, which is never used as a path."""

    name: str
    data: bytes


def check_headers(headers: Mapping[str, str], limits: Limits) -> None:
    """Raise Refused for a body that is compressed or too large, before any of it is read."""
    if "content-length" in headers and "transfer-encoding" in headers:
        raise Refused("bad_request", "the request has both a Content-Length and a Transfer-Encoding header")
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise Refused("unsupported_encoding", f"the body is encoded as {encoding!r:.40}; send it as it is")
    length = headers.get("content-length", "0")
    if int(length) > limits.max_body:  # h11 has checked that it is a number
        raise _too_large(limits)


async def read_body(chunks: AsyncIterator[bytes], limits: Limits, budget: Budget) -> bytes:
    """The whole body, counted in the budget until the caller returns its length; raises Refused if it is too large or
    takes too long.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in chunks:
                if size + len(chunk) > limits.max_body:
                    raise _too_large(limits)
                budget.take(len(chunk))
                size += len(chunk)
                parts.append(chunk)
        return b"".join(parts)
    except BaseException as error:
        budget.give(size)
        if isinstance(error, TimeoutError):
            raise Refused("timeout", f"the body did not arrive within {limits.body_seconds:g} s") from None
        raise


def _too_large(limits: Limits) -> Refused:
    return Refused("too_large", f"the body is larger than the {limits.max_body:,} bytes that are allowed")


def upload_of(content_type: str, body: bytes) -> Upload:
    """The picture in a body: the body itself, or the one file of a form."""
    if content_type.partition(";")[0].strip().lower() != MULTIPART:
        return Upload(UNNAMED, body)
    found = BOUNDARY.search(content_type)
    if found is None:
        raise Refused("bad_request", "the multipart form has no valid boundary", "content-type")
    return _file_of(body, b"--" + (found[1] or found[2]).encode())


def _file_of(body: bytes, mark: bytes) -> Upload:
    """The one part of a form; raises Refused unless there is exactly one, and it is a file."""
    if body.startswith(mark):
        body = b"\r\n" + body
    mark = b"\r\n" + mark
    _, _, rest = body.partition(mark)  # what precedes the first mark is ignored
    part, end, after = rest.partition(mark)
    if not end or not part.startswith(b"\r\n"):
        raise Refused("bad_request", "the multipart form has no complete part", "image")
    if not after.startswith(b"--"):
        raise Refused("bad_request", "the multipart form has several parts; send one file", "image")
    headers, blank, data = part[2:].partition(b"\r\n\r\n")
    if not blank or len(headers) > LARGEST_PART_HEADERS:
        raise Refused("bad_request", "the part of the multipart form has no valid headers", "image")
    lines = headers.split(b"\r\n")
    dispositions = [line for line in lines if line.lower().startswith(b"content-disposition")]
    if len(dispositions) != 1 or not DISPOSITION.match(dispositions[0]):
        raise Refused("bad_request", "the part of the multipart form has no valid Content-Disposition", "image")
    if any(line.lower().startswith(b"content-transfer-encoding") for line in lines):
        raise Refused("unsupported_encoding", "the part of the multipart form is encoded; send it as it is", "image")
    named = FILE_NAME.search(dispositions[0])
    if named is None:
        raise Refused("bad_request", "the part of the multipart form is not a file: it has no filename", "image")
    return Upload(_base_name(named[1]), data)


def _base_name(given: bytes) -> str:
    """The last part of a name, for answers and for its suffix."""
    text = re.sub(r'\\(["\\])', r"\1", given.decode("utf-8", errors="replace"))
    return re.split(r"[/\\]", text)[-1][-LONGEST_NAME:] or UNNAMED
