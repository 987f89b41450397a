"""The page as a person sees it, and what Python says should be there.

Colours are read back from the canvases: the place of a colour in the colour map is the value that it stands for.
"""

import io
import operator

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from agreement import randomised
from page.serving import PageServer, serving, static_host
from vitlab.data.transforms.evaluation import evaluation_pixels
from vitlab.models.build import build_from_spec
from vitlab.page.samples import samples
from vitlab.page.web import NamedModel, write_web
from vitlab.spec import ResNetSpec, ViTSpec

CLASSES = ("ant", "bee", "cat, house cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay", "kiwi", "lynx")
PICTURES = {sample.name: sample.png for sample in samples()}
FIRST, SECOND, RESNET = "first-ti", "second", "resnet"  # ids of the models
SIZES = [(64, 64), (96, 96)]
NOTE_QUESTIONS = """
window.questions = [];
const send = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  const { pixels, keep, height, width } = message;
  if (pixels) questions.push({ pixels: [...pixels], keep: [...keep], height, width });
  return send.call(this, message, ...rest);
};
"""
READY = """() => document.getElementById("main").getAttribute("aria-busy") === "false"
  && document.querySelectorAll("#answers li").length > 0"""


def sharpened(model):
    """Random weights whose attention is far from uniform, with names for the classes."""
    randomised(model, seed=5).class_names = CLASSES
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("weight") and ("attention" in name or "head" in name):
                weight.mul_(4)
    return model


@pytest.fixture(scope="session")
def app():
    """A server of three small models: with a class token, with the mean of patches, and without attention."""
    first = ViTSpec(8, layers=4, width=24, mlp=40, heads=3, image=(64, 64), classes=12)
    second = ViTSpec(16, layers=2, width=16, mlp=24, heads=2, image=(64, 64), classes=12, pool="mean")
    resnet = ResNetSpec((1,), 8, (64, 64), 12)
    models = {"First Ti": first, "Second": second, "ResNet": resnet}
    made = {name: sharpened(build_from_spec(spec)) for name, spec in models.items()}
    return PageServer(made, SIZES)


@pytest.fixture(scope="session", params=["served", "static"])
def page_address(request, app, tmp_path_factory):
    """Where the page of `app` is: with `app` as its server, or exported, so that the browser runs the models."""
    if request.param == "served":
        with serving(app) as url:
            yield url
        return
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("static") / "page"
    models = [NamedModel(card["name"], model) for card, model in zip(app.cards, app.models.values(), strict=True)]
    write_web(models, folder, sizes=SIZES, runtime=request.getfixturevalue("runtime"))
    with static_host(folder) as url:
        yield url + "/"


only_served = pytest.mark.parametrize("page_address", ["served"], indirect=True)


@pytest.fixture
def opened(app, page_address, page_at):
    """A function that opens a view of the page and waits for its first answer."""
    app.refusal = None
    app.traces.clear()

    def open_view(hash="", script="", **options):
        options = {"viewport": {"width": 1440, "height": 1000}, **options}
        return Shown(page_at(page_address + hash, script=NOTE_QUESTIONS + script, **options), app).ready()

    return open_view


