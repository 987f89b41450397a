"""Lists of samples that a data set leaves out: `exclude=FILE` in a data spec.

A list is a file of JSON lines, one sample each: {"id": "cat/7.jpg", "number": 6, "reason": "near_duplicate"}. Only the
id is needed; the number makes opening faster. The first line of a list that vitlab wrote, {"format":
"vitlab-exclusion", "version": 1, "pictures": ..., "entries": 3}, says which data set the list belongs to, and how many
samples follow, so that a list that was cut short is noticed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from vitlab.data.dedup.hash_files import identity
from vitlab.data.loading.accounting import Excluded
from vitlab.data.source import Paths, Source, Wrapped, check_index
from vitlab.errors import first_few
from vitlab.files.store import replacing
from vitlab.files.strict_json import from_json, parse_json, read_json
from vitlab.files.user_files import stream_lines
from vitlab.require import require

FORMAT: Final = "vitlab-exclusion"
SUMMARY: Final = "dedup.json"  # beside a list that `vitlab data dedup` wrote; `removed` is the number of its entries
AGAIN = "write the list again with vitlab data dedup"
SHOWN = 3  # unknown ids that an error names


@dataclass(frozen=True)
class Header:
    """The first line of a list that vitlab wrote; `pictures` is the `identity` of the data set.

    Lists that were written before `entries` was added are complete if the summary beside them has as many.
    """

    format: str
    version: int
    pictures: str
    entries: int | None = None


@dataclass(frozen=True)
class Entry:
    """A sample to leave out, and why; `number` is its place in the data set, if known."""

    id: str
    reason: Literal["near_duplicate", "listed"] = "listed"
    number: int = -1


class Remaining(Wrapped):
    """A source without some of its samples, which `excluded` counts by reason."""

    def __init__(self, source: Source, removed: np.ndarray, excluded: Excluded) -> None:
        """Take the numbers of the removed samples in ascending order."""
        super().__init__(source)
        self.excluded = Excluded()
        for some in (source.excluded, excluded):
            self.excluded.add(some)
        self._shifted = removed - np.arange(len(removed))  # samples that remain before each removed one
        self.spec, self.identity, self.most_hashed = source.spec, source.identity, source.most_hashed
        self.block, self.window, self.imagenet_numbers = source.block, source.window, source.imagenet_numbers
        self.class_names = tuple(source.class_names)
        self.first_not_single = self._first_not_single()

    def __len__(self) -> int:
        return len(self.source) - len(self._shifted)

    def place(self, index: int) -> int:
        """See `Wrapped.place`."""
        index = check_index(index, len(self))
        return index + int(np.searchsorted(self._shifted, index, side="right"))

    def paths(self) -> Paths | None:
        """See `Source.paths`; the files of removed samples are among them."""
        return self.source.paths()

    def _first_not_single(self) -> int | None:
        there = self.source.first_not_single
        if there is None:
            return None
        after = range(int(there - np.count_nonzero(self._shifted + np.arange(len(self._shifted)) < there)), len(self))
        return next((number for number in after if len(self.label(number)) != 1), None)


def without_listed(source: Source, file: Path) -> Source:
    """Return the source without the samples of a list; raises if they are not in the source."""
    header, entries = read_list(file)
    if header is not None:
        other = (
            f"{file} was made for other data: ids or number of the samples have changed; run vitlab data dedup again"
        )
        require(header.pictures == identity(source), other)
    numbers = _numbers(source, entries)
    missing = [repr(name) for name, number in numbers.items() if number < 0]
    require(not missing, f"{file} lists {len(missing):,} samples that the data lacks: {first_few(missing, SHOWN)}; "
                         "is it the list of other data?")  # fmt: skip
    require(len(numbers) < len(source), f"{file} lists all {len(source):,} samples; none would be left")
    excluded = Excluded()
    for entry in entries.values():
        excluded.leave_out(entry.reason, entry.id)
    return Remaining(source, np.sort(np.array(list(numbers.values()), np.int64)), excluded)


def read_list(file: Path) -> tuple[Header | None, dict[str, Entry]]:
    """Read a list: its header, if it has one, and its entries by id."""
    header, entries, count = None, {}, 0
    there = file.exists() or file.is_symlink()
    if not there:
        raise FileNotFoundError(f"{file} does not exist; {AGAIN}, or leave exclude= out of the data")
    for number, line in enumerate(stream_lines(file), 1):
        if not line.strip():
            continue
        where = f"{file.name}, line {number}"
        value = parse_json(line, where)
        if number == 1 and isinstance(value, dict) and "format" in value:
            header = from_json(Header, value, where)
            is_known = (header.format, header.version) == (FORMAT, 1)
            require(is_known, f"{where} is {header.format!r}, version {header.version}; expected {FORMAT!r}, version 1")
            continue
        entry = from_json(Entry, value, where)
        entries.setdefault(entry.id, entry)
        count += 1
    _require_whole(file, header, count)
    return header, entries


def _require_whole(file: Path, header: Header | None, count: int) -> None:
    """Raise if a list is empty, or not known to have all its entries."""
    require(header is not None or count > 0, f"{file} is empty or was cut short; {AGAIN}")
    if header is None:
        return
    expected = header.entries
    if expected is None:
        beside = file.with_name(SUMMARY)
        summary = read_json(beside) if beside.is_file() else None
        removed = summary.get("removed") if isinstance(summary, dict) else None
        expected = removed if isinstance(removed, int) else None
        old = f"{file} does not say how many samples it lists, so it cannot be told whether it is complete; {AGAIN}"
        require(expected is not None, old)
    require(count == expected, f"{file} lists {count:,} samples of {expected:,}: it was cut short or edited; {AGAIN}")


def write_list(file: Path, pictures: str, entries: Sequence[Entry]) -> None:
    """Write a list for the data set with the identity `pictures`."""
    header = {"format": FORMAT, "version": 1, "pictures": pictures, "entries": len(entries)}
    with replacing(file) as temporary, temporary.open("w", encoding="ascii") as lines:
        lines.write(json.dumps(header, allow_nan=False) + "\n")
        for entry in entries:
            value = {"id": entry.id, "number": entry.number, "reason": entry.reason}
            lines.write(json.dumps(value, allow_nan=False) + "\n")


def _numbers(source: Source, entries: dict[str, Entry]) -> dict[str, int]:
    """The number of each sample by id; -1 if the source lacks it. The ids are only searched if numbers do not fit."""
    found = {}
    for name, entry in entries.items():
        fits = 0 <= entry.number < len(source) and source.id(entry.number) == name
        found[name] = entry.number if fits else -1
    wanted = {name for name, number in found.items() if number < 0}
    for number in range(len(source)) if wanted else ():
        if source.id(number) in wanted:
            found[source.id(number)] = number
    return found
