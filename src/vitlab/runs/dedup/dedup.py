"""Near-duplicates of test images in training data: `vitlab.dedup`, `vitlab data dedup`."""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np
from rich.console import Console

from vitlab.data.dedup.exclusion import SUMMARY, Entry, Remaining, write_list
from vitlab.data.dedup.hash_files import HashFolder, identity
from vitlab.data.dedup.matching import MAX_DISTANCE, MIN_CORRELATION, Criteria, TestPictures
from vitlab.data.dedup.search import BITS
from vitlab.data.loading.accounting import Quarantined
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import EXCLUDE, data_name, resolve
from vitlab.errors import printable
from vitlab.files.store import locked, make_folder, refuse_strange, refuse_unwritable, replacing, write_json, write_text
from vitlab.files.strict_json import read_json
from vitlab.report.tables import Results, Tabular
from vitlab.require import check_arguments, require
from vitlab.runs.dedup.contact_sheet import pairs_page
from vitlab.runs.dedup.embedding import LEAST_CORRELATION, MIN_SIMILARITY, similarities
from vitlab.runs.dedup.pair import Pair
from vitlab.runs.dedup.picture_hashes import FOLDER, HashedSet, hash_pictures
from vitlab.runs.measure.inputs import DataLike, ModelLike, as_list, open_set
from vitlab.runs.progress import Images, announced, default_console

RESULT, PAIRS, LIST, PAGE = SUMMARY, "pairs.jsonl", "exclude.jsonl", "report.html"

OTHER = "every image would be left out, so give other test data"


@dataclass(frozen=True)
class Deduplicated(Tabular):
    """The near-duplicates of test images among training images, and the files in `path` that list them.

    `pairs` has up to ten test images for each training image, the best match first; `removed` has the best pair of
    each. `bad` has the images of each data set that could not be read, and so could not be compared.
    """

    path: Path
    train: str
    tests: tuple[str, ...]
    samples: dict[str, int]  # by data set
    pairs: tuple[Pair, ...] = field(repr=False)
    bad: dict[str, tuple[Quarantined, ...]] = field(repr=False)
    spec: str = ""  # the training data without its near-duplicates; empty for data given as an object

    @property
    def removed(self) -> tuple[Pair, ...]:
        """The best pair of every training image that has a near-duplicate."""
        return tuple({pair.train_number: pair for pair in reversed(self.pairs)}.values())[::-1]

    @property
    def table(self) -> Results:
        """A row for each test set."""
        rows = []
        for name in self.tests:
            own = [pair for pair in self.pairs if pair.test_set == name]
            found, images = len({pair.train_number for pair in own}), len({pair.test_number for pair in own})
            identical = len({pair.train_number for pair in own if pair.same})
            rows.append((name, self.samples[name], images, found, identical, len(self.bad[name])))
        heading = ("test set", "images", "with near-duplicates", "training images", "identical", "unreadable")
        return Results(heading, tuple(rows))

    @property
    def remaining(self) -> int:
        """How many training images are left: neither near-duplicates nor unreadable."""
        return self.samples[self.train] - len(self.removed) - len(self.bad[self.train])

    @property
    def flag(self) -> str:
        """The flag that trains without the near-duplicates, as a shell reads it."""
        return f"--data {printable(shlex.quote(self.spec))}"

    def lines(self) -> Iterator[str]:
        """What was found about the training images: found = remaining + near-duplicates + unreadable."""
        found, removed, bad = self.samples[self.train], len(self.removed), len(self.bad[self.train])
        yield f"training images   {found:,} in {printable(self.train)}"
        yield f"near-duplicates   {removed:,} ({removed / max(found, 1):.3%})"
        yield f"unreadable        {bad:,}, not compared"
        yield f"remaining         {self.remaining:,}"
        if removed and not self.remaining:
            yield "every readable training image is a near-duplicate, so nothing is left to train on; give other data"


