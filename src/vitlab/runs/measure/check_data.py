"""Look at every sample of a data set before training on it: `vitlab data check`, and the kinds of data there are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import Image
from rich.console import Console

from vitlab.data.class_names import check_class_names
from vitlab.data.fingerprint import DataCard, describe
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import data_name, described_kinds
from vitlab.data.survey import Duplicates, Survey, contact_sheet, empty_survey, exact_duplicates, survey
from vitlab.data.transforms.resizing import check_result
from vitlab.errors import first_few, printable
from vitlab.files.store import make_folder, refuse_strange, replacing, write_json
from vitlab.files.strict_json import to_json
from vitlab.report.tables import Results, Tabular
from vitlab.require import check_arguments, require
from vitlab.runs.measure.inputs import DataLike, ImageSize, open_set
from vitlab.runs.progress import Images, announced, counted, default_console
from vitlab.spec import image_size
from vitlab.spec.pixels import Augmentation

SHOWN = 10  # classes, bad samples, duplicates and sizes that are listed
REPORT, SHEET = "report.json", "contact-sheet.png"


class Line(NamedTuple):
    """One line about a data set; `style` says whether it is worth a look or wrong."""

    label: str
    text: str
    style: Literal["", "yellow", "red"] = ""

    def __str__(self) -> str:
        return f"{self.label:<12} {self.text}"


@dataclass(frozen=True, repr=False)
class DataCheck(Tabular):
    """What is in a data set, and what is wrong with it; a notebook displays it as a table."""

    source: Source
    card: DataCard
    survey: Survey
    against: str  # the other data set, if one was given
    duplicates: Sequence[tuple[str, str]]  # ids of samples in the other set and in this one
    not_compared: Sequence[str]  # samples of the other set that cannot be read, and why
    class_differences: Sequence[str]
    contact_sheet: Image.Image  # samples before and after augmentation

    @property
    def problems(self) -> int:
        """How many things are wrong: bad images, images of two classes, samples of the other set, other classes."""
        bad = len(self.survey.account.quarantined) + len(self.not_compared)
        return bad + len(self.survey.conflicts) + len(self.duplicates) + len(self.class_differences)

    def lines(self) -> Iterator[Line]:
        """The findings, one line each; of long lists the first ten."""
        account, found = self.survey.account, self.survey
        yield from (Line(label, text) for label, text in account.entries() if label != "excluded")
        for line in self.source.excluded.lines():
            yield Line("excluded", line, "yellow")
        yield from self._classes()
        kinds = [*found.formats.most_common(), *((NOTES.get(note, note), n) for note, n in found.notes.most_common())]
        yield Line("formats", ", ".join(f"{count:,} {kind}" for kind, count in kinds))
        means = " ".join(f"{mean:.4f}" for mean in found.channel_means())
        yield Line("mean colour", f"{means} (red green blue, 0 to 1)")
        sizes = [f"{width} x {height} ({count:,})" for (width, height), count in found.sizes.most_common()]
        yield Line("sizes", first_few(sizes, SHOWN))
        yield from _listed("bad", [f"{sample.id!r} {sample.detail}" for sample in account.quarantined.values()])
        if found.copies:
            yield Line("copies", f"{_samples(found.copies)} the same image as another of the same class")
        if found.conflicts:
            yield Line("conflicts", f"{_samples(len(found.conflicts))} the same image as one of another class", "red")
            yield from _listed("same image", [f"{first!r} and {second!r}" for first, second in found.conflicts])
        if self.against:
            yield Line("duplicates", f"{_samples(len(self.duplicates))} also in {self.against!r}")
        yield from _listed("duplicate", [f"{own!r} is {theirs!r} there" for theirs, own in self.duplicates])
        if self.not_compared:
            unread = f"{counted(len(self.not_compared), 'sample')} of {self.against!r} cannot be read"
            yield Line("not compared", unread, "red")
        yield from _listed("unreadable", self.not_compared)
        yield from _listed("classes", self.class_differences)
        yield Line("fingerprint", f"{self.card.fingerprint} (of names and labels, not of image contents)")

    def to_json(self) -> dict[str, object]:
        """Everything that was found, as JSON values, with every bad sample."""
        left_out = self.source.excluded.by_rule()
        return {
            "card": to_json(self.card),
            "account": self.survey.account.to_json(),
            **self.survey.to_json(self.source.class_names),
            "excluded": [
                {"rule": rule, "suffix": suffix, "count": count, "such_as": names}
                for (rule, suffix), (count, names) in left_out
            ],
            "duplicates": list(self.duplicates),
            "not_compared": list(self.not_compared),
            "class_differences": list(self.class_differences),
        }

    def save(self, folder: Path | str) -> None:
        """Write report.json and contact-sheet.png into a folder; older ones are replaced."""
        write_json(Path(folder) / REPORT, self.to_json())
        with replacing(Path(folder) / SHEET) as temporary:
            self.contact_sheet.save(temporary, "PNG")

    def __repr__(self) -> str:
        return "\n".join(map(str, self.lines()))

    @property
    def table(self) -> Results:
        """The findings, one row each."""
        return Results(("data", data_name(self.source)), tuple(line[:2] for line in self.lines()))

    __str__ = __repr__

    def _classes(self) -> Iterator[Line]:
        counts = [(self.survey.class_counts[label], name) for label, name in enumerate(self.source.class_names)]
        if not counts:
            return
        (least, rarest), (most, commonest) = min(counts), max(counts)
        span = (
            f"from {counted(least, 'sample')} ({rarest!r}) to {most:,} ({commonest!r})"
            if least < most
            else f"{most:,} each"
        )
        yield Line("classes", f"{len(counts):,}, {span}")
        yield from _listed("no sample", [f"of class {name!r}" for count, name in counts if count == 0])


NOTES = {
    "format_mismatch": "with the suffix of another format",
    "animated": "animated, of which the first frame is used",
    "broken_exif": "with damaged EXIF data",
}


def check_data(
    data: DataLike,
    against: DataLike | None = None,
    *,
    out: Path | str | None = None,
    image: ImageSize = 224,
    max_pixels: int | None = None,
    workers: int = 0,
    console: Console | None = None,
    quiet: bool = False,
) -> DataCheck:
    """Look at every sample of a data set: counts, classes, sizes, unreadable files, and samples that are also in
    another set.

    `data` and `against` are what `open_data` takes. `image` is the size of the pictures on the contact sheet after
    augmentation. With `out`, a report and the contact sheet are written into that folder. `quiet` prints no progress.
    """
    check_arguments(check_data, locals())
    size, screen = image_size(image), default_console(console, quiet=quiet)
    check_result(size)
    with announced(screen, f"opening {printable(data_name(data))} ..."):
        source = open_set(data, max_pixels)[1]
        other = None if against is None else open_set(against, max_pixels)[1]
    require(not source.is_prepared, "the data set gives float tensors, so there are no pictures to check")
    if out is not None:
        refuse_strange(Path(out), (REPORT,))  # an error before an hour of reading, not after
        make_folder(Path(out))
    found = empty_survey(source)
    with Images(screen, "checking") as display:
        for done in survey(source, found, workers=workers):
            display.show(done, len(source))
    duplicates = Duplicates() if other is None else exact_duplicates(other, source)
    checked = DataCheck(
        source=source,
        card=describe(source, source.spec),
        survey=found,
        against="" if other is None else other.spec,
        duplicates=duplicates.pairs,
        not_compared=[str(bad) for bad in duplicates.not_compared],
        class_differences=() if other is None else _class_differences(other, source),
        contact_sheet=contact_sheet(source, size, Augmentation()),
    )
    if out is not None:
        checked.save(out)
    return checked


def data_kinds() -> Results:
    """List every kind of data that `open_data` opens by name, with its options."""
    return Results(("data", "what it is"), tuple(described_kinds().items()))


def _class_differences(other: Source, source: Source) -> list[str]:
    try:
        check_class_names(other.class_names, source.class_names)
    except ValueError as error:
        return [str(error)]
    return []


def _samples(count: int) -> str:
    return f"{count:,} sample is" if count == 1 else f"{count:,} samples are"


def _listed(label: str, texts: Sequence[str]) -> Iterator[Line]:
    for text in texts[:SHOWN]:
        yield Line(label, text, "red")
    if len(texts) > SHOWN:
        yield Line(label, f"and {len(texts) - SHOWN:,} more", "red")
