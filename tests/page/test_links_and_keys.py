"""Links, saved figures, the keyboard, phones."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from page.showing import FIRST, PICTURES, RESNET, SECOND, pixels_of, predicted, same_steps
from vitlab.page.trace import trace

pytestmark = pytest.mark.slow


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
    shown.page.wait_for_function("document.querySelector('#edits-text').innerText.includes('shuffled')")
    shown.ready()
    state, answers = shown.state(), shown.answers()
    assert state["picture"] == "lemons"
    again = opened("#" + "&".join(f"{name}={value}" for name, value in state.items()))
    assert again.state() == state
    assert again.answers() == answers
    assert again.text("sentence") == shown.text("sentence")
    assert again.text("edits-text") == shown.text("edits-text") == "Edited: 1 patch dropped, patches shuffled."


def test_a_damaged_link_opens_the_nearest_view(opened):
    shown = opened("#picture=none&layer=99&head=-1&query=1e3&view=y&size=1x1&drop=%25&opacity=1000")
    state = shown.state()
    assert (state["layer"], state["head"], state["query"], state["view"]) == ("4", "1", "class", "rollout")
    assert "There is no sample picture named none here" in shown.text("error")


@pytest.mark.parametrize("name", ["model", "with"])
def test_a_link_to_a_model_that_is_not_here_says_so(opened, name):
    shown = opened(f"#{name}=x&layer=2")
    assert "This link is to the model x" in shown.text("error")
    assert f"It has {FIRST}, {SECOND}, {RESNET}" in shown.text("error")
    shown.page.click("#dismiss")
    shown.page.evaluate("location.hash = '#model=y'")
    shown.page.wait_for_selector("#error:not([hidden])")
    assert "the model y" in shown.text("error")


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


def test_every_key_does_what_the_help_says(opened):
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
    assert shown.page.is_visible("#help")
    document = (Path(__file__).parent.parent.parent / "docs" / "howto" / "page.md").read_text()
    keys = document.partition("## Keys")[2].partition("## ")[0]
    said = [" | ".join(row.locator("th, td").all_inner_texts()) for row in shown.page.locator("#keys tr").all()]
    assert re.findall(r"^\| (.*) \|$", keys, re.M)[1:] == said
    keyboard.press("Escape")
    assert shown.page.is_hidden("#help")
    with shown.page.expect_file_chooser():
        keyboard.press("o")


def test_every_control_is_reached_with_the_tab_key_and_shows_its_focus(opened):
    shown = opened()
    reached = []
    for _ in range(70):
        shown.page.keyboard.press("Tab")
        script = """() => { const one = document.activeElement;
          return [one.id || one.dataset.value, getComputedStyle(one).outlineStyle]; }"""
        reached.append(shown.page.evaluate(script))
    names = {name for name, _ in reached}
    wanted = {"patches", "model", "other", "layer", "head", "opacity", "size", "shared", "open-file", "shuffle"}
    assert wanted | {"rollout", "class", "drop", "save-svg", "help-button"} <= names
    assert all(outline == "solid" for name, outline in reached if name in wanted - {"shared"})


def test_every_control_and_picture_has_a_name(opened):
    shown = opened(f"#with={SECOND}")
    script = """() => [...document.querySelectorAll("button, input, select, canvas, img, dialog")].filter((one) =>
      !(one.getAttribute("aria-label") || one.getAttribute("aria-labelledby") || one.labels?.length || one.alt
        || one.querySelector("img")?.alt || one.textContent.trim() || one.getAttribute("aria-hidden")))
      .map((one) => one.outerHTML)"""
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
