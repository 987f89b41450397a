"""Servers of files on the loopback interface, with faults: a web server with ranges, and a proxy before S3."""

import hashlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self
from urllib.parse import unquote, urlsplit

FAULTS = ("500", "503", "reset", "cut", "slow", "short", "shifted")  # that a reader has to overcome
SLOW = 0.3  # seconds


class Request(NamedTuple):
    number: int  # of the requests with a body to answer, from 0
    method: str
    path: str
    range: str


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


Choice = Callable[[Request], str]  # the fault of a request; "" for none


def no_fault(request: Request) -> str:
    return ""


class FaultyServer:
    """Answers on a free port of 127.0.0.1; `requests` lists what was asked, `faults` what was done to it."""

    def __init__(self, faults: Choice = no_fault) -> None:
        self.choose, self.requests, self.faults = faults, [], []
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def handle_any(self) -> None:
                outer.handle(self)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

            def log_message(self, *_) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, *_) -> None:  # clients that hang up are part of the tests
                pass

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> Answer:
        raise NotImplementedError

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        with self.lock:
            request = Request(len(self.requests), handler.command, handler.path, handler.headers.get("Range", ""))
            self.requests.append(request)
            fault = self.choose(request) if handler.command in ("GET", "HEAD") else ""
            self.faults.append(fault)
        try:
            self.send(handler, self.answer(handler, body), fault)
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True

    def send(self, handler: BaseHTTPRequestHandler, answer: Answer, fault: str) -> None:
        status, headers, body = answer
        if fault in ("500", "503", "403", "429"):
            status, headers, body = int(fault), {}, b"<Error><Code>SlowDown</Code></Error>" if fault == "503" else b"no"
        elif fault == "reset":
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
            return
        elif fault == "short":  # a proxy that lost the end and does not say so
            body = body[: len(body) // 2]
        elif fault == "shifted":
            body = body[1:] + b"!"
            if (span := re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", headers.get("Content-Range", ""))) is not None:
                headers = headers | {"Content-Range": f"bytes {int(span[1]) + 1}-{int(span[2]) + 1}/{span[3]}"}
            else:
                body = body[:-1]
        handler.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding", "date", "server"):
                handler.send_header(name, value)
        length = headers.get("Content-Length", str(len(body))) if handler.command == "HEAD" else str(len(body))
        handler.send_header("Content-Length", length)
        handler.end_headers()
        if handler.command == "HEAD":
            return
        half = len(body) // 2
        handler.wfile.write(body[:half])
        if fault == "cut":
            handler.wfile.flush()
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
            return
        if fault in ("slow", "stall"):
            handler.wfile.flush()
            time.sleep(SLOW if fault == "slow" else 20 * SLOW)
        handler.wfile.write(body[half:])


class FileServer(FaultyServer):
    """A web server of `files` by path, with ranges and strong ETags."""

    def __init__(self, files: dict[str, bytes], faults: Choice = no_fault, *, ranges=True, tags=True) -> None:
        self.files, self.ranges, self.tags = files, ranges, tags
        self.moved: dict[str, str] = {}
        super().__init__(faults)

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> Answer:
        path = unquote(urlsplit(handler.path).path)
        if path in self.moved:
            return Answer(302, {"Location": self.moved[path]}, b"")
        if path not in self.files:
            return Answer(404, {}, b"no such file")
        data = self.files[path]
        headers = {"Last-Modified": formatdate(1e9, usegmt=True), "ETag": f'"{hashlib.md5(data).hexdigest()}"'}
        return ranged(data, handler.headers.get("Range", "") if self.ranges else "", headers if self.tags else {})


def ranged(data: bytes, asked: str, headers: dict[str, str]) -> Answer:
    span = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
    if span is None:
        return Answer(200, headers, data)
    start, stop = int(span[1]), min(int(span[2]) + 1, len(data))
    if start >= len(data):
        return Answer(416, headers | {"Content-Range": f"bytes */{len(data)}"}, b"")
    return Answer(206, headers | {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}, data[start:stop])


class Proxy(FaultyServer):
    """Passes requests on to another server of this machine."""

    def __init__(self, port: int, faults: Choice = no_fault) -> None:
        self.port = port
        super().__init__(faults)

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            headers = {name: value for name, value in handler.headers.items() if name.lower() != "connection"}
            connection.request(handler.command, handler.path, body or None, headers)
            reply = connection.getresponse()
            return Answer(reply.status, dict(reply.getheaders()), reply.read())
        finally:
            connection.close()


def in_turn(*faults: str, every: int = 2, on: str = "") -> Choice:
    """Every n-th request with `on` in its path has a fault, one after another."""
    state = [0]

    def choose(request: Request) -> str:
        if on not in request.path:
            return ""
        state[0] += 1
        return faults[state[0] // every % len(faults)] if state[0] % every == 0 else ""

    return choose


class Hub(FaultyServer):
    """A stand-in for a hub of data sets: `branches` of one repository, owner/name, each a commit of files by path.

    Files are answered from another path of the server, as a hub redirects to its storage.
    """

    def __init__(self, branches: dict[str, dict[str, bytes]], faults: Choice = no_fault) -> None:
        self.commits = {self.commit(files): files for files in branches.values()}
        self.branches = {name: self.commit(files) for name, files in branches.items()}
        self.tokens: list[tuple[str, str]] = []  # (path, token) of every request
        super().__init__(faults)

    @staticmethod
    def commit(files: dict[str, bytes]) -> str:
        return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()

    def move(self, branch: str, files: dict[str, bytes]) -> None:
        """Commit other files to a branch."""
        self.branches[branch] = self.commit(files)
        self.commits[self.branches[branch]] = files

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> Answer:
        path = urlsplit(handler.path).path
        self.tokens.append((path, handler.headers.get("Authorization", "")))
        if found := re.fullmatch(r"/api/datasets/owner/name(?:/(revision|tree|paths-info)/([^/]+)(?:/(.*))?)?", path):
            return self.about(found[1] or "revision", unquote(found[2] or "main"), unquote(found[3] or ""), body)
        if found := re.fullmatch(r"/datasets/owner/name/resolve/([^/]+)/(.+)", path):
            return Answer(302, {"Location": f"{self.url}/storage/{self.of(unquote(found[1]))}/{found[2]}"}, b"")
        if found := re.fullmatch(r"/storage/(\w+)/(.+)", path):
            data = self.commits[found[1]][unquote(found[2])]
            return ranged(data, handler.headers.get("Range", ""), {"ETag": '"of the storage"'})
        return Answer(404, {"X-Error-Code": "RepoNotFound"}, b"{}")

    def of(self, revision: str) -> str:
        return self.branches.get(revision, revision)

    def about(self, what: str, revision: str, path: str, body: bytes) -> Answer:
        if self.of(revision) not in self.commits:
            return Answer(404, {"X-Error-Code": "RevisionNotFound"}, b"{}")
        files = self.commits[self.of(revision)]
        if what == "revision":
            about = {"id": "owner/name", "sha": self.of(revision), "siblings": [], "private": False, "tags": []}
            return Answer(200, {"Content-Type": "application/json"}, json.dumps(about).encode())
        prefix = f"{path}/" if path else ""
        names = [name.removeprefix(prefix) for name in files if name.startswith(prefix)]
        entries = [self.entry(prefix + name, files[prefix + name]) for name in names if "/" not in name]
        folders = {name.partition("/")[0] for name in names if "/" in name}
        entries += [
            {"type": "directory", "oid": "0" * 40, "size": 0, "path": prefix + name} for name in sorted(folders)
        ]
        if what == "paths-info":
            asked = json.loads(body)["paths"]
            entries = [self.entry(name, data) for name, data in files.items() if name in asked]
        elif not names:
            return Answer(404, {"X-Error-Code": "EntryNotFound"}, b"{}")
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(entries).encode())

    def entry(self, name: str, data: bytes) -> dict[str, object]:
        large = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": len(data), "path": name, "lfs": large}
