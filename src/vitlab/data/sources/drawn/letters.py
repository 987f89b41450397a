"""Printed letters as a labelled image set, drawn from the outlines of the fonts that come with matplotlib.

A class is a letter; font, affine map, stroke width, softness and two shades of grey vary from image to image. Letters
that look like digits (`LOOK_ALIKES`) are left out, so that a model trained on letters has not seen any digit. A drawing
looks up distances to the glyph's outline in a table: moving the outline in or out changes the stroke width.
"""

import hashlib
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vitlab.data.sources.drawn.procedural import Draws, ProceduralSource, Stream, blended
from vitlab.drawing.canvas import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.path import Path as Outline

FONTS = (  # all of matplotlib's files with the Latin alphabet
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmb10", "cmmi10", "cmr10", "cmss10", "cmti10", "cmtt10"),
)
# Every letter fills the same box, so that a small c looks like a capital C; of such pairs the capital is drawn.
SAME_AS_CAPITAL = "ckpuvwx"
LOOK_ALIKES = {"0": "ODQo", "1": "Iil", "2": "Zz", "5": "Ss", "6": "Gb", "8": "B", "9": "gq"}  # of these digits
LEFT_OUT = SAME_AS_CAPITAL + "".join(LOOK_ALIKES.values())
LETTERS = (ascii_uppercase + ascii_lowercase).translate(str.maketrans("", "", LEFT_OUT))  # the classes

UNITS = 64  # the outlines are read at 100 pixels per em in FreeType's units of 1/64 pixel, without hinting
STEPS = 4  # straight pieces of a curve
CELLS = 64  # distances along a side of a glyph's table
REACH = 1.5  # the table covers -REACH to REACH; the longer side of a glyph's box goes from -1 to 1


@dataclass(kw_only=True, repr=False, unsafe_hash=True)
class LetterSource(ProceduralSource):
    """Light letters on a dark ground, grey as RGB; the first `classes` of `LETTERS`."""

    most_classes: ClassVar[int] = len(LETTERS)
    known_classes: ClassVar[str] = f", the letters {LETTERS}"

    classes: int = len(LETTERS)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_matplotlib("letters")

    def class_name(self, label: int) -> str:
        return LETTERS[label]

    @property
    def identity(self) -> str:
        """As for every drawn source, plus a hash of the outlines: versions of matplotlib may differ in their fonts."""
        return f"{super().identity} {_outlines_hash()}"

    def pixels(self, index: int) -> np.ndarray:
        draws = Draws(self.seed, Stream.LETTER_IMAGE, index)
        font = FONTS[draws.below(len(FONTS))]
        distances = _distances(font, LETTERS[index % self.classes])
        radius, soft = self.size / 2, max(1.0, self.size * draws.uniform(0.05, 0.2, 1)[0])  # in pixels
        (width,) = draws.uniform(-0.02, 0.12, 1)  # added on each side of a stroke, in units of the glyph's box
        field = _looked_up(distances, *_places(self.size, draws)) - np.float32(width)
        cover = np.rint(np.clip(0.5 - field * np.float32(radius / soft), 0, 1) * 256).astype(np.int32)
        shades = draws.bytes(2).astype(np.int32)
        grey = blended(shades[:1] // 8, 255 - shades[1:] // 4, cover)  # from 0..31 to 192..255
        return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)


