"""sweep.json: what a sweep was asked, so that another question in the same folder is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from vitlab.store import json_writer, replacing
from vitlab.strict_json import read_json, require

SWEEP, FINGERPRINTS = "sweep.json", "fingerprints"


def remember(out: Path, asked: dict[str, object]) -> None:
    """Write what is asked for, or compare it with what was."""
    if not (out / SWEEP).exists():
        with replacing(out / SWEEP) as temporary:
            json_writer(asked)(temporary)
        return
    before = cast(dict[str, object], read_json(out / SWEEP))
    require(isinstance(before, dict), f"{out / SWEEP} is not of a sweep; choose another --out")
    wanted = json.loads(json.dumps(asked))
    said = "; ".join(_difference(name, before.get(name), wanted.get(name)) for name in _differing(before, wanted))
    require(not said, f"{out} holds another sweep: {said}; choose another --out")


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
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
