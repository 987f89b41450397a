"""Figures: the same bytes in every process, labelled axes, and no setting of the user in them."""

import hashlib
import os
import re
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures need matplotlib")

from vitlab.drawing.canvas import coloured
from vitlab.inspection.figures import (
    draw_distance,
    draw_filters,
    draw_heads,
    draw_merged,
    draw_positions,
    draw_rollouts,
    draw_scale,
)

ALL = """
import hashlib, sys
import numpy as np
from vitlab.inspection.figures import (
    draw_distance, draw_filters, draw_heads, draw_merged, draw_positions, draw_rollouts, draw_scale
)
numbers = np.random.default_rng(0)
pictures = numbers.integers(0, 256, (3, 16, 24, 3), dtype=np.uint8)
figures = [
    draw_distance(numbers.random((4, 3)), 7, 0.5),
    draw_filters(numbers.random((28, 4, 4, 3)), 0.9),
    draw_positions(numbers.random((2, 3, 2, 3))),
    draw_heads(numbers.random((4, 3, 2, 3)), 1, pictures[0]),
    draw_rollouts(pictures, pictures // 3, pictures // 2),
    draw_merged(pictures, pictures // 2),
    draw_scale(),
]
"""
BLACK = np.zeros((8, 4, 3), np.uint8)
HASHES = ALL + "sys.stdout.write(' '.join(hashlib.sha256(b).hexdigest() for figure in figures for b in figure))"


@pytest.mark.slow
def test_every_figure_has_the_same_bytes_in_two_processes(tmp_path):
    (tmp_path / "matplotlibrc").write_text("font.size: 20\naxes.facecolor: red\nsvg.fonttype: none\n")
    found = []
    for seed, settings in (("1", ""), ("2", str(tmp_path / "matplotlibrc"))):
        environment = {"PYTHONHASHSEED": seed, "MATPLOTLIBRC": settings, "TZ": f"UTC{seed}"}
        environment |= {name: value for name, value in os.environ.items() if name in {"PATH", "PYTHONPATH", "HOME"}}
        done = subprocess.run([sys.executable, "-c", HASHES], env=environment, check=True, capture_output=True)
        found.append(done.stdout)
    assert len(found[0].split()) == 14
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("drawn", "labels"),
    [
        (lambda: draw_distance(np.ones((2, 2)), 1, 2.0), ["network depth (layer)", "mean attention distance (pixels)"]),
        (lambda: draw_distance(np.zeros((1, 1)), 1, 0.0), ["1 image", "head 1", "uniform"]),
        (lambda: draw_filters(np.ones((3, 2, 2, 3)), 1.0), ["principal components", "first 3 components"]),
        (lambda: draw_positions(np.ones((1, 1, 1, 1))), ["patch column", "patch row", "cosine similarity"]),
        (
            lambda: draw_heads(np.zeros((24, 16, 2, 1)), 3, BLACK),
            ["layer", "head", "Picture 3", "input", "relative to"],
        ),
        (
            lambda: draw_rollouts(*np.zeros((3, 10, 8, 4, 3), np.uint8)),
            ["input", "rollout", "input × rollout", "1–3", "10", "minimum to maximum"],
        ),
        (lambda: draw_rollouts(*np.zeros((3, 128, 4, 4, 3), np.uint8)), ["127–128"]),
        (lambda: draw_merged(*np.zeros((2, 10, 8, 4, 3), np.uint8)), ["input", "merged patches", "1–4", "9–10"]),
        (draw_scale, ["minimum", "maximum of the picture"]),
    ],
)
def test_axes_are_labelled(drawn, labels):
    svg, png = drawn()
    text = svg.decode()
    assert png.startswith(b"\x89PNG")
    for label in labels:  # text is drawn as paths, with the words in a comment
        assert re.search(rf"<!-- [^>]*{re.escape(label)}", text), label


def test_the_colours_of_attention_grow_in_brightness_at_every_step():
    shades = coloured(np.linspace(0, 1, 64)[None])[0].astype(float)
    assert shades.shape == (64, 3)
    assert np.all(np.diff(shades @ [0.2126, 0.7152, 0.0722]) > 0)


def test_a_rollout_shows_where_the_picture_itself_is_black():
    black, bright = np.zeros((1, 8, 8, 3), np.uint8), np.full((1, 8, 8, 3), 200, np.uint8)
    assert draw_rollouts(black, black, black).png != draw_rollouts(black, bright, black).png


def test_figures_carry_neither_date_nor_address_nor_version():
    svg, png = draw_positions(np.ones((2, 2, 2, 2)))
    assert b"dc:date" not in svg
    assert b"matplotlib" not in svg.lower().replace(b"matplotlib.axis", b"")
    assert b"Software" not in png
    assert hashlib.sha256(svg).digest() == hashlib.sha256(draw_positions(np.ones((2, 2, 2, 2))).svg).digest()
