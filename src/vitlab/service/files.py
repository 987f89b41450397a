"""The files of the page, read once at the start: a request names one of them and never a path."""

import hashlib
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
INDEX = "index.html"


class File(NamedTuple):
    """A file of the page."""

    data: bytes
    media_type: str
    tag: str  # changes with the content


def page_files() -> dict[str, File]:
    """The files of the page by their addresses, without a leading slash; the empty address is the index."""
    found = dict(_below(resources.files("vitlab") / "page" / "static", ""))
    return found | ({"": found[INDEX]} if INDEX in found else {})


def _below(folder: Traversable, prefix: str) -> list[tuple[str, File]]:
    if not folder.is_dir():
        return []
    found = []
    for one in folder.iterdir():
        if one.is_dir():
            found += _below(one, f"{prefix}{one.name}/")
        elif (suffix := "." + one.name.rpartition(".")[2]) in TYPES:
            with one.open("rb") as file:
                found.append((prefix + one.name, file_of(file.read(), TYPES[suffix])))
    return found


def file_of(data: bytes, media_type: str) -> File:
    """A file with the tag of its content."""
    return File(data, media_type, f'"{hashlib.sha256(data).hexdigest()[:20]}"')
