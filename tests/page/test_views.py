"""The page in a real browser: what it shows equals what Python computes, for each thing a person can do with it.

Colours are read back from the canvases: the place of a pixel's colour in the colour map is the value that it stands for.
"""

import base64
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from agreement import randomised
from page.serving import PageServer, serving
from vitlab.data.transforms.evaluation import evaluation_pixels
from vitlab.inspection.attention import attention_distance, even_distance
from vitlab.inspection.rollout import look, rollout
from vitlab.models.build import build_from_spec
from vitlab.page.samples import samples
from vitlab.page.trace import at_size, trace
from vitlab.spec import ResNetSpec, ViTSpec

pytestmark = pytest.mark.slow

CLASSES = ("ant", "bee", "cat, house cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay", "kiwi", "lynx")
PICTURES = {sample.name: sample.png for sample in samples()}
FIRST, SECOND, RESNET = "first-ti", "second", "resnet"  # ids of the models
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


@pytest.fixture(scope="module")
def app():
    first = ViTSpec(8, layers=4, width=24, mlp=40, heads=3, image=(64, 64), classes=12)
    second = ViTSpec(16, layers=2, width=16, mlp=24, heads=2, image=(64, 64), classes=12, pool="mean")
    resnet = ResNetSpec((1,), 8, (64, 64), 12)
    models = {"First Ti": first, "Second": second, "ResNet": resnet}
    made = {name: sharpened(build_from_spec(spec)) for name, spec in models.items()}
    return PageServer(made, sizes=[(64, 64), (96, 96)])


@pytest.fixture(scope="module")
def address(app):
    with serving(app) as url:
        yield url


@pytest.fixture
def opened(app, address, page_at):
    """A function that opens a view of the page and waits for its first answer."""
    app.refusal = None
    app.traces.clear()

    def open_view(hash="", **options):
        options = {"viewport": {"width": 1440, "height": 1000}, **options}
        return Shown(page_at(address + hash, **options)).ready()

    return open_view


class Shown:
    """What a person sees on the page."""

    def __init__(self, page):
        self.page = page
        self.table = None

    def ready(self):
        self.page.wait_for_function(READY)
        return self

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
            script = 'async () => Array.from((await import(new URL("colours.js", location.href))).TABLE)'
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


# -- 1. Pictures in ---------------------------------------------------------------------------------


def test_the_first_view_shows_a_sample_its_rollout_and_the_answer_of_predict(app, opened):
    shown = opened("#opacity=100")
    assert shown.answers() == predicted(app.models[FIRST], PICTURES["clock"])
    same_steps(shown.over_picture(), rollout(app.models[FIRST], normalised(app.models[FIRST]))[0])
    assert "the class token gets its information from, through all 4 layers" in shown.text("sentence")
    assert "sent to the server at 127.0.0.1" in shown.text("where")
    assert "Nothing is uploaded" not in shown.page.content()


def test_a_sample_can_be_chosen(app, opened):
    shown = opened()
    shown.page.click("[data-sample=balloon]")
    shown.page.wait_for_selector("[data-sample=balloon][aria-pressed=true]")
    assert shown.ready().answers() == predicted(app.models[FIRST], PICTURES["balloon"])


