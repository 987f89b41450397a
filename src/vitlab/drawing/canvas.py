"""A figure with labelled axes as SVG and PNG; the same numbers make the same bytes, in every process."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Drawn(NamedTuple):
    """One figure, twice."""

    svg: bytes
    png: bytes


def require_matplotlib() -> None:
    """Raise one line that names the extra, before any time is spent on what could not be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
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


def drawn(figure: "Figure") -> Drawn:
    """Both files, without date and version."""
    svg, png = io.BytesIO(), io.BytesIO()
    close: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.08}
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": "vitlab"}, **close)
    figure.savefig(png, format="png", dpi=PIXELS_PER_INCH, metadata={"Software": None}, **close)
    return Drawn(svg.getvalue(), png.getvalue())
