"""sweep.json and contents.npz: what a sweep was asked for, and on which images; a folder holds one sweep."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from vitlab.data.source import Source
from vitlab.errors import first_few
from vitlab.files.store import write_json
from vitlab.files.strict_json import read_json
from vitlab.require import require
from vitlab.run_dir import CONTENTS, RUN, SWEEP
from vitlab.runs.progress import say
from vitlab.runs.training.exactness import compared, differences, read_record, recorded, tell_unchecked, write_record

FINGERPRINTS = "fingerprints"
NAMED = 4  # values that a message names


def remember(out: Path, asked: dict[str, object]) -> None:
    """Write what the sweep is asked for; if the folder holds a sweep already, raise unless it is the same."""
    if not (out / SWEEP).exists():
        write_json(out / SWEEP, asked)
        return
    before = cast(dict[str, object], read_json(out / SWEEP))
    require(isinstance(before, dict), f"{out / SWEEP} does not describe a sweep; choose another out=")
    wanted = json.loads(json.dumps(asked, allow_nan=False))
    said = [words for name in _differing(before, wanted) for words in _differences(name, before, wanted)]
    require(not said, f"{out} holds another sweep: {'; '.join(said)}; choose another out=")


def remember_contents(out: Path, sets: Mapping[str, Source], fingerprints: Mapping[str, str], console: Console) -> None:
    """Record the contents of the images, once for all runs, or raise if they are not those of the record."""
    before = read_record(out / CONTENTS)
    if not before and any(out.glob(f"*/*/{RUN}")):
        say(
            console,
            "warning: there is no intact record of the images with which this sweep began (earlier versions of vitlab "
            "made none), so a change since then cannot be detected; they are recorded now",
        )
    found = {n: compared(before[n], sets[n], fingerprints[n], console) for n in before if n in sets}
    said = "; ".join(differences(found, sets))
    require(not said, f"{out} holds a sweep over other images: {said}; restore them, or choose another out=")
    tell_unchecked(console, found)
    now = {n: found[n].now if n in found else recorded(sets[n], fingerprints[n], console) for n in sets}
    if not all(n in before and now[n].is_identical(before[n]) for n in now):
        write_record(out / CONTENTS, now)


def _differing(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


def _differences(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How a field of sweep.json differs; of one with parts, only the parts that do."""
    old, new = before.get(name), now.get(name)
    if name in ("weights", "teacher"):  # hashes
        return [f"it has another {'teacher' if name == 'teacher' else 'model to start from'}"]
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [f"{name} was {_words(old)} and is {_words(new)}"]
    parts = _differing(old, new)
    if name == FINGERPRINTS:
        return [f"the images of {' and '.join(f'{part}=' for part in parts)} are not those it began with"]
    if name == "points":
        lists = ([part for part in parts if part in points] for points in (old, new))
        return ["it tried {} and this one tries {}".format(*map(_words, lists))]
    return [f"{part} was {_words(old.get(part))} and is {_words(new.get(part))}" for part in parts]


def _words(value: object) -> str:
    if isinstance(value, list):
        return first_few([str(one) for one in value], NAMED) or "nothing else"
    return "not set" if value in (None, "") else str(value)
