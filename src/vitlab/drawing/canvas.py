"""A figure with labelled axes as SVG and PNG; the same numbers make the same bytes, in every process."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SETTINGS = {
    "svg.hashsalt": "vitlab",  # identifiers inside an SVG are random without it
    "svg.fonttype": "path",  # looks the same where the font is missing
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
PIXELS_PER_INCH = 150  # of the PNG
ATTENTION = "viridis"  # colours of maps of attention: equal steps look equal, also near 0 and also in grey


class Drawn(NamedTuple):
    """One figure, twice."""

    svg: bytes
    png: bytes


def require_matplotlib() -> None:
    """Raise one line that names the extra, before any time is spent on what could not be drawn."""
    try:
        import matplotlib.figure  # noqa: F401 - only whether it is there
    except ModuleNotFoundError:
        raise ModuleNotFoundError("figures need matplotlib: pip install 'vitlab[plot]'") from None


@contextmanager
def figure_of(width: float, height: float) -> Iterator[tuple["Figure", "Axes"]]:
    """An empty figure of so many inches, whatever the settings of this user are."""
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        figure = Figure(figsize=(width, height))
        yield figure, figure.subplots()


def coloured(values: np.ndarray) -> np.ndarray:
    """(H, W) of 0..1 -> (H, W, 3) of uint8, in the colours of maps of attention."""
    require_matplotlib()
    import matplotlib

    return matplotlib.colormaps[ATTENTION](values, bytes=True)[..., :3]


def add_scale(figure: "Figure", axes: "Axes", label: str) -> None:
    """A bar at the right of `axes`, as high as they are, that says what the colours of attention mean, from 0 to 1."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    place = axes.inset_axes((1.015, 0, 0.02, 1))
    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), ATTENTION), cax=place, label=label)
    bar.outline.set_visible(False)


def drawn(figure: "Figure") -> Drawn:
    """Both files, without date and version."""
    svg, png = io.BytesIO(), io.BytesIO()
    close: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.08}
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": "vitlab"}, **close)
    figure.savefig(png, format="png", dpi=PIXELS_PER_INCH, metadata={"Software": None}, **close)
    return Drawn(svg.getvalue(), png.getvalue())
