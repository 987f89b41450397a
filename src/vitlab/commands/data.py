"""vitlab data check, index, kinds."""

from pathlib import Path
from typing import Annotated, Any

from rich.text import Text

from vitlab.commands import flags
from vitlab.commands.command_line import Flag
from vitlab.commands.terminal import console
from vitlab.errors import printable


def data() -> None:
    """Look at data sets: `data check` says what is in one, `data index` prepares tar shards, `data kinds` lists all."""


def data_check(
    data: Annotated[str, Flag("SPEC", is_positional=True)],
    against: flags.Spec = "",
    out: Path = Path("data-check"),
    image: flags.Size = "224",
    max_pixels: flags.MaxPixels = None,
    workers: flags.Workers = 2,
) -> int:
    """Check every sample: counts, classes, sizes, unreadable files, and a contact sheet before and after augmentation.

    Args:
        data: The data, such as folder:photos, cifar10:DIR?split=test or fractals?classes=10&images=200.
        against: Other data, such as the training set; samples that are in both are listed.
        out: Folder for the contact sheet and the report; older ones are replaced.
        image: Size of the pictures after augmentation.
    """
    given = flags.arguments(locals(), console()) | {"against": against or None}
    from vitlab.runs.measure.check_data import check_data

    found = check_data(**given)
    for line in found.lines():
        console().print(Text(str(line), style=line.style))
    console().print(Text(f"\n{out / 'contact-sheet.png'}: samples before and after augmentation"))
    console().print(Text(f"{out / 'report.json'}: everything above, with every bad sample"))
    return 1 if found.problems else 0


def data_index(folder: Annotated[Path, Flag("FOLDER", is_positional=True)]) -> None:
    """Index a folder of tar shards (webdataset convention), so that any sample can be read by its number.

    Args:
        folder: The folder with the .tar files; the index is written into it.
    """
    from vitlab.data.sources.shards import index_shards

    made = index_shards(folder)
    console().print(Text(f"indexed {made.samples:,} samples; open them as {printable(made.spec)}"))
    for line in made.excluded.lines():
        console().print(Text(f"excluded {line}"))


def data_kinds() -> None:
    """List every kind of data that can be opened by name, with its options."""
    from vitlab.runs.measure.check_data import data_kinds as listed

    for form, what in listed().rows:
        console().print(Text(f"{form} ({what})"))


DATA_COMMANDS: dict[str, Any] = {"check": data_check, "index": data_index, "kinds": data_kinds}
