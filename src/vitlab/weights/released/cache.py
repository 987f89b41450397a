"""The cache of released weights: where files are kept, and the JSON beside each with facts it does not state."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitlab.require import require
from vitlab.spec import Conventions
from vitlab.store import json_writer, replacing
from vitlab.strict_json import from_json, read_json, to_json
from vitlab.weights.released.catalogue import Release

FORMAT: Literal["vitlab-fetched"] = "vitlab-fetched"


def cache_folder() -> Path:
    """The folder VITLAB_CACHE, or `vitlab/weights` in the user's cache."""
    if own := os.environ.get("VITLAB_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vitlab" / "weights"


def cached(release: Release) -> Path:
    """The path of a release in the cache, downloaded or not."""
    return cache_folder() / release.file


@dataclass(frozen=True)
class Fetched:
    """Facts about a downloaded file. It was trained with `conventions`, on images of `image` pixels a side."""

    format: Literal["vitlab-fetched"]
    name: str
    url: str
    size: int
    sha256: str
    conventions: Conventions
    image: int


def beside(path: Path) -> Path:
    """The path of the JSON that belongs to a downloaded file."""
    return path.with_name(f"{path.name}.json")


def write_fetched(path: Path, facts: Fetched) -> None:
    """Write the facts about the file at `path` beside it."""
    with replacing(beside(path)) as temporary:
        json_writer(to_json(facts))(temporary)


def read_fetched(path: Path) -> Fetched | None:
    """Read the facts about the file at `path`; None if vitlab did not download it. Any other JSON is ignored."""
    if not beside(path).is_file():
        return None
    try:
        value = read_json(beside(path))
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            return None
        facts = from_json(Fetched, value, beside(path).name)
    except ValueError as error:
        raise ValueError(f"{error}; remove {beside(path)}, and vitlab download writes it again") from None
    size = path.stat().st_size
    require(
        facts.size == size,
        f"{path} is damaged: it has {size:,} bytes, not the {facts.size:,} that were downloaded; remove it and "
        f"download it again, or remove {beside(path).name} if the file is your own",
    )
    return facts
