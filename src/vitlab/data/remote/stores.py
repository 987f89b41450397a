"""Stores of remote files: one request each, without retries. Needs the extra `[remote]`.

A store is opened in the process that uses it: connections and event loops do not survive a fork.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, cast

from vitlab.data.remote.addresses import Address
from vitlab.data.remote.faults import Missing, Passing, changed, failed
from vitlab.errors import RemoteRefused

WAIT = 30.0  # seconds without an answer or without a byte
SLOWEST = 50_000  # bytes per second; a slower answer counts as a fault
PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp"}
IN_EXTRA = {"s3", "http", "https"}


@dataclass(frozen=True)
class Facts:
    """One version of a remote file."""

    size: int  # bytes
    time: int = 0  # of its last change, in nanoseconds; 0 if the store does not say
    tag: str = ""  # differs between versions of different content: an ETag or a hash


class Store(Protocol):
    """Where remote files are. Every method makes one attempt: it raises Passing, RemoteRefused, or BadImage if the file
    has changed."""

    def facts(self, address: Address) -> Facts:
        """Return size, time and tag of a file."""
        ...

    def read(self, address: Address, facts: Facts, start: int, stop: int) -> bytes:
        """Read the bytes from `start` up to `stop` of this version of a file: all of them."""
        ...

    def listing(self, folder: Address) -> dict[str, Facts]:
        """Return the files directly in a folder, by name."""
        ...

    def pinned(self, address: Address) -> Address:
        """Return the address of the same file or folder that later versions do not change, where the store has one."""
        ...


Key = tuple[int, str, tuple[tuple[str, str], ...]]  # process, scheme, and the settings that the store was opened with
SETTINGS = ("AWS_", "FSSPEC_", "GOOGLE_", "HF_")  # variables that begin like this
_open: dict[Key, Store] = {}
_lock = threading.Lock()


def _forget() -> None:
    """In a forked process: nothing of the parent's connections is used, and its lock may be held."""
    global _lock
    _lock = threading.Lock()
    _inherited.append(dict(_open))  # not closed here: the event loop that would do it runs in the parent
    _open.clear()


_inherited: list[dict[Key, Store]] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def store_of(address: Address) -> Store:
    """Return this process's store for an address; raises ModuleNotFoundError if a package is missing."""
    if os.environ.get("VITLAB_OFFLINE", "") not in ("", "0"):
        raise RemoteRefused(f"{address} is not read because VITLAB_OFFLINE is set; unset it, or use a local copy")
    settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith(SETTINGS)))
    key = os.getpid(), address.scheme, settings  # in a notebook settings may change
    with _lock:
        if key not in _open:
            _open[key] = _opened(address.scheme)
        return _open[key]


def _opened(scheme: str) -> Store:
    try:
        if scheme == "s3":
            from vitlab.data.remote.s3 import S3Store

            return S3Store()
        if scheme == "hf":
            from vitlab.data.remote.hub import HubStore

            return HubStore()
        if scheme == "gs":
            return OtherStore("gs")
        from vitlab.data.remote.web import WebStore

        return WebStore()
    except ImportError as error:
        package = PACKAGES[scheme]
        is_ours = scheme in IN_EXTRA or (error.name or "").startswith("fsspec")
        command = "pip install 'vitlab[remote]'" if is_ours else f"pip install 'vitlab[remote]' {package}"
        raise ModuleNotFoundError(f"{scheme}:// addresses need {package}: {command}") from None


def deadline(size: int) -> float:
    """Seconds that an answer of `size` bytes may take."""
    return WAIT + size / SLOWEST


def checked(data: bytes, size: int) -> bytes:
    """Return the data if it has the right length."""
    if len(data) != size:
        raise Passing(f"{len(data):,} bytes came instead of {size:,}")
    return data


class OtherStore:
    """Any other file system of fsspec, which retries by itself."""

    def __init__(self, protocol: str) -> None:
        import fsspec

        self._files = fsspec.filesystem(protocol, skip_instance_cache=True, use_listings_cache=False)

    def facts(self, address: Address) -> Facts:
        return _facts(_tried(address, lambda: self._files.info(str(address))))

    def read(self, address: Address, facts: Facts, start: int, stop: int) -> bytes:
        data = _tried(address, lambda: self._files.cat_file(str(address), start=start, end=stop))
        if self.facts(address) != facts:
            raise changed(address)
        return checked(data, stop - start)

    def listing(self, folder: Address) -> dict[str, Facts]:
        found = _tried(folder, lambda: self._files.ls(str(folder), detail=True))
        return {info["name"].rpartition("/")[2]: _facts(info) for info in found if info["type"] == "file"}

    def pinned(self, address: Address) -> Address:
        return address


def _tried(address: Address, request: Callable[[], Any]) -> Any:
    try:
        return request()
    except FileNotFoundError:
        raise Missing(f"{address} does not exist; check the address") from None
    except PermissionError:
        raise failed(address, 403) from None
    except Exception as error:  # of whatever library it is
        status = getattr(error, "code", None) or getattr(error, "status", None)
        raise failed(address, status) if isinstance(status, int) else Passing(type(error).__name__) from None


def _facts(info: dict[str, object]) -> Facts:
    tag = next((info[name] for name in ("etag", "ETag", "generation", "md5Hash", "crc32c") if info.get(name)), "")
    when = next((info[name] for name in ("mtime", "updated", "LastModified") if info.get(name)), None)
    time = int(when.timestamp() * 1e9) if isinstance(when, datetime) else 0
    return Facts(cast(int, info["size"]), time, str(tag))
