"""Seconds until the static page answers in Chromium, and of one more answer there and in Python: ViT-Ti/16, one thread.

The first answer is timed from the address to the classes on the screen, in an empty profile of a browser that is
already open, with all files from a server on this machine. It needs npm, playwright and Chromium; VITLAB_CHROMIUM names
another one.
"""

import atexit
import functools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from bench.runner import Case, Contestant
from vitlab.models.build import build_model
from vitlab.page.trace import Trace, trace
from vitlab.runs.export_web import export_web

ROUNDS = 5
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
ANSWERED = "() => document.getElementById('answers').textContent.includes('%')"
OPEN = """async () => {
  const { openBackend } = await import("/backends/index.js");
  const backend = await openBackend();
  const [pixels, keep] = [new Uint8Array(224 * 224 * 3), new Uint8Array(196).fill(1)];
  window.again = () => backend.trace(backend.cards[0].id, pixels, keep, [224, 224]);
  await again();
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@functools.cache
def model():
    return build_model("ViT-Ti/16", classes=1000)


@functools.cache
def address() -> str:
    """The page, exported once, on a server of this process."""
    made = TemporaryDirectory()
    export_web(model(), Path(made.name) / "web", quiet=True)
    handler = functools.partial(Quiet, directory=str(Path(made.name) / "web"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    atexit.register(made.cleanup)
    return f"http://127.0.0.1:{server.server_port}/"


@functools.cache
def browser():
    from playwright.sync_api import sync_playwright

    playwright = sync_playwright().start()
    path = os.environ.get("VITLAB_CHROMIUM") or shutil.which("chromium")
    opened = playwright.chromium.launch(executable_path=path, args=FLAGS)
    atexit.register(playwright.stop)
    return opened


def first_answer() -> Callable[[], None]:
    address(), browser()

    def run() -> None:
        context = browser().new_context()
        page = context.new_page()
        page.goto(address())
        page.wait_for_function(ANSWERED, timeout=120_000)
        context.close()

    return run


def in_browser() -> Callable[[], None]:
    page = browser().new_context().new_page()
    page.goto(f"{address()}README.txt")
    page.evaluate(OPEN)
    return lambda: page.evaluate("() => again().then(() => null)")


def in_python() -> Callable[[], None]:
    torch.set_num_threads(1)
    traced, pixels, keep = Trace(model()), np.zeros((224, 224, 3), np.uint8), np.ones(196, bool)

    def run() -> None:
        trace(traced, pixels, keep).to_bytes()

    return run


def cases(is_quick: bool) -> Iterator[Case]:
    yield Case("first answer of the static page", [Contestant("Chromium", first_answer, is_compared=False)])
    contestants = [Contestant("Python, one thread, with the bytes of the answer", in_python, is_compared=False)]
    contestants += [Contestant("Chromium, in a worker", in_browser, is_compared=False)]
    yield Case("one more answer", contestants)
