"""The model in the browser gives the answers of Python, and the page stays on its host."""

import json
import struct
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
import vitlab.page
from page.conftest import EMPTY, small_model
from page.serving import Quiet
from vitlab.data.images.gate import read_image
from vitlab.data.transforms.evaluation import evaluation_pixels
from vitlab.page.model_card import model_card
from vitlab.page.trace import Traced, at_size, trace
from vitlab.page.web import NamedModel, write_web

STATIC = Path(vitlab.page.__file__).parent / "static"
AT_MOST = 1e-4
OPEN = """async () => {
  const { openBackend } = await import("./backends/index.js");
  window.backend = await openBackend();
  return [backend.where, backend.cards.map((card) => card.id)];
}"""
LOOK = """async ([id, url, size, keep]) => {
  const { decode, prepare } = await import("./pixels.js");
  const card = backend.cards.find((one) => one.id === id);
  const pixels = prepare(await decode(await (await fetch(url)).blob()), card, size);
  const patches = card.patch ? size[0] * size[1] / card.patch ** 2 : 0;
  const found = await backend.trace(id, pixels, Uint8Array.from(keep ?? Array(patches).fill(1)), size);
  const names = ["logits", "layerLogits", "attention", "tokens"];
  const listed = Object.fromEntries(names.map((name) => [name, [...found[name]]]));
  return { ...listed, n: found.n, milliseconds: found.milliseconds };
}"""
NAMES = {"logits": "logits", "layer_logits": "layerLogits", "attention": "attention", "tokens": "tokens"}


def far(found, expected):
    return np.abs(np.asarray(found, np.float64) - expected.ravel()).max() / np.abs(expected).max()


def expected_trace(model, path, size, keep=None):
    model = at_size(model, size)
    pixels = evaluation_pixels(read_image(path).image, size, model.spec.conventions.preprocessing)
    return trace(model, pixels.permute(1, 2, 0).numpy(), keep)


def check(found, expected: Traced):
    for own, name in NAMES.items():
        values = getattr(expected, own)
        assert len(found[name]) == values.size
        if values.size:
            assert far(found[name], values) <= AT_MOST, name


@pytest.mark.slow
@pytest.mark.parametrize("size", [(32, 40), (48, 40)])
def test_logits_in_the_browser_are_those_of_predict(exported, models, served, page_at, size):
    page = page_at(served(exported[0] / "one") + "/empty.html")
    assert page.evaluate(OPEN) == ["browser", ["a-vit"]]
    sample, model = exported[0] / "one" / "api" / "samples" / "noise.png", models["a ViT"]
    found = page.evaluate(LOOK, ["a-vit", "api/samples/noise.png", size, None])
    check(found, expected_trace(model, sample, size))
    assert found["n"] == 1 + size[0] * size[1] // 64
    assert found["milliseconds"] > 0
    own = at_size(model, size)
    with torch.no_grad():
        logits = own(vitlab.preprocess(own, sample))[0]
    assert far(found["logits"], logits.numpy()) <= AT_MOST


@pytest.mark.slow
def test_patches_are_left_out_in_the_browser(exported, models, served, page_at):
    page = page_at(served(exported[0] / "one") + "/empty.html")
    page.evaluate(OPEN)
    keep = np.arange(20) % 3 != 0
    found = page.evaluate(LOOK, ["a-vit", "smooth.jpg", (32, 40), keep.astype(int).tolist()])
    check(found, expected_trace(models["a ViT"], exported[0] / "one" / "smooth.jpg", (32, 40), keep))