class Shown:
    """What a person sees on the page."""

    def __init__(self, page, app=None):
        self.page = page
        self.app = app
        self.table = None

    def ready(self):
        self.page.wait_for_function(READY)
        return self

    def computed(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Pixels and kept patches of every picture that a model was given, by a server or in the browser."""
        if self.app.traces:
            return [(pixels, keep) for _, pixels, keep in self.app.traces]
        asked = self.page.evaluate("window.questions")
        shape = operator.itemgetter("height", "width")
        return [(np.reshape(np.uint8(one["pixels"]), (*shape(one), 3)), np.array(one["keep"], bool)) for one in asked]

    def text(self, id: str) -> str:
        return self.page.inner_text(f"#{id}")

    def answers(self, id="answers"):
        rows = self.page.locator(f"#{id} li").all()
        return [(row.get_attribute("title"), row.locator(".percent").inner_text()) for row in rows]

    def state(self) -> dict[str, str]:
        """The view that the address describes, once it is up to date."""
        self.page.wait_for_timeout(200)
        return dict(part.split("=") for part in self.page.evaluate("location.hash").lstrip("#").split("&"))

    def patch(self, number, grid=(8, 8), id="patches"):
        """The middle of a patch, in pixels from the corner of its canvas."""
        box = self.page.locator(f"#{id}").bounding_box()
        row, column = divmod(number, grid[1])
        return {"x": (column + 0.5) * box["width"] / grid[1], "y": (row + 0.5) * box["height"] / grid[0]}

    def click(self, number, grid=(8, 8), **options):
        self.page.locator("#patches").click(position=self.patch(number, grid), **options)

    def colours(self, id: str, places) -> np.ndarray:
        """RGB at places (x, y) of a canvas."""
        script = """([id, places]) => {
          const canvas = document.getElementById(id), context = canvas.getContext("2d");
          return places.map(([x, y]) => Array.from(context.getImageData(Math.floor(x), Math.floor(y), 1, 1).data));
        }"""
        return np.array(self.page.evaluate(script, [id, [list(place) for place in places]]))[:, :3]

    def steps(self, id: str, places) -> np.ndarray:
        """The values 0..255 that the colours at these places stand for."""
        if self.table is None:
            script = 'async () => Array.from((await import(new URL("inside/colours.js", location.href))).TABLE)'
            self.table = np.array(self.page.evaluate(script)).reshape(256, 3)
        is_same = (self.colours(id, places)[:, None] == self.table).all(-1)  # (places, 256)
        assert is_same.any(1).all()  # each is a colour of the map; neighbouring steps may have the same
        return is_same @ np.arange(256) / is_same.sum(1)

    def over_picture(self, grid=(8, 8)) -> np.ndarray:
        """The values painted over the picture, patch by patch; the overlay must be opaque."""
        patches = [self.patch(number, grid) for number in range(grid[0] * grid[1])]
        return self.steps("patches", [(one["x"], one["y"]) for one in patches])

    def head_map(self, layer: int, head: int, grid=(8, 8), id="heads") -> np.ndarray:
        """The values painted in a small map."""
        script = """([id, layer, head]) => {
          const { place, tile } = document.getElementById(id).geometry;
          return [...place(layer, head), tile.width, tile.height];
        }"""
        x, y, width, height = self.page.evaluate(script, [id, layer, head])
        rows, columns = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
        places = np.stack([x + (columns + 0.5) * width / grid[1], y + (rows + 0.5) * height / grid[0]], axis=1)
        return self.steps(id, places.tolist())


def same_steps(shown, values, low=None, high=None):
    """Whether painted values are these, up to the rounding of one step of the colour map."""
    values = np.asarray(values, float).ravel()
    low, high = values.min() if low is None else low, values.max() if high is None else high
    np.testing.assert_allclose(shown, (255 * (values - low) / (high - low)).clip(0, 255), atol=1)


def pixels_of(model, name="clock", size=(64, 64)):
    """(H, W, 3): a sample as the model takes it."""
    image = Image.open(io.BytesIO(PICTURES[name])).convert("RGB")
    return evaluation_pixels(image, size, model.spec.conventions.preprocessing).permute(1, 2, 0).numpy()


def normalised(model, name="clock"):
    return vitlab.preprocess(model, PICTURES[name])


def top_five(logits):
    shares = torch.tensor(logits).softmax(-1)
    return [(CLASSES[i], f"{100 * shares[i]:.1f} %") for i in shares.argsort(descending=True)[:5]]


def predicted(model, picture: bytes):
    (answer,) = vitlab.predict(model, picture, quiet=True)
    return [(guess.name, f"{100 * guess.probability:.1f} %") for guess in answer.guesses]
