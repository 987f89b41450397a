"""vitlab data check, check vtab, dedup, index, kinds, pack, prepare vtab, verify."""

from pathlib import Path
from typing import Annotated, Any

from rich.text import Text

from vitlab.commands import flags
from vitlab.commands.command_line import Flag
from vitlab.commands.terminal import console

Downloads = Annotated[Path, Flag("DIR", is_positional=True)]
Source = Annotated[str, Flag("SRC", is_positional=True)]
Parallel = Annotated[int | None, Flag("INT")]


def data() -> None:
    """Look at data sets and store them. `data check` says what is in one, `data kinds` lists all kinds, `data index`
    records one and `data verify` compares it later, `data pack` copies one into tar shards, `data dedup` finds
    near-duplicates of test images, `data check vtab` and `data prepare vtab` are about the downloads of VTAB-1k.
    """


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


def data_check_vtab(root: Downloads, tasks: flags.Tasks = ()) -> int:
    """Check a folder of VTAB-1k's downloads: task by task what is there, what is missing, and where to get it.

    Args:
        root: The folder of the downloads: files directly in it, or in a folder per image set.
    """
    given = flags.arguments(locals(), console())
    from vitlab.runs.vtab.check import check_vtab

    found = check_vtab(**given)
    console().print(found.table.terminal())
    console().print(Text(f"ready: {len(found.ready)} of {len(found.states)}"))
    return 0 if len(found.ready) == len(found.states) else 1


def data_prepare_vtab(root: Downloads, tasks: flags.Tasks = (), jobs: flags.Jobs = None) -> int:
    """Pack the 1000 training and all test images of VTAB-1k's tasks into ROOT/prepared, so that they open at once.

    If it was stopped or killed, the same command continues.

    Args:
        root: The folder of the downloads.
        jobs: Image sets to pack at a time, each in its own process (default: one, in this process).
    """
    given = flags.arguments(locals(), console())
    from vitlab.runs.vtab.prepare import prepare_vtab

    done = prepare_vtab(**given)
    console().print(done.table.terminal())
    return 1 if done.problems else 0


def data_dedup(
    train: Annotated[str, Flag("TRAIN", is_positional=True)],
    tests: Annotated[tuple[str, ...], Flag("TEST ...", is_positional=True)],
    out: Path = Path("dedup"),
    max_distance: int = 11,
    min_correlation: float = 0.92,
    model: flags.MaybePath = None,
    min_similarity: float = 0.9,
    device: flags.Device = "auto",
    max_pixels: flags.MaxPixels = None,
    jobs: flags.Jobs = None,
) -> None:
    """Find training images that are near-duplicates of test images, and write the list that leaves them out.

    If it was stopped or killed, the same command continues.

    Args:
        train: The training data, such as folder:photos; `vitlab data kinds` lists all kinds.
        tests: One or more test sets, such as folder:photos?split=test. (required)
        out: Folder for the list, the pairs, the page that shows them, and the hashes of the pictures.
        max_distance: Most bits in which the hashes of a pair differ, of 64.
        min_correlation: Least correlation of the thumbnails of a pair.
        model: Weights, or a name that `vitlab download` lists: pairs with similar features count too, such as crops.
        min_similarity: Least cosine similarity of those features.
        jobs: Processes that hash pictures (default: one, this process).
    """
    given = flags.arguments(locals(), console())
    from vitlab.runs.dedup.dedup import LIST, PAGE, PAIRS, dedup

    found = dedup(**given)
    console().print(found.table.terminal())
    for line in found.lines():
        console().print(Text(line))
    console().print(Text(f"\n{out / PAGE}: the pairs side by side; {out / PAIRS}: all of them"))
    if found.removed and found.remaining:
        console().print(Text(f"{out / LIST}: train without them with {found.flag}"))


def data_index(
    source: Source,
    out: flags.MaybePath = None,
    jobs: Parallel = None,
    ray: flags.Ray = "",
    replace: bool = False,
) -> int:
    """Index a data set: the size, the hash and the labels of every sample, its place in tar shards, and the classes.

    `vitlab data verify` compares the data with it, and shards:FOLDER needs it. If it was stopped or killed, the same
    command continues.

    Args:
        source: The data, such as folder:photos or csv:list.csv, or a folder of tar shards (webdataset convention).
        out: The index (default: in the folder of the shards, or NAME.index here).
        jobs: Processes that read at the same time (default: this one).
        replace: Replace an older index even if it is damaged, or if the data lacks something that it records.
    """
    given = flags.arguments({"data": source, "out": out, "jobs": jobs, "ray": ray, "replace": replace}, console())
    from vitlab.runs.datasets.index import index_data

    made = index_data(**given)
    for line in made.lines():
        console().print(Text(line), soft_wrap=True)
    return 1 if made.unreadable or made.damaged else 0


def data_verify(
    index: Annotated[str, Flag("INDEX", is_positional=True)],
    data: flags.Spec = "",
    out: Path = Path("data-verify"),
    jobs: Parallel = None,
    ray: flags.Ray = "",
) -> int:
    """Read a data set again and compare it with its index: changed, missing and added samples, labels and classes.

    If it was stopped or killed, the same command continues. The exit code is 1 if anything differs.

    Args:
        index: The index that `vitlab data index` wrote, or a folder of tar shards that has one.
        data: Where the data is now, such as folder:photos, if it has been moved.
        out: Folder for the report of all differences; an older one is replaced.
        jobs: Processes that read at the same time (default: this one).
    """
    given = flags.arguments(locals(), console()) | {"data": data or None}
    from vitlab.runs.datasets.verify import verify_data

    found = verify_data(**given)
    for line in found.lines():
        console().print(Text(line), soft_wrap=True)
    return 0 if found.is_sound else 1


def data_pack(
    source: Source,
    out: Annotated[Path, Flag("OUT", is_positional=True)],
    per_shard: int = 4096,
    jobs: Parallel = None,
    ray: flags.Ray = "",
) -> int:
    """Copy a data set into tar shards (webdataset convention) with an index: few large files instead of many small.

    Image files are stored as they are. If it was stopped or killed, the same command continues.

    Args:
        source: The data, such as folder:photos.
        out: A new or empty folder for the shards.
        per_shard: Samples in a shard.
        jobs: Processes that write at the same time (default: this one); the shards are the same for any number.
    """
    named = {"data": source, "out": out, "per_shard": per_shard, "jobs": jobs, "ray": ray}
    given = flags.arguments(named, console())
    from vitlab.runs.datasets.pack import pack_data

    made = pack_data(**given)
    for line in made.lines():
        console().print(Text(line), soft_wrap=True)
    return 1 if made.left_out else 0


def data_kinds() -> None:
    """List every kind of data that can be opened by name, with its options."""
    from vitlab.runs.measure.check_data import data_kinds as listed

    for form, what in listed().rows:
        console().print(Text(f"{form} ({what})"))


DATA_COMMANDS: dict[str, Any] = {
    "check": data_check,
    "check vtab": data_check_vtab,
    "prepare vtab": data_prepare_vtab,
    "dedup": data_dedup,
    "index": data_index,
    "verify": data_verify,
    "pack": data_pack,
    "kinds": data_kinds,
}
