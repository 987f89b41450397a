"""Look at every sample of a data set before training on it: `vitlab data check`."""

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from vitlab.data.fingerprint import check_class_names, describe
from vitlab.data.images.gate import SUFFIXES
from vitlab.data.images.refusals import CONVERSIONS
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import open_source
from vitlab.data.survey import Survey, contact_sheet, empty_survey, exact_duplicates, survey
from vitlab.data.transforms.resizing import check_result
from vitlab.pixels import Augmentation
from vitlab.runs.progress import announced
from vitlab.store import json_writer, make_folder, replacing
from vitlab.strict_json import to_json

SHOWN = 10  # classes, bad samples, duplicates and sizes that are listed


def check_data(spec: str, against: str, out: Path, size: tuple[int, int], workers: int, console: Console) -> int:
    """Print and record what is in the data; return how many things are wrong with it."""
    check_result(size)
    with announced(console, f"opening {spec} ..."):
        source = open_source(spec)
        other = open_source(against) if against else None
    make_folder(out)
    found = empty_survey(source)
    columns = (TextColumn("looking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(source))
        for done in survey(source, found, workers=workers):
            progress.update(task, completed=done)
    for line in found.account.lines():
        console.print(Text(line))
    left_out = source.excluded.listed()
    for (rule, suffix), (count, names) in left_out:
        console.print(Text(f"excluded     {explained(rule, suffix, count, names)}", style="yellow"))
    _print_classes(found, source, console)
    _print_pictures(found, console)
    bad = list(found.account.quarantined.values())
    _print_some("bad", [f"{sample.id!r} {sample.reason}: {sample.detail}" for sample in bad], console)
    _print_copies(found, source, console)
    leaked, differences = ([], []) if other is None else _compare(other, source, against, console)
    card = describe(source, spec)
    console.print(Text(f"fingerprint  {card.fingerprint}"))
    report = {
        "card": to_json(card),
        "account": found.account.to_json(),
        **found.to_json(source.class_names),
        "excluded": [
            {"rule": rule, "suffix": suffix, "count": count, "such_as": names}
            for (rule, suffix), (count, names) in left_out
        ],
        "duplicates": leaked,
        "class_differences": differences,
    }
    with replacing(out / "report.json") as temporary:
        json_writer(report)(temporary)
    with replacing(out / "contact-sheet.png") as temporary:
        contact_sheet(source, size, Augmentation()).save(temporary, "PNG")
    console.print(Text(f"\n{out / 'contact-sheet.png'}: samples before and after augmentation"))
    console.print(Text(f"{out / 'report.json'}: everything above, every bad sample named"))
    return len(bad) + len(found.conflicts) + len(leaked) + len(differences)


def explained(rule: str, suffix: str, count: int, names: list[str]) -> str:
    """One kind of files that the source leaves out: how many, which, why, and the way out where there is one."""
    such = ", ".join(map(repr, names)) + (" ..." if count > len(names) else "")
    what = "folder" if rule in ("system_folder", "linked_folder", "empty_class_folder") else "file"
    number = f"{count:,} {what}{'' if count == 1 else 's'}"
    files = f"{rule}{f' {suffix}' if suffix else ''}: {number} ({such})"
    format = SUFFIXES.get(suffix, "") if rule == "other_suffix" else ""
    way = CONVERSIONS.get(format)
    return f"{files}; {format} is not supported; convert to JPEG or PNG, for example with {way}" if way else files


def _compare(other: Source, source: Source, name: str, console: Console) -> tuple[list[tuple[str, str]], list[str]]:
    """Samples that are in both sets, and what is wrong with the classes if they are not the same."""
    differences = []
    try:
        check_class_names(other.class_names, source.class_names)
    except ValueError as error:
        differences.append(str(error))
    leaked = exact_duplicates(other, source)
    console.print(Text(f"duplicates   {len(leaked):,} samples are also in {name!r}"))
    _print_some("duplicate", [f"{own!r} is {theirs!r} there" for theirs, own in leaked], console)
    _print_some("classes", differences, console)
    return leaked, differences


def _print_classes(found: Survey, source: Source, console: Console) -> None:
    names = source.class_names
    counts = [(found.class_counts[label], name) for label, name in enumerate(names)]
    if not counts:
        return
    (least, rarest), (most, commonest) = min(counts), max(counts)
    console.print(Text(f"classes      {len(names):,}, from {least:,} samples ({rarest!r}) to {most:,} ({commonest!r})"))
    _print_some("empty folder, no class", [repr(name) for name in source.empty_folders], console)
    _print_some("no sample of class", [repr(name) for count, name in counts if count == 0], console)


def _print_copies(found: Survey, source: Source, console: Console) -> None:
    """The same image again: with the same labels it is counted, with others its ids are named."""
    if found.copies:
        console.print(Text(f"copies       {found.copies:,} samples are the same image as another of their class"))
    if found.conflicts and source.class_names:
        console.print(Text(f"conflicts    {len(found.conflicts):,} samples are the same image as one of another class"))
        _print_some("same image", [f"{first!r} and {second!r}" for first, second in found.conflicts], console)


def _print_pictures(found: Survey, console: Console) -> None:
    kinds = (found.formats + found.notes).most_common()
    console.print(Text("formats      " + ", ".join(f"{count:,} {kind}" for kind, count in kinds)))
    means = " ".join(f"{mean:.4f}" for mean in found.channel_means())
    console.print(Text(f"mean colour  {means} (red green blue, 0 to 1)"))
    table = Table("width x height", "samples", box=None, header_style="bold")
    for (width, height), count in found.sizes.most_common(SHOWN):
        table.add_row(f"{width} x {height}", f"{count:,}")
    console.print(table)
    if len(found.sizes) > SHOWN:
        console.print(Text(f" and {len(found.sizes) - SHOWN:,} other sizes"))


def _print_some(what: str, lines: list[str], console: Console) -> None:
    for line in lines[:SHOWN]:
        console.print(Text(f"{what}: {line}", style="red"))
    if len(lines) > SHOWN:
        console.print(Text(f"and {len(lines) - SHOWN:,} more"))
