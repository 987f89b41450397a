"""Write durable files and folders: under a temporary name, synced, hashed, then renamed."""

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from vitlab.files.strict_json import read_json
from vitlab.files.user_files import broken_link, open_regular
from vitlab.require import require

MANIFEST = "manifest.json"
LOCK = ".lock"
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # the beginning of one; a drive has a single letter
LEFTOVER = re.compile(r"\..+\.(tmp-\d+|old)")
# C's struct flock, and the place in it of (type, whence, start, length, process), as the system orders them
FLOCK, FLOCK_ORDER = ("@qqihh", (2, 3, 4, 0, 1)) if sys.platform == "darwin" else ("@hhqqi4x", (0, 1, 2, 3, 4))
_held: set[Path] = set()  # record locks do not exclude the process that holds them
Writer = Callable[[Path], object]
Entry = dict[str, int | str]  # of a manifest: size and hash of a file


@contextlib.contextmanager
def replacing(path: Path, *, is_durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`; if the block succeeds, it is synced and renamed to `path` atomically.

    Without `is_durable` it is not synced: after a power loss the file may be gone or damaged, which the reader must
    notice.
    """
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        yield temporary
        if is_durable:
            publish(temporary, path)
        else:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with replacing(path) as temporary:
        _write_text(text, temporary)


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically."""
    with replacing(path) as temporary:
        json_writer(value)(temporary)


def publish(temporary: Path, path: Path) -> None:
    """Rename a finished file to `path`, syncing before and after."""
    _make_readable(temporary)
    _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


def write_folder(path: Path, files: Mapping[str, Writer]) -> None:
    """Write a folder atomically, with a manifest of sizes and SHA-256; raises if `path` exists."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        begin_folder(path)
        finish_folder(path, temporary, write_files(temporary, files))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def begin_folder(path: Path) -> Path:
    """Create an empty temporary folder beside `path`, which one or several processes may write to."""
    refuse_existing(path)
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    temporary.mkdir()
    return temporary


def write_files(folder: Path, files: Mapping[str, Writer]) -> dict[str, Entry]:
    """Write and sync files; returns their entries for the manifest."""
    for name, write in files.items():
        write(folder / name)
        _make_readable(folder / name)
        _sync(folder / name)
    return {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in files}


def finish_folder(path: Path, temporary: Path, entries: Mapping[str, Entry]) -> None:
    """Add the manifest to a folder whose files are all written, and rename it to `path`."""
    json_writer({name: entries[name] for name in sorted(entries)})(temporary / MANIFEST)
    _sync(temporary / MANIFEST)
    _sync(temporary)
    temporary.rename(path)
    _sync(path.parent)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, synced so that they survive a power loss."""
    try:
        for folder in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
            folder.mkdir(exist_ok=True)
            _sync(folder.parent)
    except OSError as error:
        raise Unwritable(path, error) from None


def remove_folder(path: Path) -> None:
    """Remove a folder; it is renamed first, so that no partial folder has its name."""
    going = path.with_name(f".{path.name}.old")
    path.rename(going)
    _remove(going)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of dead processes; call it only if no process is writing here."""
    for path in folder.iterdir():
        if LEFTOVER.fullmatch(path.name):
            _remove(path)


def refuse_address(path: str | Path) -> None:
    """Raise if an output is an address, such as s3://bucket/folder; as a `Path` it has a single slash."""
    is_address = ADDRESS.match(str(path)) is not None
    require(not is_address, f"{path} is an address, and only local folders are written; give a folder, then copy it")


def refuse_unwritable(folder: Path) -> None:
    """Raise if a folder certainly cannot be created or written to; creates nothing."""
    refuse_address(folder)
    if broken := broken_link(folder):
        raise FileExistsError(f"{broken}; choose another folder")
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise FileExistsError(f"{folder} cannot be a folder: {nearest} is a file; choose another folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise Unwritable(folder, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def refuse_existing(path: Path) -> None:
    """Raise if `path` exists: a user's files are never overwritten."""
    if path.exists() or path.is_symlink():
        raise FileExistsError(f"{path} exists already; choose another name or remove it first")


def refuse_strange(folder: Path, marks: Iterable[str]) -> None:
    """Raise unless a folder is new, empty except for hidden files, or contains one of `marks`, which identify ours."""
    if not folder.exists() or any((folder / mark).exists() for mark in marks):
        return
    if not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; choose another name for the folder")
    if any(not path.name.startswith(".") for path in folder.iterdir()):
        raise FileExistsError(f"{folder} contains other files; choose an empty or a new folder")


def verify_folder(
    path: Path, required: Iterable[str], part: tuple[int, int] = (0, 1), *, only: str | None = None
) -> dict[str, str]:
    """Raise unless the manifest lists the required files and every listed file has its size and SHA-256.

    Returns the SHA-256 of the files that were checked, by name. With `part` (i, n) only every n-th file from the i-th
    on is checked, so that n processes can share the work; with `only`, just the file of that name.
    """
    manifest = read_json(path / MANIFEST)
    require(isinstance(manifest, dict), f"{MANIFEST} of {path} is not an object")
    unlisted = sorted(set(required) - set(cast(dict[str, Any], manifest)))
    require(not unlisted, f"{MANIFEST} of {path} does not list {', '.join(unlisted)}; the folder is incomplete")
    listed = list(cast(dict[str, Any], manifest).items())
    found = {}
    for name, entry in listed[part[0] :: part[1]]:
        if only not in (None, name):
            continue
        require(Path(name).name == name, f"{MANIFEST} of {path} names {name!r}, which is not a plain file name")
        file = path / name
        is_entry = isinstance(entry, dict) and set(entry) == {"bytes", "sha256"}
        require(is_entry, f"{MANIFEST} of {path}: bad entry {name!r}")
        require(file.is_file(), f"{file} is missing; the folder is incomplete")
        size = file.stat().st_size
        require(size == entry["bytes"], f"{file} has {size:,} bytes, not {entry['bytes']!r}; it is damaged")
        found[name] = sha256(file)
        require(found[name] == entry["sha256"], f"{file} does not match its SHA-256; it is damaged or was edited")
    return found


class Unwritable(OSError):  # noqa: N818 - says what is wrong
    """A folder cannot be created or written to."""

    def __init__(self, folder: Path, why: OSError) -> None:
        super().__init__(f"{folder} cannot be written ({why.strerror or why}); choose another folder")


class Locked(OSError):  # noqa: N818 - says what is wrong
    """Another process uses the folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder while the block runs; it is released when the process dies.

    Raises Locked, naming the process that holds the lock.
    """
    make_folder(folder)
    key = folder.resolve()
    if key in _held:
        raise Locked(f"{folder} is in use by this process already")
    # A record lock is not inherited by data workers, unlike flock's: they may outlive a killed run for seconds.
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise Unwritable(folder, error) from None
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            raise Locked(f"{folder} is in use by process {holder}; stop it, or choose another folder") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        _held.add(key)
        yield
    finally:
        _held.discard(key)
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of a folder; it is asked for, never taken."""
    if folder.resolve() in _held:  # closing a descriptor of our own lock would release it
        return True
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        asked = (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        found = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(FLOCK, *(asked[place] for place in FLOCK_ORDER)))
        return struct.unpack(FLOCK, found)[FLOCK_ORDER.index(0)] != fcntl.F_UNLCK
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_writer(value: object) -> Writer:
    """A writer of `value` as indented JSON, with the same bytes every time."""
    text = json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) + "\n"
    return functools.partial(_write_text, text)


def _write_text(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _make_readable(path: Path) -> None:
    """Set the permissions of any new file; safetensors creates private files."""
    path.chmod(0o666 & ~_umask())


@functools.cache
def _umask() -> int:
    """The umask, read once: reading it changes it for a moment, which other threads would see."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
