"""Figures with labelled axes as SVG and PNG; the same numbers give the same bytes in every process."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from vitlab.require import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SETTINGS = {
    "svg.hashsalt": "vitlab",  # identifiers inside an SVG are random without it
    "svg.fonttype": "path",  # renders the same where the font is missing
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
PIXELS_PER_INCH = 150  # of the PNG
SMALLEST = 96  # pixels along the longer side of a picture on a contact sheet; smaller ones are enlarged
GAP = 4  # pixels between them
ATTENTION = "viridis"  # colour map of attention: perceptually uniform, also near 0 and in greyscale


class Drawn(NamedTuple):
    """A figure as SVG and as PNG; a notebook displays it."""

    svg: bytes
    png: bytes

    def save(self, path: str | Path) -> None:
        """Write the figure to a file whose name ends in .svg or .png."""
        kinds = {".svg": self.svg, ".png": self.png}
        suffix = Path(path).suffix.lower()
        require(suffix in kinds, f"{path}: the name of a figure ends in .svg or .png")
        Path(path).write_bytes(kinds[suffix])

    def __repr__(self) -> str:
        return f"Drawn(svg={len(self.svg):,} bytes, png={len(self.png):,} bytes)"

    def _repr_svg_(self) -> str:
        return self.svg.decode()

    def _repr_png_(self) -> bytes:
        return self.png


def require_matplotlib(what: str = "figures") -> None:
    """Raise an error that names the extra to install, unless matplotlib is there."""
    try:
        import matplotlib.figure  # noqa: F401 - only to see whether it is installed
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{what} need matplotlib: pip install 'vitlab[plot]'") from None


@contextmanager
def figure_of(width: float, height: float) -> Iterator[tuple["Figure", "Axes"]]:
    """Yield an empty figure of this size in inches, independent of the user's matplotlib settings."""
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        figure = Figure(figsize=(width, height))
        yield figure, figure.subplots()


def coloured(values: np.ndarray) -> np.ndarray:
    """(H, W) of 0..1 -> (H, W, 3) of uint8, in the colour map of attention."""
    require_matplotlib()
    import matplotlib

    return matplotlib.colormaps[ATTENTION](values, bytes=True)[..., :3]


def add_scale(figure: "Figure", axes: "Axes", label: str) -> None:
    """Add a colour bar from 0 to 1 to the right of `axes`, as high as they are."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    place = axes.inset_axes((1.015, 0, 0.02, 1))
    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), ATTENTION), cax=place, label=label)
    bar.outline.set_visible(False)


def mosaic(tiles: np.ndarray, *, gap: int, fill: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(R, C, h, w, ...) -> one sheet with gaps, and the centres of its columns and rows."""
    down, across, height, width = tiles.shape[:4]
    sheet = np.full((down * (height + gap) - gap, across * (width + gap) - gap, *tiles.shape[4:]), fill, tiles.dtype)
    for row, column in np.ndindex(down, across):
        top, left = row * (height + gap), column * (width + gap)
        sheet[top : top + height, left : left + width] = tiles[row, column]
    x = np.arange(across) * (width + gap) + (width - 1) / 2
    y = np.arange(down) * (height + gap) + (height - 1) / 2
    return sheet, x, y


def contact_sheet(rows: Sequence[Sequence[np.ndarray]]) -> bytes:
    """Arrange rows of (H, W, 3) pictures of uint8, all of the same size, on white; returns a PNG file."""
    tiles = np.stack([np.stack(row) for row in rows])
    scale = max(-(-SMALLEST // max(tiles.shape[2:4])), 1)  # a whole number, so that pixels stay square
    sheet, _, _ = mosaic(tiles.repeat(scale, axis=2).repeat(scale, axis=3), gap=GAP, fill=255)
    file = io.BytesIO()
    Image.fromarray(np.pad(sheet, ((GAP, GAP), (GAP, GAP), (0, 0)), constant_values=255)).save(file, "PNG")
    return file.getvalue()


def drawn(figure: "Figure") -> Drawn:
    """Render a figure as SVG and PNG, without date and version."""
    svg, png = io.BytesIO(), io.BytesIO()
    close: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.08}
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": "vitlab"}, **close)
    figure.savefig(png, format="png", dpi=PIXELS_PER_INCH, metadata={"Software": None}, **close)
    return Drawn(svg.getvalue(), png.getvalue())
