"""Numbers of runs as charts."""

from collections.abc import Mapping, Sequence

import numpy as np

from vitlab.drawing.canvas import Drawn, drawn, figure_of


def draw_curves(curves: Mapping[str, Mapping[int, float]], *, x: str, y: str) -> Drawn:
    """A line for every curve, named in the legend; `x` and `y` label the axes."""
    with figure_of(5.6, 3.6) as (figure, axes):
        for name, points in curves.items():
            axes.plot(list(points), list(points.values()), label=name, linewidth=1.3)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.legend(frameon=False)
        return drawn(figure)


def smoothed(points: Mapping[int, float], window: int = 10) -> dict[int, float]:
    """Each value as the mean of the last ones; losses of single batches jump."""
    values = list(points.values())
    means = [float(np.mean(values[max(0, at + 1 - window) : at + 1])) for at in range(len(values))]
    return dict(zip(points, means, strict=True))


def draw_confusion(counts: np.ndarray, names: Sequence[str]) -> Drawn:
    """(K, K) samples by class and by answer -> a square for each pair; the numbers stand in it."""
    with figure_of(4.6, 4.2) as (figure, axes):
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for (row, column), count in np.ndenumerate(counts):
            if count:
                colour = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=7)
        axes.set_xticks(range(len(names)), names)
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel("answer")
        axes.set_ylabel("truth")
        return drawn(figure)
