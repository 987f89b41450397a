"""Charts: the numbers they show, and the same bytes every time."""

import re

import numpy as np
import pytest

from vitlab.drawing.charts import draw_confusion, draw_curves, draw_pictures, draw_spread, smoothed, thinned
from vitlab.drawing.page import Section, page

pytest.importorskip("matplotlib", reason="figures need matplotlib")


def test_smoothing_is_the_mean_of_the_last_values():
    points = dict(enumerate([4.0, 2.0, 0.0, 6.0], start=1))
    assert smoothed(points, window=2) == {1: 4.0, 2: 3.0, 3: 1.0, 4: 3.0}
    assert smoothed({}) == {}


def test_the_same_numbers_make_the_same_bytes():
    curves = {"one": {1: 0.5, 2: 0.25}, "two": {1: 1.0, 2: 0.1}}
    assert draw_curves(curves, x="step", y="loss") == draw_curves(curves, x="step", y="loss")
    counts = np.array([[3, 1], [0, 4]])
    assert draw_confusion(counts, ("a", "b")) == draw_confusion(counts, ("a", "b"))
    assert draw_confusion(counts, ("a", "b")).svg != draw_confusion(counts.T, ("a", "b")).svg


def test_error_bars_are_as_long_as_the_repeats_differ():
    def height(repeats):
        curves = {"one": {1: [50.0, 50.0], 10: repeats}, "two": {1: [0.0], 10: [100.0]}}
        svg = draw_spread(curves, {1: "1", 10: "all"}, x="x", y="y").svg
        bars = re.search(rb'id="LineCollection_1">\s*(.*?)</g>', svg, re.DOTALL)
        lows_and_highs = re.findall(rb"M \S+ (\S+) \nL \S+ (\S+)", bars[1])
        return [abs(float(low) - float(high)) for low, high in lows_and_highs]

    none, some = height([50.0, 50.0]), height([40.0, 60.0])
    assert none == [0, 0]
    assert some[0] == 0
    assert some[1] > 40  # of about 250 points for 100 %


def test_pictures_of_two_sizes_stand_in_one_grid():
    white, black = np.full((4, 4, 3), 255, np.uint8), np.zeros((8, 8, 3), np.uint8)
    assert draw_pictures([[black, black], [white, white]]) == draw_pictures([[black, black], [white, white]])
    assert draw_pictures([[black, black], [white, white]]).png != draw_pictures([[black, black], [white, black]]).png


def test_a_table_of_a_page_runs_nothing():
    text = page("t", "a", [Section("s", "x", table=[("name", "n"), ("<img src=x onerror=alert(1)>", "3")])])
    assert "<img src=x" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "<th>name</th>" in text
    assert "<td>3</td>" in text


def test_narrow_sections_share_columns_and_wide_ones_stand_alone():
    sections = [Section("a", ""), Section("b", ""), Section("c", "", wide=True), Section("d", "")]
    text = page("t", "", sections)
    groups = re.findall(r'<div class="(narrow|wide)">(.*?)</section>\n</div>', text, re.DOTALL)
    assert [(kind, re.findall("<h2>(.)</h2>", body)) for kind, body in groups] == [
        ("narrow", ["a", "b"]),
        ("wide", ["c"]),
        ("narrow", ["d"]),
    ]


def test_a_curve_is_thinned_to_its_most_with_its_ends():
    points = {step: float(step) for step in range(1, 1234)}
    kept = thinned(points, 100)
    assert len(kept) <= 101
    assert (min(kept), max(kept)) == (1, 1233)
    assert all(points[step] == value for step, value in kept.items())
    assert thinned({3: 1.0}) == {3: 1.0}
    assert thinned({}) == {}


def test_any_name_can_stand_at_the_axes_of_a_confusion():
    names = ("$\\frac{", "gr\u00fcn \u6f22", "", "a" * 300, "\x1b[2J")
    wide = draw_confusion(np.eye(5, dtype=int), names)
    assert len(wide.svg) < 200_000
    assert wide.svg != draw_confusion(np.eye(5, dtype=int), ("a", "b", "c", "d", "e")).svg


def test_a_single_point_of_a_curve_is_seen():
    one = draw_curves({"a": {1: 0.5, 2: 0.5}, "b": {2: 0.7}}, x="x", y="y").svg
    assert one.count(b"<use ") > draw_curves({"a": {1: 0.5, 2: 0.5}}, x="x", y="y").svg.count(b"<use ")