@pytest.fixture(scope="module")
def own():
    """A picture that is no sample, wider than high."""
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (9, 13, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((130, 90), Image.Resampling.BICUBIC).save(file, "PNG")
    return file.getvalue()


GIVE = """async ([kind, text]) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "mine.png", { type: "image/png" }));
  const event = kind === "drop"
    ? new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true })
    : new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true });
  document.body.dispatchEvent(event);
}"""


@pytest.mark.parametrize("way", ["file", "drop", "paste"])
def test_a_picture_of_ones_own_gets_the_answer_of_predict(app, opened, own, way):
    shown = opened()
    if way == "file":
        with shown.page.expect_file_chooser() as chooser:
            shown.page.click("#open-file")
        chooser.value.set_files({"name": "mine.png", "mimeType": "image/png", "buffer": own})
    else:
        shown.page.evaluate(GIVE, [way, base64.b64encode(own).decode()])
    shown.page.wait_for_function("() => location.hash.includes('picture=own')")
    assert shown.ready().answers() == predicted(app.models[FIRST], own)
    assert shown.page.locator("#samples [aria-pressed=true]").count() == 0


CAMERA = """
navigator.mediaDevices.getUserMedia = async () => {
  window.asked = (window.asked ?? 0) + 1;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [64, 64];
  const context = canvas.getContext("2d");
  const paint = () => { context.fillStyle = "#208040"; context.fillRect(0, 0, 64, 64); requestAnimationFrame(paint); };
  paint();
  return canvas.captureStream(30);
};
"""


def test_the_camera_is_asked_for_only_after_a_click(app, opened, address, page_at):
    page = page_at(address)
    page.add_init_script(CAMERA)
    page.reload()
    shown = Shown(page).ready()
    assert page.evaluate("window.asked") is None
    page.click("#camera")
    page.wait_for_function("() => document.getElementById('camera-video').videoWidth === 64")
    page.click("#camera-take")
    page.wait_for_function("() => location.hash.includes('picture=own')")
    shown.ready()
    green = app.traces[-1][1].reshape(-1, 3)
    assert (green.max(0) - green.min(0)).max() <= 2  # one colour
    assert green.mean(0).argmax() == 1
    assert page.evaluate("document.getElementById('camera-video').srcObject.active") is False


def test_without_a_camera_there_is_no_button(address, page_at):
    page = page_at(address)
    page.add_init_script("Object.defineProperty(navigator, 'mediaDevices', { value: undefined });")
    page.reload()
    Shown(page).ready()
    assert page.is_hidden("#camera")


# -- 2, 3. Attention: queries, layers, heads, rollout -----------------------------------------------


def test_a_clicked_patch_shows_its_attention_in_every_head(app, opened):
    shown = opened()
    shown.click(19)
    found = trace(app.models[FIRST], pixels_of(app.models[FIRST]))
    for layer in range(4):
        for head in range(3):
            values = found.attention[layer, head, 1 + 19, 1:]
            same_steps(shown.head_map(layer + 1, head), values, 0)
    assert shown.text("heads-query") == "the patch in row 3, column 4"
    assert shown.state()["query"] == "19"


def test_all_maps_can_share_a_scale(app, opened):
    shown = opened("#query=19")
    shown.page.check("#shared")
    attention = trace(app.models[FIRST], pixels_of(app.models[FIRST])).attention[:, :, 20, 1:]
    for layer, head in ((1, 0), (4, 2)):
        same_steps(shown.head_map(layer, head), attention[layer - 1, head], 0, attention.max())


def test_pointing_at_a_map_previews_it_and_a_click_keeps_it(app, opened):
    shown = opened("#opacity=100&query=19")
    before = shown.over_picture()
    place = shown.page.evaluate(
        """() => { const { place, tile } = document.getElementById("heads").geometry;
        const [x, y] = place(2, 1); return { x: x + tile.width / 2, y: y + tile.height / 2 }; }"""
    )
    heads = shown.page.locator("#heads")
    heads.hover(position=place)
    values = trace(app.models[FIRST], pixels_of(app.models[FIRST])).attention[1, 1, 20, 1:]
    same_steps(shown.over_picture(), values, 0)
    shown.page.mouse.move(2, 2)
    assert (shown.over_picture() == before).all()
    heads.click(position=place)
    shown.page.mouse.move(2, 2)
    same_steps(shown.over_picture(), values, 0)
    state = shown.state()
    assert (state["view"], state["layer"], state["head"]) == ("head", "2", "2")
    assert f"attention 0 to {100 * values.max():.1f} %" in shown.text("legend-text")


def test_the_value_under_the_pointer_is_written_out(app, opened):
    shown = opened("#view=head&layer=3&head=1&query=19")
    shown.page.locator("#patches").hover(position=shown.patch(44))
    value = trace(app.models[FIRST], pixels_of(app.models[FIRST])).attention[2, 0, 20, 45]
    assert shown.text("readout") == f"row 6, column 5: {100 * value:.2f} %"


def test_the_layer_slider_rolls_out_through_fewer_layers(app, opened):
    shown = opened("#opacity=100&query=mean")
    shown.page.fill("#layer", "2")
    attention = trace(app.models[FIRST], pixels_of(app.models[FIRST])).attention.astype(float)
    rolled = np.eye(65)
    for layer in attention[:2].mean(1):
        rolled = (layer + np.eye(65)) / 2 @ rolled
    same_steps(shown.over_picture(), rolled[1:, 1:].mean(0))
    assert "the average patch gets its information from, through layers 1 to 2" in shown.text("sentence")


def test_opacity_zero_is_the_picture_itself(app, opened):
    shown = opened("#opacity=100&view=picture")
    places = [(shown.patch(number)["x"], shown.patch(number)["y"]) for number in range(64)]
    picture = shown.colours("patches", places)
    shown.page.click("#views [data-value=rollout]")
    assert (shown.colours("patches", places) != picture).any()
    shown.page.fill("#opacity", "0")
    assert (shown.colours("patches", places) == picture).all()


# -- 4. The answer after each layer -----------------------------------------------------------------


def test_the_answer_after_each_layer_is_that_of_the_trace(app, opened):
    shown = opened()
    found = trace(app.models[FIRST], pixels_of(app.models[FIRST]))
    for layer in range(5):
        shown.page.click(f"#layers [data-layer='{layer}']")
        assert shown.answers("layer-answers") == top_five(found.layer_logits[layer])
        shares = np.sort(torch.tensor(found.layer_logits[layer]).softmax(-1).numpy())[::-1][:5]
        widths = shown.page.eval_on_selector_all(
            f"#layers [data-layer='{layer}'] .part", "parts => parts.map(part => parseFloat(part.style.width))"
        )
        np.testing.assert_allclose(widths, 100 * shares, atol=1e-3)
        assert shown.state()["layer"] == str(layer)


# -- 5. Similarity and principal components ---------------------------------------------------------


def test_similarity_is_the_cosine_between_tokens_of_a_layer(app, opened):
    shown = opened("#opacity=100&view=similarity&layer=3&query=27")
    tokens = torch.tensor(trace(app.models[FIRST], pixels_of(app.models[FIRST])).tokens[3, 1:])
    cosine = torch.cosine_similarity(tokens, tokens[27:28]).numpy()
    others = np.delete(cosine, 27)
    same_steps(shown.over_picture(), cosine, others.min(), others.max())
    shown.page.locator("#patches").hover(position=shown.patch(40))
    assert shown.text("readout") == f"row 6, column 1: {cosine[40]:.3f}".replace("-", "−")


def test_colours_are_the_first_three_principal_components(app, opened):
    shown = opened("#opacity=100&view=colours&layer=2")
    tokens = trace(app.models[FIRST], pixels_of(app.models[FIRST])).tokens[2, 1:].astype(float)
    tokens /= np.linalg.norm(tokens, axis=1, keepdims=True)
    u, sizes, _ = np.linalg.svd(tokens - tokens.mean(0), full_matrices=False)
    scores = u[:, :3] * sizes[:3]
    border = np.pad(np.zeros((6, 6), bool), 1, constant_values=True).ravel()
    scores *= -np.sign(scores[border].sum(0))
    low, high = np.sort(scores, axis=0)[[1, -2]]  # 2 % of 64 patches at either end
    expected = (255 * (scores - low) / (high - low)).clip(0, 255)
    places = [(shown.patch(number)["x"], shown.patch(number)["y"]) for number in range(64)]
    np.testing.assert_allclose(shown.colours("patches", places), expected, atol=2)
    assert f"{100 * (sizes[:3] ** 2).sum() / (sizes**2).sum():.0f} % of the variance" in shown.text("sentence")


def test_a_tile_of_the_strip_chooses_layer_and_view(opened):
    shown = opened()
    place = shown.page.evaluate(
        "() => { const [x, y] = document.getElementById('strip').geometry.place(1, 3); return { x: x + 9, y: y + 9 }; }"
    )
    shown.page.locator("#strip").click(position=place)
    state = shown.state()
    assert (state["view"], state["layer"]) == ("similarity", "3")


# -- 6. Edits ---------------------------------------------------------------------------------------


def test_greyed_patches_are_grey_for_the_model_and_the_answer_stands_beside_the_original(app, opened):
    shown, model = opened(), app.models[FIRST]
    pixels = pixels_of(model).copy()
    before = trace(model, pixels)
    shown.page.click("#tools [data-value=grey]")
    start, end = shown.patch(18), shown.patch(20)
    box = shown.page.locator("#patches").bounding_box()
    shown.page.mouse.move(box["x"] + start["x"], box["y"] + start["y"])
    shown.page.mouse.down()
    shown.page.mouse.move(box["x"] + end["x"], box["y"] + end["y"], steps=12)
    shown.page.mouse.up()
    shown.ready()
    pixels[16:24, 16:40] = 128  # patches 18, 19 and 20
    assert (app.traces[-1][1] == pixels).all()
    after = trace(model, pixels)
    assert shown.answers()[:5] == top_five(after.logits)
    changes = (torch.tensor(after.logits).softmax(-1) - torch.tensor(before.logits).softmax(-1)) * 100
    for row in shown.page.locator("#answers li").all():
        change = changes[CLASSES.index(row.get_attribute("title"))]
        said = row.locator(".change").inner_text().replace("−", "-").replace("±", "")
        assert float(said) == pytest.approx(float(change), abs=0.051)
        assert row.locator(".bar").count() == 2
    assert shown.text("edits-text") == "Edited: 3 patches greyed out."
    shown.page.click("#undo-edits")
    assert shown.ready().answers() == top_five(before.logits)


def test_dropped_patches_leave_the_sequence(app, opened):
    shown, model = opened("#view=head&layer=2&head=1"), app.models[FIRST]
    shown.page.click("#tools [data-value=drop]")
    for number in (0, 9, 37):
        shown.click(number)
    shown.ready()
    keep = np.ones(64, bool)
    keep[[0, 9, 37]] = False
    after = trace(model, pixels_of(model), keep)
    assert shown.answers()[:5] == top_five(after.logits)
    assert (app.traces[-1][2] == keep).all()
    shown.page.click("#tools [data-value=look]")
    shown.click(50)
    geometry = shown.page.evaluate(
        "() => { const g = document.getElementById('heads').geometry; return [...g.place(2, 0), g.tile.width]; }"
    )
    x, y, side = geometry
    places = [(x + (n % 8 + 0.5) * side / 8, y + (n // 8 + 0.5) * side / 8) for n in np.flatnonzero(keep)]
    same_steps(shown.steps("heads", places), after.attention[1, 0, 51, 1:][keep], 0)
    assert "64 patches" not in shown.text("sentence")


def test_shuffled_patches_are_those_of_the_picture_in_another_order(app, opened):
    shown, model = opened(), app.models[FIRST]
    shown.page.click("#shuffle")
    shown.ready()
    sent = app.traces[-1][1]

    def patches(pixels):
        return sorted(pixels.reshape(8, 8, 8, 8, 3).swapaxes(1, 2).reshape(64, -1).tolist())

    original = pixels_of(model)
    assert (sent != original).any()
    assert patches(sent) == patches(original)
    assert shown.answers()[:5] == top_five(trace(model, sent).logits)


def test_dropping_what_it_looks_at_takes_the_patches_of_the_highest_rollout(app, opened):
    shown, model = opened(), app.models[FIRST]
    shown.page.click("#drop-seen")
    shown.ready()
    rolled = rollout(model, normalised(model))[0].flatten()
    keep = np.ones(64, bool)
    keep[rolled.argsort(descending=True)[:13]] = False
    assert (app.traces[-1][2] == keep).all()
    assert shown.text("edits-text") == "Edited: 13 patches dropped."


# -- 7. Resolution ----------------------------------------------------------------------------------


def test_a_higher_resolution_has_more_patches_and_the_answer_of_the_resized_model(app, opened):
    shown = opened("#query=27")
    shown.page.fill("#size", "1")
    shown.ready()
    model = at_size(app.models[FIRST], (96, 96))
    assert shown.answers() == top_five(trace(model, pixels_of(model, size=(96, 96))).logits)
    assert shown.text("size-text") == "96 × 96, 144 patches"
    state = shown.state()
    assert (state["size"], state["query"]) == ("96x96", str(5 * 12 + 5))  # the patch at the same place


# -- 8. Distances, filters, positions ---------------------------------------------------------------


def test_the_scatter_shows_the_attention_distance_of_every_head_and_a_dot_opens_its_head(app, opened):
    shown, model = opened(), app.models[FIRST]
    dots = shown.page.eval_on_selector_all("#distance .dot", "dots => dots.map(dot => Number(dot.dataset.pixels))")
    np.testing.assert_allclose(dots, attention_distance(model, normalised(model)).flatten(), rtol=1e-5)
    shown.page.locator("#distance .dot[data-layer='3'][data-head='2']").dispatch_event("click")
    state = shown.state()
    assert (state["view"], state["layer"], state["head"]) == ("head", "3", "3")
    assert f"even attention: {even_distance(model.spec):.0f}" in shown.text("sentence")


def test_a_position_tile_chooses_the_query_and_its_colours_are_the_similarities(app, opened):
    from vitlab.inspection.weights import position_similarity

    shown = opened()
    similarity = position_similarity(app.models[FIRST]).flatten(0, 1)
    side = shown.page.locator("#positions").bounding_box()["width"] / 8
    inner = side - max(side * 0.08, 0.5)
    places = [(5 * side + (n % 8 + 0.5) * inner / 8, 3 * side + (n // 8 + 0.5) * inner / 8) for n in range(64)]
    same_steps(shown.steps("positions", places), similarity[29].flatten(), -1, 1)
    shown.page.locator("#positions").click(position={"x": 5.5 * side, "y": 3.5 * side})
    assert shown.state()["query"] == "29"


def test_the_filters_are_those_of_inspection(app, opened):
    from vitlab.inspection.weights import as_pictures, principal_filters

    shown = opened()
    found = principal_filters(app.models[FIRST])
    picture = (as_pictures(found.directions)[0] * 255).round()
    tile = 44
    places = [((n % 8 + 0.5) * tile / 8, (n // 8 + 0.5) * tile / 8) for n in range(64)]
    np.testing.assert_allclose(shown.colours("filters", places), picture.flatten(0, 1), atol=1)
    assert f"explain {100 * found.share.sum():.0f} % of the variance" in shown.text("filters-text")


# -- 9. Equations -----------------------------------------------------------------------------------


def test_the_equations_have_the_numbers_of_this_picture(app, opened):
    shown = opened("#layer=2&head=3&query=19")
    found = trace(app.models[FIRST], pixels_of(app.models[FIRST]))
    said = [shown.page.inner_text(f"[data-equation='{number}']") for number in range(1, 5)]
    seen = found.attention[1, 2, 20].astype(float)
    norms = np.linalg.norm(found.tokens, axis=-1).mean(-1)
    change = np.linalg.norm(found.tokens[2] - found.tokens[1], axis=-1).mean()
    best = found.logits.argmax()
    expected = [
        ["64 (8 × 8)", "192 × 24", "65 × 24", f"{norms[0]:.2f}"],
        ["3, each 65 × 65", f"{100 * seen.max():.1f} %", f"{-(seen * np.log2(seen)).sum():.2f} of 6.02 bits"],
        ["24 → 40 → 24", f"{norms[2]:.2f}", f"{change:.2f} (norm)"],
        ["24", "12", f"{found.logits[best]:.2f} ({CLASSES[best].split(',')[0]})"],
    ]
    for text, numbers in zip(said, expected, strict=True):
        assert all(number in text for number in numbers), (text, numbers)


# -- 10. Two models ---------------------------------------------------------------------------------


def test_two_models_stand_side_by_side_and_follow_the_same_query(app, opened):
    shown = opened("#opacity=100&query=19")
    shown.page.select_option("#other", SECOND)
    shown.page.wait_for_selector("#second-answers li")
    shown.ready()
    second = app.models[SECOND]
    assert shown.answers("first-answers") == predicted(app.models[FIRST], PICTURES["clock"])
    assert shown.answers("second-answers") == predicted(second, PICTURES["clock"])
    found = trace(second, pixels_of(second))
    same_steps(shown.head_map(1, 1, (4, 4), "second-heads"), found.attention[0, 1, 1 * 4 + 1], 0)
    shown.page.click("#queries [data-value=mean]")
    shown.page.click("#views [data-value=rollout]")
    maps = look(second, normalised(second)).maps[0]  # of a model that pools the mean
    same_steps(shown.head_map(2, 0, (4, 4), "second-heads"), maps[1, 0], 0)
    assert shown.state()["with"] == SECOND


def test_another_model_keeps_the_view_as_far_as_it_can(app, opened):
    shown = opened("#view=head&layer=4&head=3&query=60")
    shown.page.select_option("#model", SECOND)
    shown.ready()
    state = shown.state()
    assert (state["model"], state["layer"], state["head"], state["query"]) == (SECOND, "2", "2", "mean")
    assert shown.answers() == predicted(app.models[SECOND], PICTURES["clock"])


def test_a_model_without_attention_shows_its_answers_only(app, opened):
    shown = opened(f"#model={RESNET}")
    assert shown.answers() == predicted(app.models[RESNET], PICTURES["clock"])
    assert "only its answer can be shown" in shown.text("sentence")
    for panel in ("heads-panel", "strip-panel", "distance-panel", "equations-panel", "looking", "by-layer"):
        assert shown.page.is_hidden(f"#{panel}")
    shown.page.keyboard.press("]")
    shown.page.select_option("#model", FIRST)
    shown.page.wait_for_selector("#heads-panel", state="visible")
    assert shown.ready().answers() == predicted(app.models[FIRST], PICTURES["clock"])


# -- 11. Links, downloads, keyboard, phone ----------------------------------------------------------


def test_a_link_restores_the_view(opened):
    shown = opened()
    shown.page.click("[data-sample=lemons]")
    shown.page.select_option("#other", SECOND)
    shown.click(33)
    shown.page.click("#views [data-value=similarity]")
    shown.page.fill("#layer", "2")
    shown.page.fill("#opacity", "80")
    shown.page.click("#tools [data-value=drop]")
    shown.click(3)
    shown.page.click("#shuffle")
    shown.ready()
    state, answers = shown.state(), shown.answers()
    assert state["picture"] == "lemons"
    again = opened("#" + "&".join(f"{name}={value}" for name, value in state.items()))
    assert again.state() == state
    assert again.answers() == answers
    assert again.text("sentence") == shown.text("sentence")
    assert again.text("edits-text") == shown.text("edits-text") == "Edited: 1 patch dropped, patches shuffled."


def test_a_damaged_link_opens_the_nearest_view(opened):
    shown = opened("#picture=none&model=x&layer=99&head=-1&query=1e3&view=y&size=1x1&drop=%25&opacity=1000")
    state = shown.state()
    assert (state["layer"], state["head"], state["query"], state["view"]) == ("4", "1", "class", "rollout")
    assert "There is no sample picture named none here" in shown.text("error")


def test_changing_the_address_changes_the_view(app, opened):
    shown = opened()
    shown.page.evaluate("location.hash = '#picture=balloon&view=head&layer=1&head=2&query=5'")
    shown.page.wait_for_selector("[data-sample=balloon][aria-pressed=true]")
    assert shown.ready().answers() == predicted(app.models[FIRST], PICTURES["balloon"])
    assert shown.text("layer-text") == "1 of 4"
    assert shown.text("head-text") == "2 of 3"


def test_the_figure_is_saved_as_svg_with_its_values_and_as_png(app, opened, tmp_path):
    shown = opened("#view=head&layer=2&head=1&query=19")
    with shown.page.expect_download() as svg:
        shown.page.click("#save-svg")
    assert svg.value.suggested_filename == "vitlab-layer2-head1.svg"
    text = svg.value.path().read_text()
    values = [float(value) for value in re.findall(r'data-value="([^"]+)"', text)]
    expected = trace(app.models[FIRST], pixels_of(app.models[FIRST])).attention[1, 0, 20, 1:]
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    assert "In layer 2, head 1," in text
    with shown.page.expect_download() as png:
        shown.page.click("#save-png")
    with Image.open(png.value.path()) as image:
        assert (image.format, image.width) == ("PNG", 2 * 520)


def test_every_key_does_what_the_help_says(app, opened):
    shown = opened()
    keyboard = shown.page.keyboard
    shown.page.on("filechooser", lambda _: None)  # long before the key, as it takes a moment to take effect
    keyboard.press("ArrowRight")
    assert shown.state()["query"] == str(4 * 8 + 4)  # the middle
    for key in ("ArrowLeft", "ArrowUp", "ArrowUp", "ArrowDown", "ArrowRight", "ArrowRight"):
        keyboard.press(key)
    assert shown.state()["query"] == str(3 * 8 + 5)
    keyboard.press("[")
    assert shown.state()["layer"] == "3"
    keyboard.press("]")
    assert shown.state()["layer"] == "4"
    keyboard.press(".")
    keyboard.press(".")
    keyboard.press(",")
    state = shown.state()
    assert (state["head"], state["view"]) == ("2", "head")
    for number, view in enumerate(["rollout", "head", "similarity", "colours", "picture"], 1):
        keyboard.press(str(number))
        assert shown.state()["view"] == view
    keyboard.press("-")
    assert shown.state()["opacity"] == "60"
    keyboard.press("=")
    assert shown.state()["opacity"] == "65"
    keyboard.press("x")
    shown.ready()
    assert shown.text("edits-text") == "Edited: 1 patch dropped."
    keyboard.press("x")
    keyboard.press("g")
    keyboard.press("s")
    shown.ready()
    assert shown.text("edits-text") == "Edited: 1 patch greyed out, patches shuffled."
    keyboard.press("u")
    assert shown.ready().text("edits-text") == ""
    keyboard.press("m")
    assert shown.state()["query"] == "mean"
    keyboard.press("c")
    assert shown.state()["query"] == "class"
    keyboard.press("?")
    assert shown.page.locator("#keys tr").count() == 13
    assert shown.page.is_visible("#help")
    keyboard.press("Escape")
    assert shown.page.is_hidden("#help")
    with shown.page.expect_file_chooser():
        keyboard.press("o")


def test_every_control_is_reached_with_the_tab_key_and_shows_its_focus(opened):
    shown = opened()
    reached = []
    for _ in range(70):
        shown.page.keyboard.press("Tab")
        script = "() => { const e = document.activeElement; return [e.id || e.dataset.value, getComputedStyle(e).outlineStyle]; }"
        reached.append(shown.page.evaluate(script))
    names = {name for name, _ in reached}
    wanted = {"patches", "model", "other", "layer", "head", "opacity", "size", "shared", "open-file", "shuffle"}
    assert wanted | {"rollout", "class", "drop", "save-svg", "help-button"} <= names
    assert all(outline == "solid" for name, outline in reached if name in wanted - {"shared"})


def test_every_control_and_picture_has_a_name(opened):
    shown = opened(f"#with={SECOND}")
    script = """() => [...document.querySelectorAll("button, input, select, canvas, img, dialog")].filter((one) =>
      !(one.getAttribute("aria-label") || one.getAttribute("aria-labelledby") || one.labels?.length || one.alt
        || one.querySelector("img")?.alt || one.textContent.trim() || one.getAttribute("aria-hidden"))).map((one) => one.outerHTML)"""
    assert shown.page.evaluate(script) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_has_one_column_and_nothing_sticks_out(app, opened, scheme):
    shown = opened(
        f"#with={SECOND}&view=head&layer=2", viewport={"width": 390, "height": 844}, color_scheme=scheme, has_touch=True
    )
    assert shown.page.evaluate("document.documentElement.scrollWidth") == 390
    script = """() => [...document.querySelectorAll(".panel:not([hidden])")].map((panel) => {
      const box = panel.getBoundingClientRect(); return [box.left, box.right]; })"""
    edges = np.array(shown.page.evaluate(script))
    assert (edges == edges[0]).all()
    shown.page.locator("#patches").tap(position=shown.patch(19))
    values = trace(app.models[FIRST], pixels_of(app.models[FIRST])).attention[3, 2, 20, 1:]
    same_steps(shown.head_map(4, 2), values, 0)
    ground = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == (scheme == "dark")


# -- Errors -----------------------------------------------------------------------------------------


def test_a_file_that_is_no_picture_is_refused_and_the_view_stays(opened):
    shown = opened()
    answers = shown.answers()
    shown.page.set_input_files("#file", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello"})
    shown.page.wait_for_selector("#error:not([hidden])")
    assert "notes.txt is not a picture" in shown.text("error")
    assert shown.answers() == answers
    shown.page.click("#dismiss")
    assert shown.page.is_hidden("#error")


def test_a_file_that_is_too_large_is_refused_before_it_is_read(opened):
    shown = opened()
    shown.page.evaluate(
        """() => { const transfer = new DataTransfer();
        transfer.items.add(new File([new Uint8Array(50_000_001)], "huge.png", { type: "image/png" }));
        document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true })); }"""
    )
    shown.page.wait_for_selector("#error:not([hidden])")
    assert "huge.png has 50 MB; the largest file allowed has 50 MB" in shown.text("error")


def test_a_busy_server_is_reported_and_can_be_tried_again(app, opened):
    shown = opened()
    app.refusal = 503
    shown.page.click("[data-sample=balloon]")
    shown.page.wait_for_selector("#error:not([hidden])")
    assert "The server is busy" in shown.text("error")
    app.refusal = None
    shown.page.complaints.clear()  # the browser reports the status 503 itself
    shown.page.click("#retry")
    shown.page.wait_for_selector("#error", state="hidden")
    assert shown.ready().answers() == predicted(app.models[FIRST], PICTURES["balloon"])


def test_a_server_that_has_gone_is_reported(app, page_at):
    with serving(app) as url:
        shown = Shown(page_at(url)).ready()
    shown.page.click("#shuffle")
    shown.page.wait_for_selector("#error:not([hidden])")
    assert "The server does not answer" in shown.text("error")
    assert shown.page.is_visible("#retry")
    shown.page.complaints.clear()  # the browser reports the refused connection itself


def test_a_link_to_a_picture_of_ones_own_says_what_is_missing(opened):
    shown = opened("#picture=own&view=head&layer=2")
    assert "a picture that is not part of the link" in shown.text("error")


def test_where_the_model_runs_in_the_browser_nothing_is_uploaded(address, page_at):
    page = page_at("about:blank")
    page.context.on("page", lambda _: None)
    index = 'import { openServed } from "./served.js";\n'
    index += 'export const openBackend = async () => ({ ...(await openServed()), where: "browser" });\n'
    page.route("**/backends/index.js", lambda route: route.fulfill(body=index, content_type="text/javascript"))
    page.goto(address)
    shown = Shown(page).ready()
    assert "Nothing is uploaded" in shown.text("where")
    assert "server" not in shown.text("where")
    page.complaints.clear()


def test_a_slow_answer_to_an_old_question_is_not_shown(app, opened):
    """Many edits in a row: the last one counts, and not every one is computed."""
    shown = opened()
    asked = len(app.traces)
    shown.page.click("#tools [data-value=drop]")
    script = """() => { const canvas = document.getElementById("patches"), box = canvas.getBoundingClientRect();
      const send = (kind, i) => canvas.dispatchEvent(new PointerEvent(kind, { bubbles: true, button: 0, pointerId: 1,
        clientX: box.left + ((i % 8) + 0.5) * box.width / 8, clientY: box.top + (Math.floor(i / 8) + 0.5) * box.height / 8 }));
      for (let i = 0; i < 20; i++) { send("pointerdown", i); send("pointerup", i); } }"""
    shown.page.evaluate(script)
    shown.ready()
    keep = np.arange(64) >= 20
    assert shown.answers()[:5] == top_five(trace(app.models[FIRST], pixels_of(app.models[FIRST]), keep).logits)
    assert len(app.traces) - asked < 10


def test_names_of_classes_and_models_are_text_and_no_markup(page_at):
    spec = ViTSpec(8, layers=1, width=8, mlp=8, heads=1, image=(16, 16), classes=2)
    model = randomised(build_from_spec(spec))
    model.class_names = ("<img src=x onerror=alert(1)>", "<b>b</b>")
    with serving(PageServer({"<script>alert(1)</script>": model})) as url:
        shown = Shown(page_at(url)).ready()
        assert {name for name, _ in shown.answers()} == set(model.class_names)
        assert shown.page.locator("#answers img, #answers b, #model script").count() == 0
        assert json.loads(shown.page.evaluate("JSON.stringify([...document.getElementById('model').options].map(o => o.text))")) == [
            "<script>alert(1)</script>"
        ]