@pytest.mark.slow
def test_other_kinds_of_model_and_another_address_work(exported, models, served, page_at):
    """Two models on one page, below a prefix of the host, one of which shows only its answers."""
    from playwright.sync_api import Error

    page = page_at(served(exported[0]) + "/two/empty.html")
    assert page.evaluate(OPEN) == ["browser", ["mean", "bit"]]
    sample = exported[0] / "two" / "api" / "samples" / "noise.png"
    for id, name in (("mean", "mean"), ("bit", "BiT")):
        found = page.evaluate(LOOK, [id, "api/samples/noise.png", (32, 40), None])
        check(found, expected_trace(models[name], sample, (32, 40)))
    assert found["n"] == 0
    assert found["attention"] == []
    with pytest.raises(Error, match="keep one or more"):
        page.evaluate(LOOK, ["mean", "api/samples/noise.png", (32, 40), [0] * 20])
    with pytest.raises(Error, match="this page has no model mean for pictures of 48x40"):
        page.evaluate(LOOK, ["mean", "api/samples/noise.png", (48, 40), [1] * 30])
    with pytest.raises(Error, match="expected 3840 bytes and 20 patches, not 3840 and 7"):
        page.evaluate(LOOK, ["mean", "api/samples/noise.png", (32, 40), [1] * 7])
    again = page.evaluate(LOOK, ["mean", "api/samples/noise.png", (32, 40), None])
    check(again, expected_trace(models["mean"], sample, (32, 40)))


@pytest.mark.slow
def test_after_the_first_answer_no_network_is_needed(exported, models, served, page_at):
    page = page_at(served(exported[0] / "one") + "/empty.html")
    page.evaluate(OPEN)
    first = page.evaluate(LOOK, ["a-vit", "api/samples/noise.png", (32, 40), None])
    requested = len(page.requests)
    again = page.evaluate(
        """async ([id, count]) => {
          const pixels = Uint8Array.from({ length: count }, (_, i) => i % 251);
          const found = await backend.trace(id, pixels, new Uint8Array(20).fill(1), [32, 40]);
          return [...found.logits];
        }""",
        ["a-vit", 32 * 40 * 3],
    )
    assert len(page.requests) == requested
    pixels = (np.arange(32 * 40 * 3) % 251).astype(np.uint8).reshape(32, 40, 3)
    assert far(again, trace(models["a ViT"], pixels).logits) <= AT_MOST
    assert again != first["logits"]


@pytest.mark.slow
def test_a_damaged_download_says_so_and_the_next_try_works(exported, models, served, page_at):
    from playwright.sync_api import Error

    page = page_at(served(exported[0] / "one") + "/empty.html")
    page.evaluate(OPEN)
    page.route("**/weights.bin.1", lambda route: route.fulfill(body=b"short"))
    with pytest.raises(Error, match=r"weights\.bin\.1 has 5 bytes instead of \d+; reload the page"):
        page.evaluate(LOOK, ["a-vit", "api/samples/noise.png", (32, 40), None])
    page.unroute("**/weights.bin.1")
    found = page.evaluate(LOOK, ["a-vit", "api/samples/noise.png", (32, 40), None])
    check(found, expected_trace(models["a ViT"], exported[0] / "one" / "api" / "samples" / "noise.png", (32, 40)))


@pytest.mark.slow
def test_a_model_that_cannot_start_says_so(exported, served, page_at):
    from playwright.sync_api import Error

    page = page_at(served(exported[0] / "one") + "/empty.html")
    page.evaluate(OPEN)
    page.route("**/worker.js", lambda route: route.abort())
    with pytest.raises(Error, match="the model stopped"):
        page.evaluate(LOOK, ["a-vit", "api/samples/noise.png", (32, 40), None])
    page.complaints.clear()


# -- The model on a server ------------------------------------------------------------------------