def _places(size: int, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
    """Where in the glyph each pixel is, x to the right and y down: a random affine map, as two arrays (size, size)."""
    cosine, sine = draws.turn(0.15)  # up to 17 degrees
    wide, high = draws.uniform(0.6, 0.95, 2)
    (slant,) = draws.uniform(-0.3, 0.3, 1)
    right, down = draws.uniform(-0.1, 0.1, 2)
    way = (np.arange(size, dtype=np.float32) + np.float32(0.5)) * np.float32(2 / size) - np.float32(1)  # -1..1
    x, y = (way - np.float32(right))[None, :], (way - np.float32(down))[:, None]
    u, v = x * np.float32(cosine) + y * np.float32(sine), y * np.float32(cosine) - x * np.float32(sine)
    return (u + v * np.float32(slant)) / np.float32(wide), v / np.float32(high)


def _looked_up(table: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The table's distances at these places, linearly between its cells; outside of it, those at its border."""
    scale = np.float32((CELLS - 1) / (2 * REACH))
    column, row = (np.clip((one + np.float32(REACH)) * scale, 0, np.float32(CELLS - 1.001)) for one in (x, y))
    left, top = column.astype(np.intp), row.astype(np.intp)
    across, along = column - left.astype(np.float32), row - top.astype(np.float32)
    corner, flat = top * CELLS + left, table.ravel()
    upper, lower = (flat[at] + (flat[at + 1] - flat[at]) * across for at in (corner, corner + CELLS))
    return upper + (lower - upper) * along


@lru_cache(maxsize=len(FONTS) * len(LETTERS))
def _distances(font: str, letter: str) -> np.ndarray:
    """(CELLS, CELLS) of float32: how far each cell is from the glyph's outline, negative inside."""
    lines = _outlines(font)[letter]  # (n, 2 ends, 2)
    low, high = lines.min((0, 1)), lines.max((0, 1))
    unit = np.float32(max((high - low).tolist()) / 2)
    ends = (2 * lines - (low + high)).astype(np.float32) / (2 * unit)
    (x0, y0), (x1, y1) = ends[:, 0].T[..., None], ends[:, 1].T[..., None]  # (n, 1) each
    way = np.arange(CELLS, dtype=np.float32) * np.float32(2 * REACH / (CELLS - 1)) - np.float32(REACH)
    px, py = np.tile(way, CELLS), np.repeat(-way, CELLS)  # rows go down, outlines are drawn upwards
    dx, dy = x1 - x0, y1 - y0
    rx, ry = px - x0, py - y0  # (n, CELLS**2)
    along = np.clip((rx * dx + ry * dy) / (dx * dx + dy * dy), 0, 1)
    ox, oy = rx - along * dx, ry - along * dy
    nearest = np.sqrt((ox * ox + oy * oy).min(0))
    # A place is inside where the outline winds around it: count the lines it has on its right, up minus down.
    is_left = dx * ry - dy * rx > 0
    winding = ((y0 <= py) & (py < y1) & is_left).sum(0) - ((y1 <= py) & (py < y0) & ~is_left).sum(0)
    return np.where(winding != 0, -nearest, nearest).reshape(CELLS, CELLS)


@cache
def _outlines_hash() -> str:
    digest = hashlib.sha256()
    for font in FONTS:
        for letter, lines in _outlines(font).items():
            digest.update(letter.encode() + lines.astype("<i8").tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=len(FONTS))
def _outlines(font: str) -> dict[str, np.ndarray]:
    """The outline of every letter as straight lines: (n, 2 ends, 2) of whole numbers, y upwards."""
    import matplotlib
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
        return {c: _lines(TextPath((0, 0), c, size=100, prop=FontProperties(fname=file))) for c in LETTERS}


def _lines(outline: "Outline") -> np.ndarray:
    """(n, 2 ends, 2) of int64 in units of 1/64 pixel: TrueType outlines are lines and quadratic curves."""
    found: list[list[np.ndarray]] = []
    start = here = np.zeros(2)
    for points, code in outline.iter_segments(simplify=False):
        if code == outline.MOVETO:
            start = here = points
            continue
        controls = np.array([here, *(points.reshape(-1, 2) if code != outline.CLOSEPOLY else [start])])
        assert len(controls) <= 3, "a cubic curve in a TrueType font"
        pieces = STEPS if len(controls) == 3 else 1
        for step in range(1, pieces + 1):
            end = _on_curve(controls, step / pieces)
            found.append([here, end])
            here = end
    lines = np.rint(np.array(found) * UNITS).astype(np.int64)
    return lines[(lines[:, 0] != lines[:, 1]).any(1)]


def _on_curve(controls: np.ndarray, share: float) -> np.ndarray:
    """The place on a line of two or a quadratic curve of three control points, a share of the way along."""
    while len(controls) > 1:
        controls = controls[:-1] * (1 - share) + controls[1:] * share
    return controls[0]
