"""What goes wrong is said, and what was there stays."""

import numpy as np
import pytest

from agreement import randomised
from page.serving import PageServer, serving
from page.showing import FIRST, PICTURES, Shown, only_served, pixels_of, predicted, top_five
from vitlab.models.build import build_from_spec
from vitlab.page.trace import trace
from vitlab.spec import ViTSpec

pytestmark = pytest.mark.slow


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
        const options = { dataTransfer: transfer, bubbles: true, cancelable: true };
        document.body.dispatchEvent(new DragEvent("drop", options)); }"""
    )
    shown.page.wait_for_selector("#error:not([hidden])")
    assert "huge.png has 50 MB; the largest file allowed has 50 MB" in shown.text("error")


@only_served
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


def test_a_slow_answer_to_an_old_question_is_not_shown(app, opened):
    """Many edits in a row: the last one counts, and not every one is computed."""
    shown = opened()
    asked = len(shown.computed())
    shown.page.click("#tools [data-value=drop]")
    script = """() => { const canvas = document.getElementById("patches"), box = canvas.getBoundingClientRect();
      const send = (kind, i) => {
        const [x, y] = [((i % 8) + 0.5) / 8, (Math.floor(i / 8) + 0.5) / 8];
        const place = { clientX: box.left + x * box.width, clientY: box.top + y * box.height };
        canvas.dispatchEvent(new PointerEvent(kind, { bubbles: true, button: 0, pointerId: 1, ...place }));
      };
      for (let i = 0; i < 20; i++) { send("pointerdown", i); send("pointerup", i); } }"""
    shown.page.evaluate(script)
    shown.ready()
    keep = np.arange(64) >= 20
    assert shown.answers()[:5] == top_five(trace(app.models[FIRST], pixels_of(app.models[FIRST]), keep).logits)
    assert len(shown.computed()) - asked < 10


def test_names_of_classes_and_models_are_text_and_no_markup(page_at):
    spec = ViTSpec(8, layers=1, width=8, mlp=8, heads=1, image=(16, 16), classes=2)
    model = randomised(build_from_spec(spec))
    model.class_names = ("<img src=x onerror=alert(1)>", "<b>b</b>")
    with serving(PageServer({"<script>alert(1)</script>": model})) as url:
        shown = Shown(page_at(url)).ready()
        assert {name for name, _ in shown.answers()} == set(model.class_names)
        assert shown.page.locator("#answers img, #answers b, #model script").count() == 0
        assert shown.page.locator("#model option").all_inner_texts() == ["<script>alert(1)</script>"]
