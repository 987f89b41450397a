"""Small servers for tests: the page with its API answered by the functions of `vitlab.page`, and a static host."""

import functools
import json
import threading
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np

import vitlab.page
from vitlab.page.model_card import model_card
from vitlab.page.samples import Sample, samples
from vitlab.page.trace import at_size, trace
from vitlab.page.web import policy

STATIC = Path(vitlab.page.__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; worker-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class PageServer:
    """Models by name and what the API says about them. Every trace is refused with the status `refusal`, if set."""

    def __init__(self, models, sizes=(), pictures: list[Sample] | None = None):
        self.cards = [model_card(model, name, sizes) for name, model in models.items()]
        self.models = {card["id"]: model for card, model in zip(self.cards, models.values(), strict=True)}
        self.samples = {sample.name: sample.png for sample in (samples() if pictures is None else pictures)}
        self.refusal: int | None = None
        self.traces: list[tuple[str, np.ndarray, np.ndarray]] = []  # model, pixels, keep of every request

    def at(self, id: str, size: tuple[int, int]):
        return at_size(self.models[id], size)

    def trace(self, query: dict[str, str], body: bytes) -> bytes:
        size = tuple(map(int, query["size"].split("x")))
        model = self.at(query["model"], size)
        count = size[0] * size[1] * 3
        pixels = np.frombuffer(body[:count], np.uint8).reshape(*size, 3).copy()
        bits = np.unpackbits(np.frombuffer(body[count:], np.uint8), bitorder="little").astype(bool)
        (card,) = (card for card in self.cards if card["id"] == query["model"])
        patches = size[0] * size[1] // card["patch"] ** 2 if card["patch"] else 0
        self.traces.append((query["model"], pixels, bits[:patches]))
        return trace(model, pixels, bits[:patches]).to_bytes()


class Handler(SimpleHTTPRequestHandler):
    """The page's files and API with its policy; writes no log."""

    def __init__(self, *args, app: PageServer, **options):
        self.app = app
        super().__init__(*args, directory=str(STATIC), **options)

    def end_headers(self):
        self.send_header("Content-Security-Policy", policy())
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *_):
        pass

    def reply(self, body: bytes, kind: str, status: int = 200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = urlsplit(self.path).path.lstrip("/")
        if path == "api/models":
            self.reply(json.dumps({"models": self.app.cards}).encode(), "application/json")
        elif path in ("api/samples", "api/samples.json"):
            listed = [{"name": name, "url": f"api/samples/{name}.png"} for name in self.app.samples]
            self.reply(json.dumps(listed).encode(), "application/json")
        elif path.startswith("api/samples/"):
            self.reply(self.app.samples[path.removeprefix("api/samples/").removesuffix(".png")], "image/png")
        else:
            super().do_GET()

    def do_POST(self):
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.app.refusal:
            self.reply(json.dumps({"detail": "no"}).encode(), "application/json", self.app.refusal)
            return
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.reply(self.app.trace(query, body), "application/octet-stream")


@contextmanager
def answering(handler, port: int = 0):
    """The address at which a handler answers, on this machine only."""
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def serving(app: PageServer, port: int = 0):
    """The address of the page."""
    with answering(functools.partial(Handler, app=app), port) as url:
        yield url + "/"


class Quiet(SimpleHTTPRequestHandler):
    """A static host with the page's policy that writes no log."""

    def end_headers(self):
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *_):
        pass


def static_host(folder: Path):
    """The address of a folder, while the block runs."""
    return answering(functools.partial(Quiet, directory=str(folder)))
