"""Charts of training curves, confusion matrices and pictures."""

from collections.abc import Mapping, Sequence

import numpy as np

from vitlab.drawing.canvas import Drawn, drawn, figure_of, mosaic, require_matplotlib

FEW = 5  # curves with fewer points get markers
COLOURS, MARKERS = 10, "os^Dv<>pPX"  # of curves; further curves are dashed
LONGEST = 18  # characters of a class name on an axis


def draw_curves(curves: Mapping[str, Mapping[int, float]], *, x: str, y: str) -> Drawn:
    """Draw one line per curve, named in the legend; `x` and `y` label the axes."""
    with figure_of(5.6, 3.6) as (figure, axes):
        for name, points in curves.items():
            marker = "o" if len(points) < FEW else None  # a single point has no line
            axes.plot(list(points), list(points.values()), label=name, linewidth=1.3, marker=marker, markersize=4)
        axes.set(xlabel=x, ylabel=y)
        axes.legend(frameon=False)
        return drawn(figure)


def draw_spread(
    curves: Mapping[str, Mapping[int, Sequence[float]]], names: Mapping[int, str], *, x: str, y: str
) -> Drawn:
    """Draw the mean of each curve's repeats with their standard deviation as error bars, over a logarithmic axis.

    `names` are the ticks of that axis: what to write at which value.
    """
    with figure_of(5.6, 3.6) as (figure, axes):
        for name, points in curves.items():
            means = [float(np.mean(repeats)) for repeats in points.values()]
            bars = [float(np.std(repeats, ddof=1)) if len(repeats) > 1 else 0.0 for repeats in points.values()]
            axes.errorbar(list(points), means, yerr=bars, label=name, marker="o", markersize=4, capsize=3)
        axes.set_xscale("log")
        axes.set_xticks(list(names), list(names.values()))
        axes.set_xticks([], minor=True)
        axes.set(xlabel=x, ylabel=y, ylim=(0, 100))
        axes.legend(frameon=False, loc="lower right")
        return drawn(figure)


def draw_panels(panels: Mapping[str, Mapping[str, Mapping[float, float]]], *, x: str) -> Drawn:
    """Draw panels side by side with logarithmic axes: the label of each y axis, its curves by name, their points.

    All panels have the same curves, so that the legend is in the first one only.
    """
    require_matplotlib()
    from matplotlib.ticker import LogLocator

    with figure_of(4.8 * len(panels), 3.6) as (figure, single):
        single.remove()
        for axes, (y, curves) in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels.items(), strict=True):
            for place, (name, points) in enumerate(curves.items()):
                style = {"marker": MARKERS[place % len(MARKERS)], "linestyle": "-" if place < COLOURS else "--"}
                axes.plot(list(points), list(points.values()), label=name, linewidth=1.3, markersize=4, **style)
            if any(curves.values()):
                axes.set(xscale="log", yscale="log")
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
                axes.set_yticks([], minor=True)
            ticks = sorted({place for points in curves.values() for place in points})
            axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
            axes.set_xticks([], minor=True)
            axes.set(xlabel=x, ylabel=y)
        figure.axes[0].legend(frameon=False, fontsize=7)
        figure.tight_layout()
        return drawn(figure)


def smoothed(points: Mapping[int, float], window: int = 10) -> dict[int, float]:
    """Replace each value by the mean of the last `window` ones; losses of single batches jump."""
    values = list(points.values())
    means = [float(np.mean(values[max(0, at + 1 - window) : at + 1])) for at in range(len(values))]
    return dict(zip(points, means, strict=True))


def thinned(points: Mapping[int, float], most: int = 500) -> dict[int, float]:
    """Keep at most `most` of the points, evenly spaced, and the last one."""
    step = -(-len(points) // most) or 1
    kept = list(points.items())
    return dict([*kept[:-1:step], *kept[-1:]])


def draw_confusion(counts: np.ndarray, names: Sequence[str]) -> Drawn:
    """Draw a confusion matrix from (K, K) counts by class and by answer, with the counts in the cells.

    A class name that the font may lack is shown by its number, from 1.
    """
    shown = [_axis_name(name, place) for place, name in enumerate(names, 1)]
    longest = max(map(len, shown), default=0)
    side = max(0, len(names) - 10) * 0.3 + 0.07 * max(0, longest - 3)
    with figure_of(4.6 + side, 4.2 + side) as (figure, axes):
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for (row, column), count in np.ndenumerate(counts):
            if count:
                colour = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=7)
        axes.set_xticks(range(len(names)), shown, rotation=90 if longest > 3 else 0)
        axes.set_yticks(range(len(names)), shown)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set_parse_math(False)  # a name may contain $
        axes.set(xlabel="predicted class", ylabel="true class")
        return drawn(figure)


def draw_pictures(rows: Sequence[Sequence[np.ndarray]]) -> Drawn:
    """Draw rows of equally many square pictures, (H, H, 3) of uint8, each enlarged by whole steps to the largest."""
    side = max(len(picture) for row in rows for picture in row)
    enlarged = [[one.repeat(side // len(one), 0).repeat(side // len(one), 1) for one in row] for row in rows]
    canvas, _, _ = mosaic(np.array(enlarged), gap=1, fill=255)
    with figure_of(5.6, 5.6 * canvas.shape[0] / canvas.shape[1]) as (figure, axes):
        axes.imshow(canvas, interpolation="nearest")
        axes.set_axis_off()
        return drawn(figure)


def _axis_name(name: str, place: int) -> str:
    if not (name.isascii() and name.isprintable() and name.strip()):
        return f"#{place}"
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."
