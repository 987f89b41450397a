"""Download released files: https only, with size limits, resumable, verified, and renamed only when complete."""

import fcntl
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitlab.files.store import publish
from vitlab.require import require
from vitlab.weights.released.catalogue import Release, cached, fetched, find_release, read_fetched, write_fetched

TIMEOUT = 30  # seconds without a byte
PIECE = 2**20
REDIRECTS = 5
AGAIN = "run the command again to continue"
Progress = Callable[[int, int], object]  # bytes so far, and in total or 0; first called before the first byte


def download(
    name: str, *, cache: Path | None = None, offline: bool = False, progress: Progress = lambda done, total: None
) -> Path:
    """Return the path of released weights; download them if needed, unless `offline` or VITLAB_OFFLINE=1 forbids it."""
    release = find_release(name)
    path = cached(release) if cache is None else cache / release.file
    if path.is_file():
        _check_cached(path, release)
        return path
    if offline or os.environ.get("VITLAB_OFFLINE", "") not in ("", "0"):
        way = f"download {release.url} on a machine with a network and copy it to {path}"
        raise ValueError(f"{name} is not in the cache and vitlab is offline; {way}")
    fetch(release, path, progress=progress)
    return path


def fetch(release: Release, path: Path, *, progress: Progress, loopback: bool = False) -> None:
    """Download to `path`, continuing an earlier attempt. `loopback` allows http to this machine, for tests."""
    check_url(release.url, loopback)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"another process is downloading {release.name} to {part}; wait for it") from None
        _receive(release, part, file, _opener(loopback), progress)
        facts = fetched(release, part)
        if not facts.sha256.startswith(release.sha256):
            _forget(part)
            raise ValueError(f"{release.url} has SHA-256 {facts.sha256}, not {release.sha256}...; it was deleted")
        write_fetched(path, facts)
        publish(part, path)
        _tag(part).unlink(missing_ok=True)


def _receive(
    release: Release, part: Path, file: Any, opener: urllib.request.OpenerDirector, progress: Progress
) -> None:
    """Append the missing bytes to the part; start again if the server does not continue it."""
    have, tag = part.stat().st_size, _read_tag(part)
    headers = {"User-Agent": "vitlab", "Accept-Encoding": "identity"}
    if have and tag:
        headers |= {"Range": f"bytes={have}-", "If-Range": tag}
    try:
        answer = opener.open(urllib.request.Request(release.url, headers=headers), timeout=TIMEOUT)
    except (OSError, http.client.HTTPException) as error:
        if "Range" not in headers or not isinstance(error, urllib.error.HTTPError) or error.code != 416:
            raise ValueError(f"cannot download {release.url}: {_reason(error)}; check the network connection") from None
        if _length(error.headers.get("Content-Range", "").removeprefix("bytes */")) != have:
            file.truncate(0)
            _receive(release, part, file, opener, progress)
            return
        # An earlier attempt was killed after its last byte and before the rename: the part is complete.
    else:
        have = _append(release, part, file, answer, progress)
    if not release.bytes <= have <= release.largest:
        _forget(part)
        expected = f"{release.bytes:,} (the parameters) to {release.largest:,} (with their names)"
        raise ValueError(f"{release.url} has {have:,} bytes instead of {expected}")


def _append(release: Release, part: Path, file: Any, answer: Any, progress: Progress) -> int:
    """Append the bytes of a response to the part, or replace it; return the new size."""
    with answer:
        have = part.stat().st_size
        continued = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if not continued:
            require(answer.status == 200, f"{release.url} answers with status {answer.status} instead of 200")
            file.truncate(0)
            have = 0
            _tag(part).write_text(answer.headers.get("ETag", ""), encoding="utf-8")
        length = _length(answer.headers.get("Content-Length"))
        total = have + length if length else 0
        try:
            _check_size(release, total)
            progress(have, total)
            while piece := answer.read(PIECE):
                have += len(piece)
                _check_size(release, have)
                file.write(piece)
                progress(have, total)
        except ValueError:
            file.truncate(0)
            raise
        except (OSError, http.client.HTTPException) as error:
            raise ValueError(f"the connection broke after {have:,} bytes ({_reason(error)}); {AGAIN}") from None
        finally:
            file.flush()
    require(have >= total, f"the connection ended after {have:,} of {total:,} bytes; {AGAIN}")
    return have


def _check_size(release: Release, size: int) -> None:
    require(size <= release.largest, f"{release.url} has {size:,} bytes or more, not at most {release.largest:,}")


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follow a few redirects, and only to https."""

    max_redirections = REDIRECTS

    def __init__(self, loopback: bool) -> None:
        self.loopback = loopback

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        check_url(newurl, self.loopback)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def check_url(url: str, loopback: bool = False) -> None:
    """Raise a ValueError unless a URL is https, or http to this machine if `loopback` allows it."""
    parts = urllib.parse.urlsplit(url)
    local = loopback and parts.scheme == "http" and parts.hostname == "127.0.0.1"
    require(parts.scheme == "https" or local, f"{url!r:.200} is not https; vitlab downloads only over https")


def _opener(loopback: bool) -> urllib.request.OpenerDirector:
    """Make an opener without handlers for file:, ftp: and data:."""
    opener = urllib.request.OpenerDirector()
    opener.add_handler(urllib.request.ProxyHandler({} if loopback else None))
    opener.add_handler(urllib.request.HTTPDefaultErrorHandler())
    opener.add_handler(urllib.request.HTTPErrorProcessor())
    opener.add_handler(_SafeRedirects(loopback))
    opener.add_handler(urllib.request.HTTPHandler() if loopback else urllib.request.HTTPSHandler())
    return opener


def _check_cached(path: Path, release: Release) -> None:
    """Check a file in the cache against its recorded hash; for a file put there by hand, against the known digits."""
    known, facts = read_fetched(path), fetched(release, path)
    wanted = release.sha256 if known is None else known.sha256
    require(facts.sha256.startswith(wanted), f"{path} is damaged; remove it and download it again")
    if known != facts:  # not recorded yet, or by an older catalogue
        write_fetched(path, facts)


def _tag(part: Path) -> Path:
    return part.with_name(f"{part.name}.tag")


def _read_tag(part: Path) -> str:
    """Read the server's ETag of the part; a weak tag does not guarantee the same bytes."""
    if not _tag(part).is_file():
        return ""
    tag = _tag(part).read_text(encoding="utf-8", errors="replace")[:200]
    return tag if tag.startswith('"') and tag.isprintable() else ""


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _tag(part).unlink(missing_ok=True)


def _length(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else 0


def _reason(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"status {error.code}"
    return str(getattr(error, "reason", "") or error) or type(error).__name__
