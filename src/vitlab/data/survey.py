"""A survey of a whole data set: what it contains, what is wrong with it, and what training would see of it."""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from vitlab.data.images.refusals import BadImage
from vitlab.data.loading.accounting import Account
from vitlab.data.loading.workers import RangeReader, read_ranges
from vitlab.data.source import Sample, Source, decode
from vitlab.data.transforms.augmentation import draws, training_pixels
from vitlab.require import require
from vitlab.spec.pixels import Augmentation

CHUNK = 64  # samples per report of a worker
CELL = 128  # pixels of a picture on the sheet
MARGIN = 6
LOOKED_AT = 9  # pictures, evenly spaced, that decide the typical size
TRIED = 90  # pictures at most, if some are bad


@dataclass(frozen=True)
class Finding:
    """The facts about one readable sample."""

    width: int
    height: int
    format: str
    labels: tuple[int, ...]
    notes: tuple[str, ...]
    sums: tuple[int, int, int]  # of the pixels' red, green and blue
    id: str
    content: bytes  # hash of its file or pixels


@dataclass
class Survey:
    """The facts about all samples of a source."""

    account: Account
    class_counts: Counter[int] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)  # (width, height)
    sums: list[int] = field(default_factory=lambda: [0, 0, 0])
    copies: int = 0  # samples with the content of an earlier one and its labels
    conflicts: list[tuple[str, str]] = field(default_factory=list)  # ids of the same content with other labels
    _first: dict[bytes, tuple[str, tuple[int, ...]]] = field(default_factory=dict)  # by content

    def add(self, finding: Finding) -> None:
        """Count one readable sample."""
        self.class_counts.update(finding.labels)
        self.formats[finding.format] += 1
        self.notes.update(finding.notes)
        self.sizes[finding.width, finding.height] += 1
        self.sums = [total + own for total, own in zip(self.sums, finding.sums, strict=True)]
        name, labels = self._first.setdefault(finding.content, (finding.id, finding.labels))
        if labels != finding.labels:
            self.conflicts.append((name, finding.id))
        elif name != finding.id:
            self.copies += 1

    def to_json(self, names: tuple[str, ...]) -> dict[str, object]:
        """Return all counts as JSON values."""
        return {
            "classes": {name: self.class_counts[label] for label, name in enumerate(names)},
            "formats": dict(self.formats),
            "notes": dict(self.notes),
            "sizes": {f"{width}x{height}": count for (width, height), count in self.sizes.most_common()},
            "channel_means": self.channel_means(),
            "copies": self.copies,
            "conflicts": self.conflicts,
        }

    def channel_means(self) -> list[float]:
        """Return mean red, green and blue over all pixels, 0 to 1."""
        pixels = sum(width * height * count for (width, height), count in self.sizes.items())
        return [total / (255 * pixels) for total in self.sums] if pixels else []


def empty_survey(source: Source) -> Survey:
    """Return a survey with no samples yet, only what the source found and left out."""
    excluded: Counter[str] = Counter(source.excluded)
    return Survey(Account(len(source) + excluded.total(), excluded))


def survey(source: Source, result: Survey, *, workers: int = 0) -> Iterator[int]:
    """Read every sample and fill in `result`; yields the number of samples done as it goes."""
    chunks = (range(at, min(at + CHUNK, len(source))) for at in range(0, len(source), CHUNK))
    done = 0
    for findings, bad in read_ranges(_Inspector(source, workers), chunks, workers):
        for finding in findings:
            result.add(finding)
        result.account.add([0] * len(findings), bad, max_bad=1.0)
        done += len(findings) + len(bad)
        yield done


class _Inspector(RangeReader):
    """Keeps only the facts about a sample."""

    def use(self, sample: Sample, epoch: int, position: int) -> Finding:
        decoded = decode(sample, self.source.max_pixels)
        red, green, blue = np.asarray(decoded.image).sum(axis=(0, 1), dtype=np.int64).tolist()
        notes = tuple(map(str, decoded.notes))
        sums, content = (red, green, blue), content_hash(sample)[:16]  # all are kept: half is enough
        return Finding(*decoded.image.size, decoded.format, sample.labels, notes, sums, sample.id, content)


def content_hash(sample: Sample) -> bytes:
    """Return the SHA-256 of a sample's file, or of its pixels."""
    data = sample.data if isinstance(sample.data, bytes) else np.ascontiguousarray(sample.data).tobytes()
    return hashlib.sha256(data).digest()