def dedup(
    train: DataLike,
    tests: DataLike | Sequence[DataLike],
    out: str | Path = "dedup",
    *,
    max_distance: int = MAX_DISTANCE,
    min_correlation: float = MIN_CORRELATION,
    model: ModelLike | None = None,
    min_similarity: float = MIN_SIMILARITY,
    device: str = "auto",
    max_pixels: int | None = None,
    jobs: int | None = None,
    console: Console | None = None,
    quiet: bool = False,
) -> Deduplicated:
    """Find the training images that are near-duplicates of test images, and write the list that leaves them out.

    `train` and `tests` are what `open_data` takes. Candidates are pairs whose 64-bit perceptual hashes differ in at
    most `max_distance` bits; of those, pairs of thumbnails with a correlation of at least `min_correlation` count. With
    a `model`, candidates whose features have a cosine similarity of at least `min_similarity` count too, such as crops.
    The folder `out` gets `exclude.jsonl` (use it as `folder:photos?exclude=FILE`), `pairs.jsonl`, `report.html` with
    the pairs side by side, and the hashes, so that a stopped call continues. `jobs` processes hash pictures.
    """
    check_arguments(dedup, locals())
    require(0 <= max_distance < BITS // 2, f"max_distance= is {max_distance}; allowed are 0 to {BITS // 2 - 1} bits")
    for name, share in (("min_correlation", min_correlation), ("min_similarity", min_similarity)):
        require(0 < share <= 1, f"{name}= is {share}; allowed are numbers above 0, up to 1")
    for name, is_used in (("min_similarity", min_similarity != MIN_SIMILARITY), ("device", device != "auto")):
        require(
            model is not None or not is_used, f"{name}= is for the features of a model; give model=, or leave it out"
        )
    require(jobs is None or jobs >= 1, f"jobs= is {jobs}; at least 1 is needed")
    folder, screen = Path(out), default_console(console, quiet=quiet)
    refuse_unwritable(folder)
    refuse_strange(folder, (RESULT, FOLDER))
    make_folder(folder)
    with locked(folder):
        own, others = _opened(train, tests, folder, max_pixels, screen)
        _refuse_other(folder, own, others)
        hash_pictures([own, *others], jobs, folder, screen)
        floor = None if model is None else LEAST_CORRELATION
        found = _searched(own, others, Criteria(max_distance, min_correlation), floor, screen)
        cosines = None
        if model is not None:
            cosines = similarities(model, device, own, others, found, screen)
            counts = (found["correlation"] >= min_correlation) | (cosines >= min_similarity)
            found, cosines = found[counts], cosines[counts]
        result = _result(folder, own, others, found, cosines)
        _write(result, own, others, screen)
    return result


def _opened(
    train: DataLike, tests: DataLike | Sequence[DataLike], out: Path, max_pixels: int | None, console: Console
) -> tuple[HashedSet, list[HashedSet]]:
    """The training set and the test sets, with the test pictures numbered one set after another."""
    given = [train, *as_list(tests)]
    require(len(given) > 1, "no test data is given; name at least one test set")
    same = f"is given as the training data and as a test set; {OTHER}"
    for data in given[1:]:
        is_same = data is train or (isinstance(data, str) and data == train)
        require(not is_same, f"{printable(data_name(data))} {same}")
    sets: list[HashedSet] = []
    offset = 0
    for place, data in enumerate(given):
        with announced(console, f"opening {printable(data_name(data))} ..."):
            spec, source = open_set(data, max_pixels)
        is_whole = resolve(data).is_whole if isinstance(data, str) else not isinstance(source, Remaining)
        again = "give the whole data: the new list will have all near-duplicates, and a subset is drawn after excluding"
        require(bool(place) or is_whole, f"{spec!r} leaves images out already; {again}")
        name = spec if spec not in {one.name for one in sets} else f"{spec} ({place})"
        folder = HashFolder(out / FOLDER / (f"test-{place}" if place else "train"), len(source))
        if sets and _are_same_files(sets[0].source, source):
            raise ValueError(f"{printable(sets[0].name)} and {printable(spec)} are the same images; {OTHER}")
        sets.append(HashedSet(name, spec if isinstance(data, str) else "", source, folder, offset if place else 0))
        offset += len(source) if place else 0
    return sets[0], sets[1:]


def _are_same_files(train: Source, test: Source) -> bool:
    """Whether two sources have the same files in the same order."""
    ours, theirs = train.paths(), test.paths()
    if ours is None or theirs is None or len(train) != len(test) or len(ours) != len(theirs):
        return False
    is_same = all(ours[place] == theirs[place] for place in range(len(ours)))
    return is_same and all(train.id(number) == test.id(number) for number in range(len(train)))


def _refuse_other(folder: Path, own: HashedSet, others: list[HashedSet]) -> None:
    """Raise if the folder has the list of other data, which a training may use."""
    held = read_json(folder / RESULT) if (folder / RESULT).exists() else None
    if isinstance(held, dict):
        train, tests = held.get("train"), held.get("tests")
        is_same = train == own.name and tests == [other.name for other in others]
        words = f"the near-duplicates of {tests} in {train!r}"
        require(is_same, f"{folder} has {words:.300}; choose another folder with out=")


def _searched(
    own: HashedSet, others: list[HashedSet], criteria: Criteria, floor: float | None, console: Console
) -> np.ndarray:
    """All pairs, of the numbers of the pictures."""
    pictures = TestPictures([part for other in others for part in other.parts()], criteria)
    found = []
    with Images(console, "comparing") as display:
        display.show(0, own.folder.samples)
        for number, part in enumerate(own.parts()):
            found.append(pictures.pairs(part, floor))
            display.show(own.folder.part(number).stop, own.folder.samples)
    return np.concatenate(found)


def _result(
    folder: Path, own: HashedSet, others: list[HashedSet], found: np.ndarray, cosines: np.ndarray | None
) -> Deduplicated:
    pairs = []
    for place, row in enumerate(found):
        other = [other for other in others if other.offset <= row["test"]][-1]
        train, test = int(row["train"]), int(row["test"]) - other.offset
        similarity = None if cosines is None else round(float(cosines[place]), 4)
        pairs.append(
            Pair(
                train=own.source.id(train),
                train_number=train,
                test_set=other.name,
                test=other.source.id(test),
                test_number=test,
                distance=int(row["distance"]),
                correlation=round(float(row["correlation"]), 4),
                same=bool(row["same"]),
                similarity=similarity,
            )
        )
    every = (own, *others)
    return Deduplicated(
        path=folder,
        train=own.name,
        tests=tuple(other.name for other in others),
        samples={one.name: len(one.source) for one in every},
        pairs=tuple(pairs),
        bad={one.name: one.bad() for one in every},
        spec=_without(own.spec, folder / LIST) if own.spec else "",
    )


def _without(spec: str, file: Path) -> str:
    """The spec of the training data with the list as its `exclude`."""
    value = quote(str(file), safe="/ :,+~@()=", errors="surrogateescape")
    return f"{spec}{'&' if '?' in spec else '?'}{EXCLUDE}={value}"


def _write(result: Deduplicated, own: HashedSet, others: list[HashedSet], console: Console) -> None:
    """Write the lists, the page and, last, the summary."""
    entries = [Entry(pair.train, "near_duplicate", pair.train_number) for pair in result.removed]
    write_list(result.path / LIST, identity(own.source), entries)
    with replacing(result.path / PAIRS) as temporary, temporary.open("w", encoding="ascii") as lines:
        for pair in result.pairs:
            lines.write(json.dumps(pair.to_json(), allow_nan=False) + "\n")
    sources: dict[str, Source] = {one.name: one.source for one in (own, *others)}
    with announced(console, f"writing {result.path / PAGE} ...", is_brief=True):
        bad = [f"{name}: {sample.id} ({sample.why})" for name, some in result.bad.items() for sample in some]
        write_text(
            result.path / PAGE, pairs_page(result.train, result.removed, sources, "\n".join(result.lines()), bad)
        )
    write_json(result.path / RESULT, _summary(result))


def _summary(result: Deduplicated) -> dict[str, object]:
    return {
        "train": result.train,
        "tests": list(result.tests),
        "samples": result.samples,
        "removed": len(result.removed),
        "pairs": len(result.pairs),
        "bad": {
            name: [{"id": one.id, "reason": one.reason, "detail": one.detail} for one in some]
            for name, some in result.bad.items()
        },
        "spec": result.spec,
    }
