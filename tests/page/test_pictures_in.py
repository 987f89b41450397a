"""Pictures of every origin get the answer of `vitlab.predict`; what is no picture is refused."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from page.showing import FIRST, PICTURES, normalised, predicted, same_steps
from vitlab.inspection.rollout import rollout

pytestmark = pytest.mark.slow


def test_the_first_view_shows_a_sample_its_rollout_and_the_answer_of_predict(app, opened):
    shown = opened("#opacity=100")
    assert shown.answers() == predicted(app.models[FIRST], PICTURES["clock"])
    same_steps(shown.over_picture(), rollout(app.models[FIRST], normalised(app.models[FIRST]))[0])
    assert "the class token gets its information from, through all 4 layers" in shown.text("sentence")
    is_static = not app.traces
    assert ("sent to the server at 127.0.0.1" in shown.text("where")) != is_static
    assert ("Nothing is uploaded" in shown.page.content()) == is_static


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


def test_the_camera_is_asked_for_only_after_a_click(opened):
    shown = opened(script=CAMERA)
    page = shown.page
    assert page.evaluate("window.asked") is None
    page.click("#camera")
    page.wait_for_function("() => document.getElementById('camera-video').videoWidth === 64")
    page.click("#camera-take")
    page.wait_for_function("() => location.hash.includes('picture=own')")
    shown.ready()
    green = shown.computed()[-1][0].reshape(-1, 3)
    assert (green.max(0) - green.min(0)).max() <= 2  # one colour
    assert green.mean(0).argmax() == 1
    assert page.evaluate("document.getElementById('camera-video').srcObject.active") is False


def test_without_a_camera_there_is_no_button(opened):
    shown = opened(script="Object.defineProperty(navigator, 'mediaDevices', { value: undefined });")
    assert shown.page.is_hidden("#camera")