def typical_size(source: Source) -> tuple[int, int]:
    """Return height and width of the picture of median area among nine; raises ValueError if none can be read."""
    found: list[tuple[int, int]] = []
    samples, tried = len(source), min(len(source), TRIED)
    for place in range(tried):
        with contextlib.suppress(BadImage):
            # All ninths of the set come before their neighbours.
            row, column = divmod(place, LOOKED_AT)
            found.append(_size(source, min(column * samples // LOOKED_AT + row, samples - 1)))
        if len(found) == LOOKED_AT:
            break
    require(bool(found), f"none of {tried} pictures could be read; vitlab data check says why")
    return sorted(found, key=lambda size: size[0] * size[1])[len(found) // 2]


def _size(source: Source, number: int) -> tuple[int, int]:
    sample = source.item(number)
    if isinstance(sample.data, Tensor):
        return sample.data.shape[1], sample.data.shape[2]
    image = decode(sample, source.max_pixels).image
    return image.height, image.width


class Duplicates(NamedTuple):
    """Samples with the same content in two sources, such as training images in a test set."""

    pairs: tuple[tuple[str, str], ...] = ()  # ids in the first and in the second
    not_compared: tuple[BadImage, ...] = ()  # samples of the first that cannot be read


def exact_duplicates(first: Source, second: Source) -> Duplicates:
    """Find the samples of the second source that have the content of one of the first."""
    known: dict[bytes, str] = {}
    bad = list[BadImage]()
    for digest, name in _hashes(first, bad):
        known.setdefault(digest, name)
    return Duplicates(
        tuple((known[digest], name) for digest, name in _hashes(second, []) if digest in known), tuple(bad)
    )


def _hashes(source: Source, bad: list[BadImage]) -> Iterator[tuple[bytes, str]]:
    """The content and the id of every sample that can be read; why others cannot is added to `bad`."""
    for number in range(len(source)):
        try:
            yield content_hash(source.item(number)), source.id(number)
        except BadImage as error:
            bad.append(error)


def contact_sheet(
    source: Source, size: tuple[int, int], how: Augmentation, *, samples: int = 16, versions: int = 3, seed: int = 0
) -> Image.Image:
    """Draw evenly spaced samples, one per row: the original, then what training would see in the first epochs."""
    shown = min(samples, len(source))
    numbers = [place * len(source) // shown for place in range(shown)]
    rows = [row for number in numbers if (row := _row(source, number, size, how, versions, seed))]
    columns = 2 if len(rows) > 4 else 1
    row_width, row_height = (1 + versions) * (CELL + MARGIN) + 3 * MARGIN, CELL + 20
    down = -(-len(rows) // columns)
    sheet = Image.new("RGB", (columns * row_width, max(down, 1) * row_height), "white")
    for place, (title, pictures) in enumerate(rows):
        left, top = place // max(down, 1) * row_width, place % max(down, 1) * row_height
        ImageDraw.Draw(sheet).text((left + MARGIN, top + 4), title, fill="black")
        for number, picture in enumerate(pictures):
            gap = 2 * MARGIN if number else 0
            sheet.paste(picture, (left + MARGIN + number * (CELL + MARGIN) + gap, top + 18))
    return sheet


def _row(
    source: Source, number: int, size: tuple[int, int], how: Augmentation, versions: int, seed: int
) -> tuple[str, list[Image.Image]] | None:
    """The title and the pictures of one sample; None if it cannot be read."""
    try:
        sample = source.item(number)
        image = decode(sample, source.max_pixels).image
    except BadImage:
        return None
    pictures = [_cell(image)]
    for epoch in range(versions):
        pixels = training_pixels(image, size, how, draws(seed, epoch, sample.id))
        pictures.append(_cell(Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())))
    names = ", ".join(source.class_names[label] for label in sample.labels) or "no label"
    title = f"{names}   {sample.id}".encode("ascii", "replace").decode()
    return "".join(c if c.isprintable() else "?" for c in title)[:90], pictures


def _cell(image: Image.Image) -> Image.Image:
    """Fit a picture into a square of CELL pixels, keeping its shape; small ones are enlarged."""
    scale = CELL / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    kind = Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BILINEAR
    cell = Image.new("RGB", (CELL, CELL), (235, 235, 235))
    cell.paste(image.resize(size, kind), ((CELL - size[0]) // 2, (CELL - size[1]) // 2))
    return cell
