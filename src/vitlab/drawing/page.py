"""Self-contained HTML pages: they open without a network, and untrusted names in them stay text."""

import base64
import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from PIL import Image

from vitlab.errors import printable

WIDEST = 256  # pixels of a picture in the page

STYLE = """
body { margin: 0 auto; max-width: 70rem; padding: 1.5rem; color: #1c2330; background: #fff;
       font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0 0 .2rem; font-size: 1.7rem; overflow-wrap: anywhere; }
section { padding-top: 1.5rem; break-inside: avoid; }
h2 { margin: 0 0 .3rem; padding-top: .8rem; border-top: 1px solid #dde2ea; font-size: 1.25rem; }
p { max-width: 48rem; margin: .3rem 0 .8rem; color: #48536a; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(30rem, 100%), 1fr)); gap: 1rem; }
.photos { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: 1rem; }
.photo { display: block; width: 100%; border-radius: .25rem; }
.table { overflow-x: auto; }
figure { margin: 0; }
.card { padding: .6rem; border: 1px solid #dde2ea; border-radius: .5rem; background: #f8f9fb; }
.views { display: flex; gap: .4rem; }
.views div { flex: 1; min-width: 0; text-align: center; font-size: .8rem; color: #48536a; }
.views img { display: block; width: 100%; border-radius: .25rem; }
figcaption { margin-top: .2rem; font-size: .9rem; overflow-wrap: anywhere; }
.note { color: #48536a; font-size: .8rem; }
.narrow { columns: 2 30rem; column-gap: 1.5rem; }
.narrow .plot { width: 100%; }
.plots { display: flex; flex-wrap: wrap; gap: 0 1.5rem; align-items: flex-start; }
.plot { display: block; max-width: 100%; height: auto; margin-bottom: 1rem; }
.bad { color: #a4262c; }
table { border-collapse: collapse; margin-bottom: 1rem; }
.wide .table { font-size: .9rem; }
th, td { padding: .3rem 1rem .3rem 0; border-bottom: 1px solid #dde2ea; text-align: left; vertical-align: top; }
"""


@dataclass(frozen=True)
class Card:
    """One picture, (H, W, 3) of uint8, with its caption; `answer` may be empty.

    With `attention` and `seen`, its attention map and the product of the two are shown beside it.
    """

    name: str
    pixels: np.ndarray
    answer: str
    notes: Sequence[str] = ()
    attention: np.ndarray | None = None
    seen: np.ndarray | None = None


@dataclass(frozen=True)
class Section:
    """A heading with text, a table, pictures and figures; `figures` are pairs of alternative text and SVG."""

    title: str
    text: str
    figures: Sequence[tuple[str, bytes]] = ()
    cards: Sequence[Card] = ()
    table: Sequence[Sequence[str]] = ()  # the first row is the heading
    wide: bool = False  # takes the whole width of the page


def page(title: str, about: str, sections: Sequence[Section], bad: Sequence[str] = ()) -> str:
    """The whole page as HTML; all text may be untrusted."""
    body = [f"<h1>{safe(title)}</h1>", f"<p>{safe(about)}</p>"]
    if bad:
        body.append("<h2>Pictures that could not be read</h2><ul>")
        body += [f'<li class="bad">{safe(line)}</li>' for line in bad]
        body.append("</ul>")
    for is_wide, together in itertools.groupby(sections, key=lambda section: section.wide):
        body += [f'<div class="{"wide" if is_wide else "narrow"}">', *map(_section, together), "</div>"]
    return "\n".join([_head(title), *body, "</body></html>", ""])


def _head(title: str) -> str:
    # A second line of defence: the policy forbids scripts and every external address.
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{safe(title)}</title><style>{STYLE}</style></head><body>"
    )


def _card(number: int, card: Card) -> str:
    shown = f'<img class="photo" alt="picture {number}" src="{_photo(card.pixels)}">'
    if card.attention is not None and card.seen is not None:
        views = (
            (f"picture {number}", card.pixels, "picture"),
            (f"attention rollout of picture {number}", card.attention, "rollout"),
            (f"picture {number} times its rollout", card.seen, "picture × rollout"),
        )
        parts = (f'<div><img alt="{alt}" src="{_photo(pixels)}">{under}</div>' for alt, pixels, under in views)
        shown = f'<div class="views">{"".join(parts)}</div>'
    answer = f"<br>{safe(card.answer)}" if card.answer else ""
    notes = "".join(f'<div class="note">{safe(note)}</div>' for note in card.notes)
    caption = f"<figcaption><b>{number}</b> {safe(card.name)}{answer}{notes}</figcaption>"
    return f'<figure class="card">{shown}{caption}</figure>'


def _section(section: Section) -> str:
    parts = [f"<h2>{safe(section.title)}</h2><p>{safe(section.text)}</p>"]
    if section.table:
        parts += ['<div class="table">', html_table(section.table), "</div>"]
    if section.figures:
        plots = (f'<img class="plot" alt="{safe(alt)}" src="{_data("svg+xml", svg)}">' for alt, svg in section.figures)
        parts += ['<div class="plots">', *plots, "</div>"]
    if section.cards:
        kind = "photos" if section.cards[0].attention is None else "cards"
        parts += [f'<div class="{kind}">', *(_card(n, card) for n, card in enumerate(section.cards, 1)), "</div>"]
    return "\n".join(["<section>", *parts, "</section>"])


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """A table as HTML; the first row is the heading, and every cell is escaped."""
    kinds = ("th", *["td"] * (len(rows) - 1))
    lines = (
        f"<tr>{''.join(f'<{kind}>{safe(cell)}</{kind}>' for cell in row)}</tr>"
        for kind, row in zip(kinds, rows, strict=True)
    )
    return "\n".join(["<table>", *lines, "</table>"])


def _photo(pixels: np.ndarray) -> str:
    """(H, W, 3) of uint8 as a small JPEG in a data URL; tiny inputs are enlarged."""
    image = Image.fromarray(pixels)
    scale = WIDEST / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    file = io.BytesIO()
    kernel = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC
    image.resize(size, kernel).save(file, "JPEG", quality=88, subsampling=0)
    return _data("jpeg", file.getvalue())


def _data(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def safe(text: str) -> str:
    """Escape text for HTML; control characters, direction marks and broken bytes become escapes."""
    return escape(printable(text))
