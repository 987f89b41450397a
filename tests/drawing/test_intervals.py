"""Points with intervals: over names or over a logarithmic axis, and beyond the ends of an axis."""

import math
import re
from itertools import pairwise

import pytest

from vitlab.drawing.intervals import Measured, Panel, Point, apart, draw_intervals, draw_levels

pytest.importorskip("matplotlib", reason="figures need matplotlib")

LOOKS = {"yes": ("green", "o"), "no": ("red", "X")}


def panel(curves, names=("x", "y"), **changes):
    """A panel over two names."""
    return Panel("ours", curves, names, "factor", "value", **changes)


def test_the_same_points_give_the_same_bytes():
    made = panel({"a": [Point("x", 1.0, 0.1), Point("y", 2.0, 0.2)], "b": [Point("y", 1.0)]})
    one, two = (draw_levels([made], legend="kind") for _ in range(2))
    assert one == two
    assert one.svg.startswith(b"<?xml")


def test_points_are_drawn_in_the_order_of_their_names():
    first = panel({"a": [Point("y", 2.0), Point("x", 1.0)]})
    other = panel({"a": [Point("x", 1.0), Point("y", 2.0)]})
    assert draw_levels([first]) == draw_levels([other])


def test_only_ordered_levels_are_joined_by_lines():
    curves = {"a": [Point("x", 1.0), Point("y", 2.0)]}
    joined, single = (draw_levels([panel(curves, is_joined=yes)]).svg for yes in (True, False))
    assert len(_lines(joined)) == len(_lines(single)) + 2  # the curve, and its entry in the legend


def _lines(svg):
    """The lines of two points in the colour of the first curve."""
    return re.findall(rb'<path d="M [^"]*L [^"]*" [^>]*style="fill: none; stroke: #1f77b4; stroke-width: 1.1', svg)


def test_numbers_have_a_logarithmic_axis_and_published_ones_a_panel_of_their_own():
    made = panel({"ViT": [Point(1e-6, 50.0, 1.0), Point(1e-5, 60.0, 2.0)]}, None)
    alone, beside = draw_levels([made]), draw_levels([made, made._replace(title="the paper")])
    assert len(beside.svg) > 1.5 * len(alone.svg)


def test_error_bars_end_where_no_value_is_possible():
    curves = {"a": [Point("x", 10.0, 30.0), Point("y", 20.0, 5.0)]}
    cut = {"a": [Point("x", 10.0, 30.0), Point("y", 20.0, 5.0)], "b": [Point("x", 0.0)]}
    assert draw_levels([panel(curves, limits=(0.0, math.inf))]) != draw_levels([panel(curves)])
    heights = _bar_ends(draw_levels([panel(cut, limits=(0.0, math.inf))]).svg)
    assert heights[0] == pytest.approx(heights["zero"], abs=0.01)


def _bar_ends(svg):
    """Where the first error bar ends below, and where the marker at zero is, in points from the top."""
    bars = re.search(rb'id="LineCollection_1">\s*(.*?)</g>', svg, re.DOTALL)[1]
    low = max(map(float, re.search(rb"M \S+ (\S+) \nL \S+ (\S+)", bars).groups()))
    last = re.findall(rb'<use [^>]*y="(\S+)" style="fill: #ff7f0e', svg)
    return {0: low, "zero": float(last[0])}


def test_close_points_are_moved_apart_as_little_as_possible():
    assert apart([0.0, 1.0, 2.0], 0.5) == [0.0, 1.0, 2.0]
    assert apart([1.0, 1.0], 0.5) == [0.75, 1.25]
    assert apart([0.0, 1.0, 1.0, 1.0, 5.0], 0.1) == pytest.approx([0.0, 0.9, 1.0, 1.1, 5.0])
    found = apart([0.0, 0.1, 0.15, 0.8, 0.81], 0.3)
    assert all(b - a >= 0.3 - 1e-9 for a, b in pairwise(found))
    assert apart([], 0.1) == []


def test_one_far_value_does_not_squeeze_the_others():
    """The axis of the near one is the same, however far the other is."""
    near = Measured("near", 1.0, 0.5, (0.0, math.inf), "yes")
    drawn = [
        draw_intervals([near, Measured("far", mean, 1.0, (0.0, math.inf), "no")], LOOKS, x="points", most=5.0).svg
        for mean in (-30.0, -3000.0)
    ]
    ends = [re.findall(rb'd="M (\S+) \S+ \nL (\S+) \S+ \n"[^>]*stroke: #008000', svg) for svg in drawn]
    assert ends[0]
    assert ends[0] == ends[1]
    assert drawn[0] != drawn[1]  # the number at the arrow
