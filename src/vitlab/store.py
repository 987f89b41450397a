"""The one way anything durable is written: under a temporary name, synced, hashed, then renamed."""

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from vitlab.require import require
from vitlab.strict_json import read_json
from vitlab.user_files import broken_link, open_regular

MANIFEST = "manifest.json"
LOCK = ".lock"
LEFTOVER = re.compile(r"\..+\.(tmp-\d+|old)")
_held: set[Path] = set()  # a process does not shut itself out by a record lock
Writer = Callable[[Path], object]
Entry = dict[str, int | str]  # of a manifest: size and hash of a file


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; when the block ends well it is synced and takes the name `path` at once."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        yield temporary
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def publish(temporary: Path, path: Path) -> None:
    """Give a finished file beside `path` that name, synced before and after."""
    _make_readable(temporary)
    _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


def write_folder(path: Path, files: Mapping[str, Writer]) -> None:
    """Write a folder whole or not at all, with a manifest of sizes and SHA-256; an existing folder is an error."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        begin_folder(path)
        finish_folder(path, temporary, write_files(temporary, files))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def begin_folder(path: Path) -> Path:
    """An empty temporary folder beside `path`, for one or several processes to write into."""
    refuse_existing(path)
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    temporary.mkdir()
    return temporary


def write_files(folder: Path, files: Mapping[str, Writer]) -> dict[str, Entry]:
    """Write files, synced; returns their entries for the manifest."""
    for name, write in files.items():
        write(folder / name)
        _make_readable(folder / name)
        _sync(folder / name)
    return {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in files}


def finish_folder(path: Path, temporary: Path, entries: Mapping[str, Entry]) -> None:
    """Give a folder whose files are all written its manifest and its name."""
    json_writer({name: entries[name] for name in sorted(entries)})(temporary / MANIFEST)
    _sync(temporary / MANIFEST)
    _sync(temporary)
    temporary.rename(path)
    _sync(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing; their names are synced: power may be lost."""
    try:
        for folder in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
            folder.mkdir(exist_ok=True)
            _sync(folder.parent)
    except OSError as error:
        raise Unwritable(path, error) from None


def remove_folder(path: Path) -> None:
    """Remove a folder at once: half of one never has its name."""
    going = path.with_name(f".{path.name}.old")
    path.rename(going)
    _remove(going)


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that died left of their writing; only for who knows that none is alive."""
    for path in folder.iterdir():
        if LEFTOVER.fullmatch(path.name):
            _remove(path)


def refuse_unwritable(folder: Path) -> None:
    """Raise where it is plain that a folder cannot be made or written into; nothing is made to find out."""
    if broken := broken_link(folder):
        raise FileExistsError(f"{broken}; choose another folder")
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise FileExistsError(f"{folder} cannot be a folder: {nearest} is a file; choose another folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise Unwritable(folder, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def refuse_existing(path: Path) -> None:
    """Raise unless `path` is free: nothing here ever writes over what a user has."""
    if path.exists() or path.is_symlink():
        raise FileExistsError(f"{path} exists already; choose another name or remove it first")


def refuse_strange(folder: Path, marks: Iterable[str]) -> None:
    """Raise unless a folder is new, empty but for hidden files, or has one of `marks`, names that tell it is ours."""
    if not folder.exists() or any((folder / mark).exists() for mark in marks):
        return
    if not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; choose another name for the folder")
    if any(not path.name.startswith(".") for path in folder.iterdir()):
        raise FileExistsError(f"{folder} holds other things; choose another folder, or an empty one")


def verify_folder(path: Path, required: Iterable[str], part: tuple[int, int] = (0, 1)) -> None:
    """Raise unless the manifest lists the required files and every file on it has its size and SHA-256.

    With `part` (i, n) only every n-th file from the i-th on is looked at: n processes share the work.
    """
    manifest = read_json(path / MANIFEST)
    require(isinstance(manifest, dict), f"{MANIFEST} of {path} is not an object")
    unlisted = sorted(set(required) - set(cast(dict[str, Any], manifest)))
    require(not unlisted, f"{MANIFEST} of {path} does not list {', '.join(unlisted)}; the folder is incomplete")
    listed = list(cast(dict[str, Any], manifest).items())
    for name, entry in listed[part[0] :: part[1]]:
        require(Path(name).name == name, f"{MANIFEST} of {path} names {name!r}, which is not a plain file name")
        file = path / name
        require(
            isinstance(entry, dict) and set(entry) == {"bytes", "sha256"}, f"{MANIFEST} of {path}: bad entry {name!r}"
        )
        require(file.is_file(), f"{file} is missing; the folder is incomplete")
        size = file.stat().st_size
        require(size == entry["bytes"], f"{file} has {size:,} bytes, not {entry['bytes']!r}; it is damaged")
        require(sha256(file) == entry["sha256"], f"{file} does not match its SHA-256; it is damaged or was edited")


class Unwritable(OSError):  # noqa: N818 - says what is wrong
    """A folder cannot be made or written into."""

    def __init__(self, folder: Path, why: OSError) -> None:
        super().__init__(f"{folder} cannot be written ({why.strerror or why}); choose another folder")


class Locked(OSError):  # noqa: N818 - says what is wrong
    """Another process works in the folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else enters the folder this way while the block runs; a process that dies leaves it free.

    Raises Locked, naming the process that holds it.
    """
    make_folder(folder)
    key = folder.resolve()
    if key in _held:
        raise Locked(f"{folder} is in use by this process already")
    # A record lock: unlike flock's it is not inherited by data workers, which may outlive a killed run for seconds.
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise Unwritable(folder, error) from None
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            raise Locked(
                f"{folder} is in use by process {holder}; wait for it or stop it, or choose another folder"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        _held.add(key)
        yield
    finally:
        _held.discard(key)
        os.close(descriptor)


def sha256(path: Path) -> str:
    """The file's SHA-256 in hexadecimal, read in pieces."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_writer(value: object) -> Writer:
    """Write `value` as readable JSON, the same bytes every time."""
    text = json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) + "\n"
    return lambda path: path.write_text(text, encoding="utf-8")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _make_readable(path: Path) -> None:
    """The permissions any new file would have; safetensors makes its files private."""
    path.chmod(0o666 & ~_umask())


@functools.cache
def _umask() -> int:
    """Asked for once: asking sets it for a moment, which other threads would see."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
