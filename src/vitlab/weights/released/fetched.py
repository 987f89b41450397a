"""What the catalogue knows of a released file and the file does not say, kept in a JSON beside it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitlab.require import require
from vitlab.spec import Conventions
from vitlab.store import json_writer, replacing
from vitlab.strict_json import from_json, read_json, to_json

FORMAT: Literal["vitlab-fetched"] = "vitlab-fetched"


@dataclass(frozen=True)
class Fetched:
    """A released file as it came: `conventions` and the side of its `image` are those it was trained with."""

    format: Literal["vitlab-fetched"]
    name: str
    url: str
    size: int
    sha256: str
    conventions: Conventions
    image: int


def beside(path: Path) -> Path:
    """Where the JSON of a file lies."""
    return path.with_name(f"{path.name}.json")


def write_fetched(path: Path, facts: Fetched) -> None:
    """Write what is known of the file at `path`."""
    with replacing(beside(path)) as temporary:
        json_writer(to_json(facts))(temporary)


def read_fetched(path: Path) -> Fetched | None:
    """What is known of the file at `path`, if it was fetched; a JSON of somebody else's says nothing."""
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
        f"{path} is damaged: it has {size:,} bytes, not the {facts.size:,} that were fetched; remove it and fetch it "
        f"again, or remove {beside(path).name} if the file is your own",
    )
    return facts
