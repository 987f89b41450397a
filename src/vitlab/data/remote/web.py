"""Files on web servers that answer range requests, through the HTTP session of fsspec."""

import email.utils
import re
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import aiohttp
import fsspec
import yarl
from fsspec.asyn import sync

from vitlab.data.remote import stores
from vitlab.data.remote.addresses import Address, is_loopback
from vitlab.data.remote.faults import Passing, changed, failed, seconds_to_wait
from vitlab.data.remote.stores import Facts, checked, deadline
from vitlab.errors import RemoteRefused

REDIRECTS = 5
MOVED = (301, 302, 303, 307, 308)
RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
NONE = re.compile(r"bytes \*/(\d{1,18})")
NO_RANGES = "its server does not answer range requests; copy the file, or serve it from one that does"


class WebStore:
    """See `stores.Store`; a folder has no listing."""

    def __init__(self) -> None:
        self._files: Any = fsspec.filesystem("http", skip_instance_cache=True)

    def facts(self, address: Address) -> Facts:
        return self._get(address, self.url(address), None, 0, 1)[0]

    def read(self, address: Address, facts: Facts, start: int, stop: int) -> bytes:
        return checked(self._get(address, self.url(address), facts, start, stop)[1], stop - start)

    def listing(self, folder: Address) -> dict[str, Facts]:
        raise RemoteRefused(f"{folder} cannot be listed: web servers have no common way; give the address of one file")

    def pinned(self, address: Address) -> Address:
        return address

    def url(self, address: Address) -> str:
        """The URL to ask; an address is plain text, a URL has escapes."""
        host, _, path = address.rest.partition("/")
        return f"{address.scheme}://{host}/{quote(path)}"

    def headers(self) -> dict[str, str]:
        """Headers for the first server only, not for one that it redirects to."""
        return {}

    def _get(self, address: Address, url: str, facts: Facts | None, start: int, stop: int) -> tuple[Facts, bytes]:
        try:
            limit = deadline(stop - start)
            got: Any = sync(self._files.loop, self._asked, address, url, facts, start, stop, timeout=limit)
            return got
        except aiohttp.InvalidURL:
            raise RemoteRefused(f"{address} is not a valid address; check it") from None
        except PermissionError as error:  # this process may not open connections
            raise RemoteRefused(f"{address} cannot be read from this process ({error})") from None
        except (OSError, aiohttp.ClientError, EOFError) as error:
            raise Passing(type(error).__name__) from None

    async def _asked(
        self, address: Address, url: str, facts: Facts | None, start: int, stop: int
    ) -> tuple[Facts, bytes]:
        session = await self._files.set_session()
        span = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        headers = self.headers()
        limits = aiohttp.ClientTimeout(total=None, sock_connect=stores.WAIT, sock_read=stores.WAIT)
        for _ in range(REDIRECTS + 1):
            target = yarl.URL(url, encoded=True)
            async with session.get(target, headers=span | headers, allow_redirects=False, timeout=limits) as answer:
                if answer.status not in MOVED:
                    return await _received(address, answer, facts, start, stop)
                url, headers = _next(address, url, answer.headers.get("Location", "")), {}
        raise RemoteRefused(f"{address} is redirected more than {REDIRECTS} times; check the address")


def _next(address: Address, url: str, location: str) -> str:
    """Where a redirect leads: to https, or from this machine to this machine."""
    target = urljoin(url, location)
    local = urlsplit(url).scheme == "http" and urlsplit(target).scheme == "http" and is_loopback(target)
    if not location or not (urlsplit(target).scheme == "https" or local):
        raise RemoteRefused(f"{address} is redirected to an address that is not https; vitlab does not follow")
    return target


async def _received(
    address: Address, answer: aiohttp.ClientResponse, facts: Facts | None, start: int, stop: int
) -> tuple[Facts, bytes]:
    """The facts and the body of an answer, checked before the body is read."""
    headers = answer.headers
    if answer.status == 416 and (empty := NONE.fullmatch(headers.get("Content-Range", ""))) and facts is None:
        return Facts(int(empty[1]), _time(headers), _tag(headers)), b""
    if answer.status == 200:
        raise RemoteRefused(f"{address} cannot be read in parts: {NO_RANGES}")
    if answer.status != 206:
        raise failed(address, answer.status, seconds_to_wait(headers.get("Retry-After")))
    span = RANGE.fullmatch(headers.get("Content-Range", ""))
    if span is None or headers.get("Content-Encoding", "identity") != "identity":
        raise RemoteRefused(f"{address} cannot be read in parts: {NO_RANGES}")
    found = Facts(int(span[3]), _time(headers), _tag(headers))
    if facts is not None and (found.size != facts.size or (facts.tag and found.tag != facts.tag)):
        raise changed(address)
    if facts is not None and (int(span[1]), int(span[2])) != (start, stop - 1):
        raise Passing(f"an answer with bytes {span[1]}-{span[2]} instead of {start}-{stop - 1}")
    return found, await _body(answer, stop - start)


async def _body(answer: aiohttp.ClientResponse, length: int) -> bytes:
    """Read a body of at most `length` bytes; a longer one is cut off, and refused by its length."""
    data = bytearray()
    async for piece in answer.content.iter_any():
        data += piece
        if len(data) > length:
            break
    return bytes(data)


def _tag(headers: Any) -> str:
    return (headers.get("ETag") or headers.get("Last-Modified") or "")[:500]


def _time(headers: Any) -> int:
    try:
        return int(email.utils.parsedate_to_datetime(headers.get("Last-Modified", "")).timestamp()) * 10**9
    except (ValueError, TypeError, OverflowError):
        return 0
