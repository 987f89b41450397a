"""Check that a run that continues is the run that was stopped: the same data, the same run.json.

Only rank 0 calls these functions.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from vitlab.data.contents import Comparison, Contents, compare, from_bytes, take, to_bytes
from vitlab.data.fingerprint import DataCard, fingerprint, way_out
from vitlab.data.source import Source
from vitlab.errors import first_few
from vitlab.files.store import replacing
from vitlab.files.strict_json import to_json
from vitlab.files.user_files import read_regular
from vitlab.run_dir import CHECKPOINTS, CONTENTS, DATA, LARGEST_RECORD, NOT_EXACT, RUN, RunDir
from vitlab.runs.progress import Bytes, say
from vitlab.train.checkpoints.files import learned_in, learned_sha256

NAMED = 3  # changed files, or fields, that a message names
NO_RECORD = (
    "warning: there is no usable record of the data as it was (earlier versions of vitlab made none), so changes since "
    "then cannot be noticed; the data is recorded now"
)
IN_WORDS = {"data": "training", "validation": "validation", "test": "test"}


def check_unchanged(
    run: RunDir,
    sets: Mapping[str, Source],
    cards: tuple[DataCard, DataCard],
    console: Console,
    *,
    allow_changed: bool,
    known: Path | None,
) -> None:
    """Record what the data of a new run holds; raise if a run that continues would not be the same run.

    `cards` are those of the training data as it was and as it is. With `allow_changed` the reasons are printed and
    recorded instead, and the run continues with the data as it is now. `known` is a record that may have the hashes
    already.
    """
    checkpoint = learned_in(run.path / CHECKPOINTS)
    before, fresh = read_record(run.path / CONTENTS), read_record(known) if known is not None else {}
    if checkpoint is not None and not before:
        say(console, NO_RECORD)
    if checkpoint is not None and checkpoint[1] is None:
        say(console, f"warning: the checkpoint is of an earlier version of vitlab, which did not record the recipe, so "
                     f"it is unknown whether {RUN} was edited since then")  # fmt: skip
    prints = {n: cards[1].fingerprint if n == "data" else fingerprint(source) for n, source in sets.items()}
    found = {n: compared(before[n], sets[n], prints[n], console, fresh.get(n)) for n in before if n in sets}
    reasons = [*_edited(run, checkpoint), *differences(found, sets)]
    if not before and cards[0].fingerprint != cards[1].fingerprint:
        reasons.append(_other_samples("data"))
    step = 0 if checkpoint is None else checkpoint[0]
    if reasons and not allow_changed:
        raise ValueError(f"{run.path} cannot be continued exactly: {'; '.join(reasons)}; {way_out(run.command)}")
    if reasons:
        _note(run, step, reasons, console)
        run.write(DATA, to_json(cards[1]))
    tell_unchecked(console, found)
    now = {name: one.now for name, one in found.items() if one.is_same}
    for name in sets.keys() - now.keys():  # what was read to compare a set is not read again
        read = found[name].now if name in found else fresh.get(name)
        now[name] = recorded(sets[name], prints[name], console, read)
    if not all(name in before and now[name].is_identical(before[name]) for name in now):
        run.write_bytes(CONTENTS, to_bytes(now))


def _note(run: RunDir, step: int, reasons: Sequence[str], console: Console) -> None:
    """Write the reasons down before anything else changes, so that a crash does not lose them."""
    known = run.not_exact()
    added = [f"after step {step:,}: {why}" for why in reasons if not any(old.endswith(why) for old in known)]
    run.write(NOT_EXACT, [*known, *added])
    run.record("changed", {"step": step, "reasons": list(reasons)})
    for why in reasons:
        say(console, f"not exact from here on: {why}")


# -- The data ------------------------------------------------------------------------------------


def recorded(source: Source, fingerprint: str, console: Console, known: Contents | None = None) -> Contents:
    """Record what a data set holds, with a bar while it is read."""
    with Bytes(console, "recording the data's content") as shown:
        return take(source, fingerprint, known, shown.show)


def compared(
    before: Contents, source: Source, fingerprint: str, console: Console, known: Contents | None = None
) -> Comparison:
    """Compare a data set with what it was, with a bar while files are read."""
    with Bytes(console, "checking the data's content") as shown:
        return compare(before, source, fingerprint, known, shown.show)


def read_record(path: Path) -> dict[str, Contents]:
    """What data sets held, by name; empty if there is no record or a damaged one."""
    try:
        return from_bytes(read_regular(path, LARGEST_RECORD))
    except (OSError, ValueError):
        return {}


def write_record(path: Path, sets: Mapping[str, Contents]) -> None:
    """Write a record that `read_record` reads."""
    with replacing(path) as temporary:
        temporary.write_bytes(to_bytes(sets))


def differences(found: Mapping[str, Comparison], sets: Mapping[str, Source]) -> list[str]:
    """A sentence for each data set that is not what it was."""
    return [_difference(name, one, sets[name]) for name, one in found.items() if not one.is_same]


def tell_unchecked(console: Console, found: Mapping[str, Comparison]) -> None:
    """Print how many files of a large data set could only be compared by their size."""
    if number := sum(one.unchecked for one in found.values()):
        say(console, f"{number:,} files have a new date and the same size; the data is too large to hash all of them, "
                     "and those that were hashed are unchanged")  # fmt: skip


def _difference(name: str, found: Comparison, source: Source) -> str:
    if found.has_other_samples:
        return _other_samples(name)
    paths, changed = source.paths(), found.changed
    named = [repr(source.id(number) if paths is None else paths[number]) for number in changed]
    what = "samples" if paths is None else "files"
    count = f"{len(changed):,} of {len(found.now.files):,} {what} of the {IN_WORDS[name]} data"
    hint = f" ({found.hint})" if found.hint else ""
    verb = "has" if len(changed) == 1 else "have"
    return f"{count} {verb} changed: {first_few(named, NAMED)}{hint}"


def _other_samples(name: str) -> str:
    return f"the {IN_WORDS[name]} data has other samples or labels than before"


# -- run.json ------------------------------------------------------------------------------------


def _edited(run: RunDir, checkpoint: tuple[int, Mapping[str, object] | None] | None) -> list[str]:
    """What of run.json differs from what the newest checkpoint was made with."""
    if checkpoint is None or checkpoint[1] is None:
        return []
    before, now = checkpoint[1], run.learned()
    if learned_sha256(before) == learned_sha256(now):
        return []
    fields = list(_fields(before, now))
    return [f"{RUN} was edited: {first_few(fields, NAMED)}"]


def _fields(before: object, now: object, place: str = "") -> list[str]:
    """`recipe.schedule.peak was 0.003 and is 0.03` of every value that differs."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return [
            said
            for name in {**before, **now}
            for said in _fields(before.get(name), now.get(name), f"{place}.{name}".removeprefix("."))
        ]
    return [] if before == now else [f"{place} was {before!r:.60} and is {now!r:.60}"]