class Api(Quiet):
    """The page's files with the API that served.js asks."""

    def do_GET(self):  # noqa: N802 - the name that http.server calls
        if self.path.startswith("/api/models"):
            self.reply(json.dumps({"models": [model_card(self.server.model, "m")]}).encode())
        else:
            super().do_GET()

    def do_POST(self):  # noqa: N802
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, body))
        if len(self.server.asked) > 1:
            said = {"error": {"code": "busy", "message": "the service is busy; try again", "field": ""}}
            self.reply(json.dumps(said).encode(), 503)
            return
        pixels = np.frombuffer(body[: 32 * 40 * 3], np.uint8).reshape(32, 40, 3)
        bits = np.unpackbits(np.frombuffer(body[32 * 40 * 3 :], np.uint8), bitorder="little")[:20]
        self.reply(trace(self.server.model, pixels, bits.astype(bool)).to_bytes())

    def reply(self, body, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server(tmp_path):
    """The page served with a model; `server.asked` are the requests for traces."""
    for folder in ("", "backends"):
        (tmp_path / folder).mkdir(exist_ok=True)
        for file in (STATIC / folder).glob("*.js"):
            (tmp_path / folder / file.name).write_bytes(file.read_bytes())
    (tmp_path / "empty.html").write_text(EMPTY)
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (50, 60, 3), dtype=np.uint8)).save(tmp_path / "noise.png")

    def handler(*args):
        return Api(*args, directory=str(tmp_path))

    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads, server.model, server.asked, server.folder = True, small_model("ViT"), [], tmp_path
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_served_model_gets_the_pixels_and_patches_and_its_answer_is_read(server, page_at):
    from playwright.sync_api import Error

    page = page_at(f"http://127.0.0.1:{server.server_port}/empty.html")
    assert page.evaluate(OPEN) == ["server", ["m"]]
    keep = np.random.default_rng(0).random(20) < 0.6
    found = page.evaluate(LOOK, ["m", "noise.png", (32, 40), keep.astype(int).tolist()])
    expected = expected_trace(server.model, server.folder / "noise.png", (32, 40), keep)
    for own, name in NAMES.items():
        assert np.array_equal(np.asarray(found[name], np.float32), getattr(expected, own).ravel())
    assert found["n"] == 21
    assert server.asked[0][0] == "/api/trace?model=m&size=32x40"
    assert len(server.asked[0][1]) == 32 * 40 * 3 + 3
    with pytest.raises(Error, match="the service is busy; try again"):
        page.evaluate(LOOK, ["m", "noise.png", (32, 40), None])
    page.complaints.clear()  # Chromium reports the status 503


def test_attention_of_8_bits_is_read_as_shares(node, tmp_path, monkeypatch):
    monkeypatch.setattr("vitlab.page.trace.LARGEST_EXACT", 0)
    found = trace(small_model("ViT"), np.zeros((32, 40, 3), np.uint8))
    script = """
    import { readFileSync, writeSync } from "node:fs";
    const { arrays } = await import("%s");
    const data = readFileSync("%s");
    const found = arrays(data.buffer.slice(data.byteOffset, data.byteOffset + data.length));
    const { shape, values } = found.attention;
    writeSync(1, JSON.stringify({ shape, values: [...values], tokens: found.tokens.shape }));
    """
    (tmp_path / "trace").write_bytes(found.to_bytes())
    assert struct.unpack_from("<I", found.to_bytes())[0] % 4 == 0
    read = json.loads(node(script % ((STATIC / "backends" / "served.js").as_uri(), tmp_path / "trace")))
    assert tuple(read["shape"]) == found.attention.shape
    assert tuple(read["tokens"]) == found.tokens.shape
    assert np.abs(np.asarray(read["values"]) - found.attention.ravel()).max() <= 0.5 / 255 + 1e-6


# -- Real weights ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_vit_ti_16_answers_as_in_python(reference, runtime, served, page_at, tmp_path):
    """Photographs are JPEG: decoded to the bit by Chromium 156, so that only the arithmetic differs."""
    pytest.importorskip("onnxruntime")
    model = vitlab.load_model(reference / "weights" / "ViT-Ti_16-augreg-in1k-224.npz", conventions="timm")
    write_web([NamedModel("ViT-Ti/16", model)], tmp_path / "web", runtime=runtime)
    (tmp_path / "web" / "empty.html").write_text(EMPTY)
    photographs = sorted((reference / "imagenet_val_200").glob("*.JPEG"))[:8]
    for path in photographs:
        (tmp_path / "web" / path.name).symlink_to(path)
    page = page_at(served(tmp_path / "web") + "/empty.html")
    page.evaluate(OPEN)
    short = LOOK.replace('["logits", "layerLogits", "attention", "tokens"]', '["logits"]')
    for path in photographs:
        found = page.evaluate(short, ["vit-ti-16", path.name, (224, 224), None])
        with torch.no_grad():
            logits = model(vitlab.preprocess(model, path))[0].numpy()
        assert int(np.argmax(found["logits"])) == int(logits.argmax())
        assert far(found["logits"], logits) <= AT_MOST
