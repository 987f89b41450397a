"""What every measurement starts with: the ranks that run it, where they print, and the data as a user gives it."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from rich.console import Console
from torch.utils.data import Dataset

from vitlab.data.source import Source
from vitlab.data.sources.catalogue import open_data, with_max_pixels
from vitlab.require import require
from vitlab.runs.progress import default_console
from vitlab.world.group import World, join

PATIENCE = 600.0  # seconds between two exchanges of the ranks; a slow disk may take long
T = TypeVar("T")
DataLike = str | Source | Dataset[Any]  # a spec such as "folder:photos", a source, or a map-style torch Dataset


@contextlib.contextmanager
def measuring(device: str, console: Console | None, *, quiet: bool) -> Iterator[tuple[World, Console]]:
    """Join the ranks that a launcher such as torchrun started; only rank 0 prints. Progress goes to standard error."""
    with join(device, PATIENCE) as world:
        yield world, default_console(console, quiet=quiet or not world.leads)


def listed(given: T | Sequence[T]) -> list[T]:
    """One or several, as a list."""
    return list(given) if isinstance(given, list | tuple) else [cast(T, given)]


def optional_path(given: str | Path | None) -> Path | None:
    """A path if one is given."""
    return None if given is None else Path(given)


def open_set(data: DataLike, max_pixels: int | None = None) -> tuple[str, Source]:
    """Open data; returns the name that tables give it, its spec or the kind of source, and the source."""
    if isinstance(data, str):
        spec = with_max_pixels(data, max_pixels)
        return spec, open_data(spec)
    require(max_pixels is None, "max_pixels is for data given as a spec; set it when you open the source")
    source = open_data(data)
    return source.spec or type(source).__name__, source
