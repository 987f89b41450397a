"""Image files given as paths, folders or patterns."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from vitlab.data.images.refusals import SUFFIXES as FORMATS
from vitlab.data.loading.accounting import Excluded
from vitlab.data.sources.folders import SUFFIXES, images_below

# Includes formats that are not read: such a file in a folder gets an error that says how to convert it.
PICTURES = tuple(sorted({*SUFFIXES, *map(str.encode, FORMATS)}))

_MAGIC = re.compile(r"[*?[]")


def image_files(given: Iterable[str | Path], excluded: Excluded | None = None) -> Iterator[str | Path]:
    """Yield the files given, the images anywhere below a folder, and those that match a pattern (*.jpg).

    Images below a folder and matches of a pattern are sorted. Files that are not named like an image are counted in
    `excluded`. Raises ValueError for a folder without images or a pattern without matches.
    """
    left_out = Excluded() if excluded is None else excluded
    for one in given:
        if os.path.isdir(one):  # noqa: PTH112 - Path raises where a folder above may not be entered
            yield from _below(os.fspath(one), left_out)
        elif isinstance(one, str) and _MAGIC.search(one) and not os.path.lexists(one):
            yield from _matches(one, left_out)
        else:
            yield one


def _below(folder: str, excluded: Excluded) -> Iterator[str]:
    own = Excluded()
    names = images_below(Path(folder), "", own, PICTURES)
    excluded.add(own)
    if not names:
        raise ValueError(f"{folder!r} has no images in it; {own.described() or 'it is empty'}")
    for name in names:
        yield os.path.join(folder, os.fsdecode(name))  # noqa: PTH118 - keeps the folder as it was spelt


def _matches(pattern: str, excluded: Excluded) -> Iterator[str]:
    """Yield the sorted matches without hidden files; ** does not follow links, which may be loops."""
    known = set(Path(pattern).parts)
    anchor = Path(pattern).anchor
    found = [str(path) for path in Path(anchor).glob(pattern.removeprefix(anchor)) if not _is_hidden(path, known)]
    if not found:
        raise ValueError(f"no file matches {pattern!r}; give an image file, a folder or another pattern")
    own = Excluded()
    images = []
    for path in sorted(found, key=os.fsencode):
        if os.fsencode(path).lower().endswith(PICTURES):
            images.append(path)
        elif not Path(path).is_dir():
            own.leave_out("other_suffix", path)
    excluded.add(own)
    if not images:
        raise ValueError(f"no image matches {pattern!r}; {own.described() or 'only folders do'}")
    yield from images


def _is_hidden(path: Path, known: set[str]) -> bool:
    """Whether a part of the path begins with a dot that the pattern does not contain."""
    return any(part.startswith(".") and part not in known for part in path.parts)
