"""vitlab data check, index, kinds."""

from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.text import Text

from vitlab.commands.terminal import MaybeWhole, Size, Spec, console, printable, size_of


def data() -> None:
    """Look at data sets: `data check` says what is in one, `data index` prepares tar shards, `data kinds` lists all."""


def data_check(
    spec: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SPEC")],
    against: Spec = "",
    out: Path = Path("data-check"),
    image: Size = "224",
    max_pixels: MaybeWhole = None,
    workers: int = 2,
) -> int:
    """Look at every sample: counts, classes, sizes, bad files, and a contact sheet before and after augmentation.

    Args:
        spec: The data, such as folder:photos, cifar10:DIR?split=test or fractals?classes=10&images=200.
        against: Other data, such as the training set: samples that are in both are listed.
        out: Folder for the contact sheet and the report; older ones are replaced.
        image: Size of the pictures after augmentation.
        max_pixels: Pixels that an image may have; each format has its own limit if left out.
        workers: Processes that decode.
    """
    from vitlab.data.sources.catalogue import with_max_pixels
    from vitlab.runs.measure.check_data import check_data

    spec, against = with_max_pixels(spec, max_pixels), with_max_pixels(against, max_pixels)
    bad = check_data(spec, against, out, size_of(image) or (224, 224), workers, console())
    return 1 if bad else 0


def data_index(folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]) -> None:
    """Index a folder of tar shards (webdataset convention), so that any sample can be read by its number.

    Args:
        folder: The folder with the .tar files; the index is written into it.
    """
    from vitlab.data.sources.shards import ShardSource, index_shards

    excluded = index_shards(folder)
    output = console()
    output.print(Text(f"indexed {len(ShardSource(folder)):,} samples; use them as shards:{printable(str(folder))}"))
    for rule, number in sorted(excluded.items()):
        output.print(Text(f"excluded {number:,} {rule}"))


def data_kinds() -> None:
    """List every kind of data that can be named, with its options."""
    from vitlab.data.sources.catalogue import described

    for line in described():
        console().print(Text(line))


DATA_COMMANDS: dict[str, Any] = {"check": data_check, "index": data_index, "kinds": data_kinds}
