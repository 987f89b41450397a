"""The page of near-duplicates: each test image beside the training image that is left out."""

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from vitlab.data.images.refusals import BadImage
from vitlab.data.source import Source, decode
from vitlab.drawing.page import Card, Section, page
from vitlab.runs.dedup.pair import Pair

SHOWN = 500  # pairs
CELL = 128  # pixels


def pairs_page(train: str, pairs: Sequence[Pair], sources: Mapping[str, Source], about: str, bad: Sequence[str]) -> str:
    """The page as HTML; doubtful pairs come first, since those are worth a look."""
    order = sorted(pairs, key=lambda pair: (pair.same, pair.correlation))
    cards = [card for pair in order[:SHOWN] if (card := _card(pair, sources[train], sources[pair.test_set]))]
    rest = f" The first {len(cards):,} of {len(pairs):,} are shown." if len(cards) < len(pairs) else ""
    text = f"Left: the test image. Right: the training image that is left out. The least alike come first.{rest}"
    section = Section("Pairs", text if pairs else "No training image is a near-duplicate.", cards=cards, wide=True)
    return page("Near-duplicates of test images", about.replace("\n", "; "), [section], bad)


def _card(pair: Pair, train: Source, test: Source) -> Card | None:
    """Both pictures side by side; None if one cannot be read any more."""
    try:
        pictures = [_cell(test, pair.test_number), _cell(train, pair.train_number)]
    except BadImage:
        return None
    gap = np.full((CELL, 4, 3), 255, np.uint8)
    names = (f"test: {_labelled(test, pair.test_number)}", f"training: {_labelled(train, pair.train_number)}")
    return Card(pair.described(), np.concatenate([pictures[0], gap, pictures[1]], axis=1), "", names)


def _cell(source: Source, number: int) -> np.ndarray:
    """(CELL, CELL, 3): the whole picture on grey, with its own shape."""
    image = decode(source.item(number), source.max_pixels).image
    scale = CELL / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    cell = Image.new("RGB", (CELL, CELL), (235, 235, 235))
    cell.paste(image.resize(size, Image.Resampling.BICUBIC), ((CELL - size[0]) // 2, (CELL - size[1]) // 2))
    return np.asarray(cell)


def _labelled(source: Source, number: int) -> str:
    names = ", ".join(source.class_names[label] for label in source.label(number))
    return f"{source.id(number)}{f' ({names})' if names else ''}"
