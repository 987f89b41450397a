"""The panels of the studies' figures: which points, in which order, joined or not, beside which of the paper's."""

import math
import statistics
from dataclasses import replace

import pytest

from study_rows import synthetic
from vitlab.paper.results import BIT_L, L16_JFT, SELF_SUPERVISION, TABLE_2, TABLE_6
from vitlab.runs.study.presentation import study_panels, study_table
from vitlab.studies.catalogue import STUDIES
from vitlab.studies.scales import PAPER
from vitlab.studies.transfer import FIVE

ORDERED = {
    "table5",
    "figure4",
    "table6",
    "resolution",
    "figure7",
    "figure8",
    "figure9",
    "figure10",
    "figure12",
    "figure13",
}


def panels(name, **levels):
    """The panels of a study with made-up values."""
    rows = list(synthetic(name, levels))
    if name == "figure7":
        layers = {f"distance, layer {number}": 40.0 + number for number in range(1, 12)}
        rows = [replace(row, values={**row.values, **layers}) for row in rows]
    return study_panels(STUDIES[name], rows)


@pytest.mark.parametrize("name", STUDIES)
def test_lines_join_ordered_levels_only(name):
    assert {panel.is_joined for panel in panels(name)} == {name in ORDERED}


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("figure9", ["0.0003", "0.0008"]),
        ("table5", ["ImageNet", "ImageNet-21k", "JFT-300M"]),
        ("resolution", ["same", "higher"]),
        ("figure7", [f"{layer}" for layer in range(1, 12)]),
        ("figure4", ["2000", "10000", "50000"]),
        ("figure12", ["32", "64"]),
    ],
)
def test_ordered_levels_are_in_their_order(name, names):
    assert all(panel.names == names for panel in panels(name))


def test_the_papers_accuracies_of_table_6_are_over_its_own_exaflops():
    ours, paper = panels("table6")
    assert ours.title == "here, scale tiny, mean over tasks"
    assert paper.title == "the paper, mean of 5 tasks"
    drawn = {point.x for points in paper.curves.values() for point in points}
    assert drawn == {TABLE_6[(model, 7), "exaFLOPs"] for model in (
        "ViT-B/32", "ViT-B/16", "ViT-L/16", "R50x1", "R50x2", "R50+ViT-B/32", "R50+ViT-B/16", "R50+ViT-L/16",
    )}  # fmt: skip


def test_points_at_the_papers_scale_are_means_over_the_tasks_that_all_models_have():
    """Table 9 has VTAB's tasks for ViTs alone, and ReaL is no accuracy of the five: means over them would differ."""
    rows = list(synthetic("table2", {"VTAB, dSprites (location)": -40.0}, scale=PAPER))
    ours, paper = study_panels(STUDIES["table2"], rows)
    assert paper.title == "the paper, mean over tasks"
    columns = {L16_JFT: "JFT-300M", BIT_L: "JFT-300M"}
    for (model, data), curve in columns.items():
        (height,) = [point.y for point in paper.curves[curve] if point.x == model]
        assert height == pytest.approx(statistics.fmean(TABLE_2[task, (model, data)].mean for task in FIVE))
    assert len({row.levels["task"] for row in rows}) == 25
    assert all(point.y > 49 for points in ours.curves.values() for point in points)


def test_a_point_leaves_out_seeds_without_every_cell_as_its_claims_do():
    rows = list(synthetic("table7", {"digits": 30.0}))
    whole, first = study_panels(STUDIES["table7"], rows)[0], rows[0]
    assert (first.levels["task"], first.seed) == ("Fashion-MNIST", 0)
    (cut, *_) = study_panels(STUDIES["table7"], [replace(first, values={}), *rows[1:]])
    curve, place = first.levels["model"], first.levels["optimizer"]
    (before,), (after,) = ([p.y for p in panel.curves[curve] if p.x == place] for panel in (whole, cut))
    assert abs(after - before) < 1, "seed 0 is left out; its digits alone would raise the mean by 5 points"


def test_published_numbers_of_other_tasks_are_one_series():
    ours, paper = panels("selfsup")
    assert list(ours.curves) == ["CIFAR-10", "Fashion-MNIST"]
    assert ours.names[1:3] == ["masked patches\nmean-colour", "masked patches\ncolours-4x4"]
    assert paper.title == "the paper, ImageNet"
    assert list(paper.curves) == [""]
    heights = [point.y for point in paper.curves[""]]
    assert heights == [SELF_SUPERVISION[name, "ImageNet"] for name in (
        "from scratch", "masked patches of JFT-300M", "supervised JFT-300M",
    )]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "limits"), [("figure12", (0, math.inf)), ("table8", (0, 100)), ("figure10", (-math.inf, math.inf))]
)
def test_error_bars_are_limited_to_possible_values(name, limits):
    assert panels(name)[0].limits == limits


def test_units_are_on_the_axes():
    assert panels("figure7")[0].y == "attention distance (% of the image side)"
    assert panels("figure10")[0].y == "positions: similarity of near minus far patches"


def test_tables_name_stand_ins_except_at_the_papers_scale():
    rows = list(synthetic("table2", {}))
    small = study_table(rows, STUDIES["table2"].printed)
    assert small.columns[3] == "stand-in"
    assert small.columns[-1] == "the paper, mean of 5 tasks"
    assert {(row[0], row[3]) for row in small.rows} == {
        ("ViT-L/16", "ViT (L=6, D=96, MLP=384, h=6)/8"),
        ("R152x4", "R26x0.25"),
    }
    paper = study_table([replace(row, scale="paper") for row in rows], STUDIES["table2"].printed)
    assert "stand-in" not in paper.columns
    assert paper.columns[-1] == "the paper"
