"""Draw the patches that one patch attends to in every pattern, and the whole mask below: `patterns.png`.

python docs/figures/draw_patterns.py
"""

from pathlib import Path

from matplotlib.figure import Figure

from vitlab.models.sparse import allowed, layout_of
from vitlab.spec.patterns import parse_pattern

PATTERNS = ("window:7", "neighbourhood:7", "strided", "fixed:summary=2", "bigbird:block=7")
GRID, QUERY = (14, 14), (5, 8)


def main() -> None:
    figure = Figure(figsize=(2.1 * len(PATTERNS), 4.6), layout="constrained")
    panels = figure.subplots(2, len(PATTERNS))
    for attention, (seen, whole) in zip(PATTERNS, panels.T, strict=True):
        layout = layout_of(parse_pattern(attention), 0, GRID, prefix=0)
        assert layout is not None
        mask = allowed(layout)  # (N, N)
        own = mask[QUERY[0] * GRID[1] + QUERY[1]].unflatten(0, GRID)
        seen.imshow(own, cmap="Blues", vmin=0, vmax=1.6)
        seen.plot(QUERY[1], QUERY[0], "s", color="tab:red", markersize=5)
        seen.set_title(attention, fontsize=8)
        whole.imshow(mask, cmap="Blues", vmin=0, vmax=1.6, interpolation="nearest")
        for axes in (seen, whole):
            axes.set_xticks([])
            axes.set_yticks([])
    panels[0, 0].set_ylabel("patches that the red one\nattends to, of 14 x 14", fontsize=8)
    panels[1, 0].set_ylabel("196 patches (rows) and\nwhat they attend to", fontsize=8)
    figure.savefig(Path(__file__).parent / "patterns.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
