"""Download released weights with a progress bar."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from vitlab.require import check_arguments
from vitlab.runs.progress import Bytes
from vitlab.weights.released import download as released
from vitlab.weights.released.catalogue import Release, find_release


@dataclass(frozen=True)
class Downloaded(os.PathLike[str]):
    """A released file in the cache; can be used as a path, as in `load_model(download(name))`."""

    path: Path
    release: Release

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def notes(self) -> list[str]:
        """What to know before using the file."""
        notes = [f"preprocessing: {self.release.conventions.preprocessing}"]
        if self.path.suffix == ".pth":
            notes.append(f"a pickle must be converted first: vitlab convert {shlex.quote(str(self.path))} OUT")
        return notes


def download(name: str, *, cache: str | Path | None = None, offline: bool = False, quiet: bool = False) -> Downloaded:
    """Download released weights into the cache, unless they are there already; progress goes to standard error.

    `cache` is a folder instead of VITLAB_CACHE or the user's cache. `offline`, or VITLAB_OFFLINE=1, only looks into the
    cache. `vitlab.list_releases()` lists the names.
    """
    check_arguments(download, locals())
    folder = None if cache is None else Path(cache)
    with Bytes(Console(stderr=True, quiet=quiet), "downloading", name) as display:
        path = released.download(name, cache=folder, offline=offline, progress=display.show)
    return Downloaded(path, find_release(name))
