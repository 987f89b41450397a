"""Points with intervals: the figures of studies and of their claims."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vitlab.drawing.canvas import Drawn, drawn, figure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS, MARKERS = 10, "os^Dv<>pPX"  # of curves; further curves are dashed
CHARACTER, WIDEST = 0.068, 9.0  # inches: of a name along an axis, and of a panel
CLOSE = 0.025  # points over a logarithmic axis are at least this share of its length apart


class Point(NamedTuple):
    """A point of a curve: its place along x, a name or a number, its height, and half the length of its error bar."""

    x: str | float
    y: float
    error: float = 0.0


class Panel(NamedTuple):
    """A chart of `draw_levels`: curves over `names` or, without names, over a logarithmic axis.

    Lines join the points of a curve if it `is_joined`. Error bars end at `limits`, the range of possible values.
    """

    title: str
    curves: Mapping[str, Sequence[Point]]
    names: Sequence[str] | None
    x: str
    y: str
    is_joined: bool = True
    limits: tuple[float, float] = (-math.inf, math.inf)


def draw_levels(panels: Sequence[Panel], legend: str = "") -> Drawn:
    """Draw panels side by side: curves of points with error bars. `legend` is the title of the legend.

    Panels have their own axes, because they may not be comparable. A curve has the same colour in all of them; one
    without a name is grey and not in the legend.
    """
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves if name))
    widths = list(map(_width, panels))
    with figure_of(sum(widths), 3.6) as (figure, single):
        single.remove()
        grid = figure.subplots(1, len(panels), width_ratios=widths)
        for axes, panel in zip(np.atleast_1d(grid), panels, strict=True):
            panel = panel._replace(curves={name: _sorted(panel, points) for name, points in panel.curves.items()})
            places = _places(panel)
            for name, points in panel.curves.items():
                axes.errorbar(
                    places[name],
                    [point.y for point in points],
                    yerr=_bars(points, panel.limits),
                    label=name or None,
                    **_style(names.index(name) if name else None, is_joined=panel.is_joined),
                )
            _label(axes, panel, is_moved=any(places[n] != [p.x for p in ps] for n, ps in panel.curves.items()))
        handles = {}
        for axes in figure.axes:
            handles |= {text: handle for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.tight_layout()
        if handles:
            figure.axes[-1].legend(
                [handles[name] for name in names], names, title=legend or None, frameon=False, fontsize=7,
                title_fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0,
            )  # fmt: skip
        return drawn(figure)


def _width(panel: Panel) -> float:
    """Inches that a panel needs for the names along its axis, which may have several lines."""
    longest = max((len(line) for name in panel.names or () for line in name.splitlines()), default=0)
    return min(max(4.8, 0.9 + CHARACTER * (longest + 1) * len(panel.names or ())), WIDEST)


def _sorted(panel: Panel, points: Sequence[Point]) -> list[Point]:
    """The points of a curve from left to right."""
    order = list(panel.names or ())
    return sorted(points, key=lambda point: order.index(str(point.x)) if order else float(point.x))


def _style(place: int | None, *, is_joined: bool) -> dict[str, object]:
    """How the curve of a place in the legend looks."""
    line = "none" if not is_joined else "-" if place is None or place < COLOURS else "--"
    colour, marker = ("0.3", "o") if place is None else (f"C{place % COLOURS}", MARKERS[place % len(MARKERS)])
    return {"color": colour, "marker": marker, "linestyle": line, "capsize": 3, "markersize": 4, "linewidth": 1.1}


def _bars(points: Sequence[Point], limits: tuple[float, float]) -> list[list[float]] | None:
    """Error bars below and above each point, cut where no value is possible; None without any."""
    if not any(point.error for point in points):
        return None
    low, high = limits
    return [
        [min(point.error, max(point.y - low, 0.0)) for point in points],
        [min(point.error, max(high - point.y, 0.0)) for point in points],
    ]


def _label(axes: "Axes", panel: Panel, *, is_moved: bool) -> None:
    """The ticks, labels and title of a panel."""
    from matplotlib.ticker import LogLocator

    if panel.names is not None:
        is_full = _width(panel) >= WIDEST
        axes.set_xticks(range(len(panel.names)), panel.names, rotation=90 if is_full else 0, fontsize=8)
        axes.set_xlim(-0.5, len(panel.names) - 0.5)
        axes.set(xlabel=panel.x)
    else:
        axes.set(xscale="log", xlabel=f"{panel.x}{' (close points moved apart)' if is_moved else ''}")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xticks([], minor=True)
    if panel.limits[0] == 0 and math.isinf(panel.limits[1]):
        axes.set_ylim(bottom=0)
    axes.set(ylabel=panel.y)
    axes.set_title(panel.title, fontsize=9)


def _places(panel: Panel) -> dict[str, list[float]]:
    """Where along x the points of each curve are drawn: points of several curves at one place stand side by side."""
    if panel.names is not None:
        order, number = list(panel.names), len(panel.curves)
        step = min(0.1, 0.36 / max(number, 1))
        return {
            name: [order.index(str(point.x)) + step * (place - (number - 1) / 2) for point in points]
            for place, (name, points) in enumerate(panel.curves.items())
        }
    every = sorted((math.log10(float(p.x)), name, at) for name, ps in panel.curves.items() for at, p in enumerate(ps))
    step = CLOSE * max(every[-1][0] - every[0][0], 0.3) if every else 0.0
    found = {name: [float(point.x) for point in points] for name, points in panel.curves.items()}
    for (log, name, at), new in zip(every, apart([log for log, _, _ in every], step), strict=True):
        if not math.isclose(log, new, abs_tol=1e-9):
            found[name][at] = 10**new
    return found


def apart(places: Sequence[float], step: float) -> list[float]:
    """Sorted numbers moved as little as possible (least squares), so that neighbours are `step` or more apart."""
    groups: list[list[float]] = []  # of numbers that touch: the sum of their places without the steps, how many
    for number, place in enumerate(places):
        groups.append([place - number * step, 1])
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] > groups[-1][0] / groups[-1][1]:
            total, many = groups.pop()
            groups[-1][0] += total
            groups[-1][1] += many
    flat = [total / many for total, many in groups for _ in range(int(many))]
    return [place + number * step for number, place in enumerate(flat)]


class Measured(NamedTuple):
    """A line of `draw_intervals`: a mean with half of its interval, what is expected of it, and the answer."""

    name: str
    mean: float
    half: float
    expected: tuple[float, float]  # from, to; infinite on one side
    answer: str


def draw_intervals(
    lines: Sequence[Measured], looks: Mapping[str, tuple[str, str]], *, x: str, most: float = math.inf
) -> Drawn:
    """Draw a mean with its interval in each line; a grey band is where it is expected.

    `looks` are the colour and the marker of each answer. The axis ends at `most` on both sides: what is beyond is an
    arrow with its numbers.
    """
    lowest = max(min(min(line.mean - line.half, 0.0) for line in lines), -most)
    highest = min(max(max(line.mean + line.half, 0.0) for line in lines), most)
    margin = 0.04 * (highest - lowest)
    ends = lowest - margin, highest + margin
    with figure_of(7.2, 0.6 + 0.27 * len(lines)) as (figure, axes):
        for place, line in enumerate(lines):
            low, high = (min(max(end, ends[0]), ends[1]) for end in line.expected)
            axes.barh(place, high - low, left=low, height=0.8, color="0.93", linewidth=0)
            _interval(axes, place, line, (lowest, highest), *looks[line.answer])
        for answer, (colour, marker) in looks.items():
            if any(line.answer == answer for line in lines):
                axes.plot([], [], marker, color=colour, label=answer, markersize=5)
        axes.bar([0], [0], color="0.93", label="expected by the claim")
        axes.axvline(0, color="0.6", linewidth=0.8)
        axes.set_yticks(range(len(lines)), [line.name for line in lines], fontsize=8)
        axes.set(xlabel=x, xlim=ends, ylim=(len(lines) - 0.4, -0.6))
        axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(looks) + 1)
        return drawn(figure)


def _interval(axes: "Axes", place: int, line: Measured, ends: tuple[float, float], colour: str, marker: str) -> None:
    """One interval; beyond the ends of the axis, arrows and the numbers."""
    low, high = line.mean - line.half, line.mean + line.half
    first, last = (min(max(end, ends[0]), ends[1]) for end in (low, high))
    is_cut = low < ends[0] or high > ends[1]
    axes.plot([first, last], [place, place], color=colour, linewidth=1.4)
    for end, shown, arrow in ((low, first, "<"), (high, last, ">")):
        is_beyond = end < ends[0] if arrow == "<" else end > ends[1]
        axes.plot([shown], [place], arrow if is_beyond else "|", color=colour, markersize=6)
    if ends[0] <= line.mean <= ends[1]:
        axes.plot([line.mean], [place], marker, color=colour, markersize=5)
    if is_cut:
        text = f"{line.mean:+.1f} [{low:+.1f}, {high:+.1f}]"
        at, side = (first, "left") if line.mean < 0 else (last, "right")
        offset = (8, 0) if side == "left" else (-8, 7)
        style = {"textcoords": "offset points", "fontsize": 7, "color": colour, "ha": side, "va": "center"}
        axes.annotate(text, (at, place), offset, **style)
