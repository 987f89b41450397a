"""sweep.json and contents.npz: what a sweep was asked, on which images, so that another question is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from rich.console import Console

from vitlab.data.source import Source
from vitlab.require import require
from vitlab.run_dir import CONTENTS, RUN
from vitlab.runs.progress import say
from vitlab.runs.training.exactness import compared, differences, read_record, recorded, tell_unchecked, write_record
from vitlab.store import json_writer, replacing
from vitlab.strict_json import read_json

SWEEP, FINGERPRINTS = "sweep.json", "fingerprints"


def remember(out: Path, asked: dict[str, object]) -> None:
    """Write what is asked for, or compare it with what was."""
    if not (out / SWEEP).exists():
        with replacing(out / SWEEP) as temporary:
            json_writer(asked)(temporary)
        return
    before = cast(dict[str, object], read_json(out / SWEEP))
    require(isinstance(before, dict), f"{out / SWEEP} is not of a sweep; choose another --out")
    wanted = json.loads(json.dumps(asked, allow_nan=False))
    said = "; ".join(_difference(name, before.get(name), wanted.get(name)) for name in _differing(before, wanted))
    require(not said, f"{out} holds another sweep: {said}; choose another --out")


def remember_contents(out: Path, sets: Mapping[str, Source], fingerprints: Mapping[str, str], console: Console) -> None:
    """Record what the images hold, once for all runs, or compare it with what they held."""
    before = read_record(out / CONTENTS)
    if not before and any(out.glob(f"*/*/{RUN}")):
        say(
            console,
            "warning: there is no sound record of what the images held when this sweep began (earlier versions of "
            "vitlab made none), so a change since then cannot be noticed; it is recorded now",
        )
    found = {n: compared(before[n], sets[n], fingerprints[n], console) for n in before if n in sets}
    changed = differences(found, sets)
    require(not changed, f"{out} holds a sweep over other images: {'; '.join(changed)}; bring them back, or choose "
                         f"another --out")  # fmt: skip
    tell_unchecked(console, found)
    now = {n: found[n].now if n in found else recorded(sets[n], fingerprints[n], console) for n in sets}
    if not all(n in before and now[n].is_identical(before[n]) for n in now):
        write_record(out / CONTENTS, now)


def _differing(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


def _difference(name: str, before: object, now: object) -> str:
    """What a field was and is; of one with parts, only those that differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        parts = _differing(before, now)
        if name == FINGERPRINTS:
            return f"the images of --{' and --'.join(parts)} are not those it began with"
        before, now = ({part: values[part] for part in parts if part in values} for values in (before, now))
    return f"{name} was {_short(before)} and is {_short(now)}"


def _short(value: object) -> str:
    text = json.dumps(value, allow_nan=False)
    return text if len(text) <= 120 else f"{text[:117]}..."
