"""Queries, layers, heads, rollout, answers by layer, similarity, colours: what is painted is what was computed."""

import numpy as np
import pytest
import torch

from page.showing import CLASSES, FIRST, normalised, pixels_of, same_steps, top_five
from vitlab.inspection.attention import attention_distance, even_distance
from vitlab.inspection.weights import as_pictures, position_similarity, principal_filters
from vitlab.page.trace import trace

pytestmark = pytest.mark.slow

# -- Attention: queries, layers, heads, rollout ------------------------------------------------------


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


# -- The answer after each layer ---------------------------------------------------------------------


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


# -- Similarity and principal components -------------------------------------------------------------


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


def test_the_strip_shows_every_layer_and_a_tile_chooses_layer_and_view(app, opened):
    shown = opened("#query=27")
    x, y, side = shown.page.evaluate(
        "() => { const g = document.getElementById('strip').geometry; return [...g.place(1, 3), g.tile.width]; }"
    )
    tokens = torch.tensor(trace(app.models[FIRST], pixels_of(app.models[FIRST])).tokens[3, 1:])
    cosine = torch.cosine_similarity(tokens, tokens[27:28]).numpy()
    others = np.delete(cosine, 27)
    places = [(x + (n % 8 + 0.5) * side / 8, y + (n // 8 + 0.5) * side / 8) for n in range(64)]
    same_steps(shown.steps("strip", places), cosine, others.min(), others.max())
    shown.page.locator("#strip").click(position={"x": x + 9, "y": y + 9})
    state = shown.state()
    assert (state["view"], state["layer"]) == ("similarity", "3")


# -- Distances, filters, positions -------------------------------------------------------------------


def test_the_scatter_shows_the_attention_distance_of_every_head_and_a_dot_opens_its_head(app, opened):
    shown, model = opened(), app.models[FIRST]
    dots = shown.page.eval_on_selector_all("#distance .dot", "dots => dots.map(dot => Number(dot.dataset.pixels))")
    np.testing.assert_allclose(dots, attention_distance(model, normalised(model)).flatten(), rtol=1e-5)
    shown.page.locator("#distance .dot[data-layer='3'][data-head='2']").dispatch_event("click")
    state = shown.state()
    assert (state["view"], state["layer"], state["head"]) == ("head", "3", "3")
    assert f"attention spread evenly would reach {even_distance(model.spec):.0f}." in shown.text("sentence")


def test_a_position_tile_chooses_the_query_and_its_colours_are_the_similarities(app, opened):
    shown = opened()
    similarity = position_similarity(app.models[FIRST]).flatten(0, 1)
    side = shown.page.locator("#positions").bounding_box()["width"] / 8
    inner = side - max(side * 0.08, 0.5)
    places = [(5 * side + (n % 8 + 0.5) * inner / 8, 3 * side + (n // 8 + 0.5) * inner / 8) for n in range(64)]
    same_steps(shown.steps("positions", places), similarity[29].flatten(), -1, 1)
    shown.page.locator("#positions").click(position={"x": 5.5 * side, "y": 3.5 * side})
    assert shown.state()["query"] == "29"


def test_the_filters_are_those_of_inspection(app, opened):
    shown = opened()
    found = principal_filters(app.models[FIRST])
    picture = (as_pictures(found.directions)[0] * 255).round()
    tile = 44
    places = [((n % 8 + 0.5) * tile / 8, (n // 8 + 0.5) * tile / 8) for n in range(64)]
    np.testing.assert_allclose(shown.colours("filters", places), picture.flatten(0, 1), atol=1)
    assert f"explain {100 * found.share.sum():.0f} % of the variance" in shown.text("filters-text")


# -- Equations ---------------------------------------------------------------------------------------


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
