"""Taking parts of the picture away, other resolutions, other models."""

import numpy as np
import pytest
import torch

from page.showing import (
    CLASSES,
    FIRST,
    PICTURES,
    RESNET,
    SECOND,
    normalised,
    pixels_of,
    predicted,
    same_steps,
    top_five,
)
from vitlab.inspection.rollout import look, rollout
from vitlab.page.trace import at_size, trace

pytestmark = pytest.mark.slow

# -- Edits -------------------------------------------------------------------------------------------


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
    assert (shown.computed()[-1][0] == pixels).all()
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
    assert (shown.computed()[-1][1] == keep).all()
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
    sent = shown.computed()[-1][0]

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
    assert (shown.computed()[-1][1] == keep).all()
    assert shown.text("edits-text") == "Edited: 13 patches dropped."


def patches_of(pixels):
    """(64, 192): the patches of a picture of 64 pixels."""
    return pixels.reshape(8, 8, 8, 8, 3).swapaxes(1, 2).reshape(64, -1)


def test_what_is_dropped_stays_dropped_when_patches_are_shuffled(app, opened):
    shown, original = opened(), patches_of(pixels_of(app.models[FIRST]))
    shown.page.click("#drop-seen")
    shown.ready()
    gone = original[~shown.computed()[-1][1]]
    for _ in range(2):
        shown.page.click("#shuffle")
        shown.ready()
        pixels, keep = shown.computed()[-1]
        assert (pixels != pixels_of(app.models[FIRST])).any()
        assert sorted(patches_of(pixels)[~keep].tolist()) == sorted(gone.tolist())


def test_a_dropped_patch_cannot_look_so_the_class_token_does(opened):
    shown = opened("#query=27")
    shown.page.click("#tools [data-value=drop]")
    shown.click(27)
    shown.ready()
    assert not shown.computed()[-1][1][27]
    assert "the class token" in shown.text("sentence")


# -- Resolution --------------------------------------------------------------------------------------


def test_a_higher_resolution_has_more_patches_and_the_answer_of_the_resized_model(app, opened):
    shown = opened("#query=27")
    shown.page.fill("#size", "1")
    shown.ready()
    model = at_size(app.models[FIRST], (96, 96))
    assert shown.answers() == top_five(trace(model, pixels_of(model, size=(96, 96))).logits)
    assert shown.text("size-text") == "96 × 96, 144 patches"
    state = shown.state()
    assert (state["size"], state["query"]) == ("96x96", str(5 * 12 + 5))  # the patch at the same place


# -- Two models --------------------------------------------------------------------------------------


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
