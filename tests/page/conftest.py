"""A browser, folders served to it with the page's policy, and a watch on what a page requests and reports."""

import io
import os
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from agreement import randomised
from families import FAMILIES
from page.serving import static_host
from page.showing import app, opened, page_address  # noqa: F401  fixtures
from vitlab.models.build import build_from_spec
from vitlab.page.web import NamedModel, write_web
from web_runtime import fetched_runtime

CHROMIUM = os.environ.get("VITLAB_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
NOTE_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", e => violations.push(`${e.violatedDirective} ${e.blockedURI}`));
"""


EMPTY = "<!doctype html><html lang=en><meta charset=utf-8><title>empty</title><link rel=icon href=data:,></html>"


def missing(what: str) -> None:
    """Skip the test, or let it fail where a browser is promised."""
    reason = f"{what} is missing, which tests of the page need"
    if os.environ.get("VITLAB_REQUIRE_BROWSER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window, shared by all tests; use `page_at` to open a page in it."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright")
    if not CHROMIUM:
        missing("chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def served(request):
    """A function that serves a folder and returns its address, until the test ends."""

    def serve(folder: Path) -> str:
        host = static_host(folder)
        request.addfinalizer(lambda: host.__exit__(None, None, None))
        return host.__enter__()

    return serve


@pytest.fixture
def page_at(browser):
    """A function that opens an address in a new, empty profile.

    Afterwards, the test fails if the page sent a request to another host, broke the policy, or reported an error.
    `page.requests` are the addresses requested so far, `page.complaints` what is wrong so far; a test that expects a
    complaint clears it. `script` runs before those of the page. Keywords, such as `viewport`, are those of playwright's
    `new_context`.
    """
    contexts, pages = [], []

    def open_page(address: str, script: str = "", **options):
        context = browser.new_context(**options)
        contexts.append(context)
        context.add_init_script(NOTE_VIOLATIONS + script)
        page = context.new_page()
        page.requests, page.complaints = [], []
        host = urlsplit(address).netloc
        pages.append(page)

        def note_request(request):
            parts = urlsplit(request.url)
            page.requests.append(request.url)
            if parts.scheme not in ("blob", "data") and parts.netloc != host:
                page.complaints.append(f"request to another host: {request.url}")

        context.on("request", note_request)
        page.on("pageerror", lambda error: page.complaints.append(f"error: {error}"))
        page.on("console", lambda said: said.type == "error" and page.complaints.append(f"console: {said.text}"))
        page.goto(address)
        return page

    yield open_page
    found = [complaint for page in pages for complaint in page.complaints]
    found += [f"policy: {one}" for page in pages for one in page.evaluate("window.violations ?? []")]
    for context in contexts:
        context.close()
    assert not found, "\n".join(found)


@pytest.fixture(scope="session")
def node():
    """A function that runs a JavaScript module with node and returns what it prints, as bytes."""
    program = shutil.which("node")
    if not program:
        missing("node")

    def run(script: str, data: bytes = b"") -> bytes:
        command = [program, "--input-type=module", "--eval", script]
        done = subprocess.run(command, input=data, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    return run


@pytest.fixture(scope="session")
def runtime(tmp_path_factory):
    """A folder with the files of onnxruntime-web."""
    try:
        return fetched_runtime(tmp_path_factory)
    except ValueError as error:
        missing(f"onnxruntime-web ({error})")


def small_model(name):
    """A model of a family with every parameter random."""
    return randomised(build_from_spec(FAMILIES[name]))


@pytest.fixture(scope="session")
def models():
    return {"a ViT": small_model("ViT of timm"), "mean": small_model("mean pooling"), "BiT": small_model("BiT")}


@pytest.fixture(scope="session")
def exported(models, runtime, tmp_path_factory):
    """A page with three small models, one of them at two sizes, and a photograph-like sample."""
    pytest.importorskip("onnxruntime")
    root = tmp_path_factory.mktemp("web")
    pictures = root / "pictures"
    pictures.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    smooth = Image.fromarray(pixels).resize((120, 90), Image.Resampling.BICUBIC)
    smooth.save(pictures / "noise.png")
    named = [NamedModel(name, model) for name, model in models.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitlab.page.web.LARGEST_FILE", 50_000)  # so that weights are in pieces
        first = write_web(named[:1], root / "one", sizes=[(48, 40)], samples_from=pictures, runtime=runtime)
        write_web(named[1:], root / "two", samples_from=pictures, runtime=runtime)
    (root / "one" / "empty.html").write_text(EMPTY)
    (root / "two" / "empty.html").write_text(EMPTY)
    (root / "one" / "smooth.jpg").write_bytes(jpeg(smooth))
    return root, first


def jpeg(image):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=92)
    return file.getvalue()
