"""Curves over names or over a logarithmic axis, with error bars."""

from vitlab.drawing.charts import Point, draw_levels


def test_the_same_points_give_the_same_bytes():
    panels = {"ours": {"a": [Point("x", 1.0, 0.1), Point("y", 2.0, 0.2)], "b": [Point("y", 1.0)]}}
    one, two = (draw_levels(panels, ["x", "y"], x="factor", y="value") for _ in range(2))
    assert one == two
    assert one.svg.startswith(b"<?xml")


def test_points_are_drawn_in_the_order_of_their_names():
    first = {"ours": {"a": [Point("y", 2.0), Point("x", 1.0)]}}
    other = {"ours": {"a": [Point("x", 1.0), Point("y", 2.0)]}}
    assert draw_levels(first, ["x", "y"], x="f", y="v") == draw_levels(other, ["x", "y"], x="f", y="v")


def test_numbers_have_a_logarithmic_axis_and_published_ones_a_panel_of_their_own():
    curves = {"ViT": [Point(1e-6, 50.0, 1.0), Point(1e-5, 60.0, 2.0)]}
    alone = draw_levels({"ours": curves}, None, x="exaFLOPs", y="top-1 %")
    beside = draw_levels({"ours": curves, "the paper": curves}, None, x="exaFLOPs", y="top-1 %")
    assert len(beside.svg) > 1.5 * len(alone.svg)
