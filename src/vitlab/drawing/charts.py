"""Numbers of runs as charts."""

from collections.abc import Mapping, Sequence

import numpy as np

from vitlab.drawing.canvas import Drawn, drawn, figure_of

FEW = 5  # points of a curve that are marked
LONGEST = 18  # characters of a class name at an axis


def draw_curves(curves: Mapping[str, Mapping[int, float]], *, x: str, y: str) -> Drawn:
    """A line for every curve, named in the legend; `x` and `y` label the axes."""
    with figure_of(5.6, 3.6) as (figure, axes):
        for name, points in curves.items():
            marker = "o" if len(points) < FEW else None  # else a single point would not be seen
            axes.plot(list(points), list(points.values()), label=name, linewidth=1.3, marker=marker, markersize=4)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.legend(frameon=False)
        return drawn(figure)


def smoothed(points: Mapping[int, float], window: int = 10) -> dict[int, float]:
    """Each value as the mean of the last ones; losses of single batches jump."""
    values = list(points.values())
    means = [float(np.mean(values[max(0, at + 1 - window) : at + 1])) for at in range(len(values))]
    return dict(zip(points, means, strict=True))


def thinned(points: Mapping[int, float], most: int = 500) -> dict[int, float]:
    """At most so many of the points, evenly spaced, with the last one."""
    step = -(-len(points) // most) or 1
    kept = list(points.items())
    return dict([*kept[:-1:step], *kept[-1:]])


def draw_confusion(counts: np.ndarray, names: Sequence[str]) -> Drawn:
    """(K, K) samples by class and by answer -> a square for each pair; the numbers stand in it.

    Names stand at the axes as they are; one that a font may lack is shown by its place, from 1.
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
            label.set_parse_math(False)  # a name may hold $
        axes.set_xlabel("answer")
        axes.set_ylabel("truth")
        return drawn(figure)


def _axis_name(name: str, place: int) -> str:
    if not (name.isascii() and name.isprintable() and name.strip()):
        return f"#{place}"
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."
