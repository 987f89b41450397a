"""A hash of every file of a data set, to tell whether the data is still what a run started with.

Size and times of a file only decide whether to read it; its content counts. Data that was copied, restored or moved is
the same data; other pictures under the same names are not.
"""

import io
import os
import stat
import threading
import zipfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
from numpy.lib import format as npy

from vitlab.data.images.refusals import BadImage
from vitlab.data.indexing.hashing import BLOCK, data_hash, data_size, new_hash
from vitlab.data.remote.files import RemoteFile, RemotePaths
from vitlab.data.source import Paths, Source
from vitlab.files.user_files import open_regular
from vitlab.require import require

MOST_HASHED = 64 * 2**30  # bytes of one data set; of a larger one evenly spaced files are hashed, and all are sized
MOST_REQUESTED = 2 * 2**30  # bytes of remote data, which have to be transferred
REQUESTED = 16 * 2**20  # bytes of a remote file that are read at a time
PART = 64 * 2**20  # bytes, or FILES files, that a thread takes at a time
FILES = 256
THREADS = min(8, os.cpu_count() or 1)
LOOK = 0.2  # seconds between two reports of progress
ENTRY = np.dtype([("size", "<i8"), ("mtime", "<i8"), ("ctime", "<i8"), ("hash", "<u8", (2,))])  # times in nanoseconds
MISSING = (-1, -1, -1)  # size and times of what is not a regular file
NOT_REPEATABLE = (
    "the data set returns something else each time an item is read, so it cannot be recognised; leave random "
    "transforms out of it and set the recipe's augmentation instead"
)
Progress = Callable[[int, int], object]  # bytes read so far, and in all


@dataclass(frozen=True)
class Contents:
    """The record of a data set: the fingerprint of its ids and labels, and an ENTRY of 40 bytes for each file.

    A hash of zeros stands for a file that was not read. Data in no file has an entry per sample; drawn data has none.
    """

    fingerprint: str
    files: np.ndarray  # (n,) of ENTRY

    @property
    def is_hashed(self) -> np.ndarray:
        """(n,) of bool."""
        return np.asarray(self.files["hash"].any(axis=1))

    def is_identical(self, other: "Contents") -> bool:
        """Whether everything is the same, including the times."""
        return self.fingerprint == other.fingerprint and np.array_equal(self.files, other.files)


@dataclass(frozen=True)
class Comparison:
    """How a data set differs from its record."""

    now: Contents  # with the current times
    has_other_samples: bool  # other ids or labels, or another number of files
    changed: tuple[int, ...]  # numbers of the files, or samples, whose content changed
    unchecked: int  # files of the same size and another time whose content was never recorded
    hint: str = ""  # why unchanged data may look changed

    @property
    def is_same(self) -> bool:
        """Whether no difference was found."""
        return not (self.has_other_samples or self.changed)


def _no_progress(done: int, total: int) -> None:
    pass


def take(
    source: Source,
    fingerprint: str,
    known: Contents | None = None,
    progress: Progress = _no_progress,
    most: int = MOST_HASHED,
) -> Contents:
    """Record what a source holds; files with the size and times of `known` ones are not read again.

    At most `most` bytes are read, of remote files at most MOST_REQUESTED.
    """
    paths = source.paths()
    if paths is None:
        return Contents(fingerprint, _in_memory(source))
    files = _stamps(paths)
    if known is not None and len(known.files) == len(files):
        same = _same_stamps(files, known.files)
        files["hash"][same] = known.files["hash"][same]
    wanted = np.flatnonzero((files["size"] >= 0) & ~files["hash"].any(axis=1))
    affordable = min(most, MOST_REQUESTED) if isinstance(paths, RemotePaths) else most
    _hash_into(files, paths, _affordable(files["size"], wanted, affordable), progress)
    return Contents(fingerprint, files)


def compare(
    before: Contents, source: Source, fingerprint: str, known: Contents | None = None, progress: Progress = _no_progress
) -> Comparison:
    """Compare a source with its record; only files with another size or time, and not as in `known`, are read."""
    paths = source.paths()
    files = _in_memory(source) if paths is None else _stamps(paths)
    if fingerprint != before.fingerprint or len(files) != len(before.files):
        return Comparison(Contents(fingerprint, files), has_other_samples=True, changed=(), unchecked=0)
    if paths is None:
        places = np.flatnonzero((files["hash"] != before.files["hash"]).any(axis=1)).tolist()
        changed = tuple(place * len(source) // len(files) for place in places)
        again = _entry(source, changed[0])["hash"] if changed else ()
        hint = "" if np.array_equal(again, files["hash"][places[0]] if changed else ()) else NOT_REPEATABLE
        return Comparison(Contents(fingerprint, files), False, changed, 0, hint)
    same = _same_stamps(files, before.files)
    files["hash"][same] = before.files["hash"][same]
    resized = files["size"] != before.files["size"]
    doubtful = np.flatnonzero(~same & ~resized & (files["size"] >= 0))
    read = doubtful[before.is_hashed[doubtful]]
    if known is not None and len(known.files) == len(files):
        fresh = read[_same_stamps(files[read], known.files[read])]
        files["hash"][fresh] = known.files["hash"][fresh]
    _hash_into(files, paths, read[~files["hash"][read].any(axis=1)], progress)
    other = resized.copy()
    other[read] = (files["hash"][read] != before.files["hash"][read]).any(axis=1)
    changed = tuple(np.flatnonzero(other).tolist())
    return Comparison(Contents(fingerprint, files), False, changed, len(doubtful) - len(read))


# -- On disk -------------------------------------------------------------------------------------


def to_bytes(sets: Mapping[str, Contents]) -> bytes:
    """Encode the records of several data sets, by name, as an .npz archive."""
    arrays = {f"{name}.files": contents.files for name, contents in sets.items()}
    arrays |= {f"{name}.fingerprint": np.array(contents.fingerprint) for name, contents in sets.items()}
    archived = io.BytesIO()
    with zipfile.ZipFile(archived, "w") as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            npy.write_array(member, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue())  # without a time: the same bytes
    return archived.getvalue()


def from_bytes(data: bytes) -> dict[str, Contents]:
    """Decode what `to_bytes` wrote; raises ValueError for anything else."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"not a valid record: {error}") from None
    names = [name.removesuffix(".files") for name in arrays if name.endswith(".files")]
    sound = all(arrays[f"{name}.files"].dtype == ENTRY and f"{name}.fingerprint" in arrays for name in names)
    require(sound and bool(names), "not a valid record of data")
    return {name: Contents(str(arrays[f"{name}.fingerprint"]), arrays[f"{name}.files"]) for name in names}


# -- Stamps and hashes ---------------------------------------------------------------------------


def _stamps(paths: Paths) -> np.ndarray:
    """(n,) of ENTRY without hashes. ctime is included because it cannot be set back; of remote files it is the tag."""
    files = np.zeros(len(paths), ENTRY)
    for number in range(len(paths)):
        stamp = paths.stamp(number) if isinstance(paths, RemotePaths) else _stamp(paths[number])
        files[number] = (*stamp, (0, 0))
    return files


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116  pathlib remembers every name it has seen
    except (OSError, ValueError):
        return MISSING
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns) if stat.S_ISREG(status.st_mode) else MISSING


def _same_stamps(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    return np.logical_and.reduce([ours[field] == theirs[field] for field in ("size", "mtime", "ctime")])


def _affordable(sizes: np.ndarray, wanted: np.ndarray, most: int) -> np.ndarray:
    """All wanted files, or evenly spaced ones of at most `most` bytes in total."""
    total = int(sizes[wanted].sum())
    if total <= most:
        return wanted
    chosen = wanted[:: -(-total // most)]
    return chosen[np.cumsum(sizes[chosen]) <= most]


class _Reading:
    """How much the threads have read, and whether they should stop."""

    def __init__(self) -> None:
        self.read, self.is_over = 0, False
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self.read += size


def _hash_into(files: np.ndarray, paths: Paths, numbers: np.ndarray, progress: Progress) -> None:
    """Fill in the hashes of the files with these numbers, using several threads."""
    total, reading = int(files["size"][numbers].sum()), _Reading()
    if not len(numbers):
        return
    progress(0, total)
    pool = ThreadPoolExecutor(THREADS)
    try:
        waiting = {pool.submit(_hash_part, paths, part, reading) for part in _parts(files["size"], numbers)}
        while waiting:
            done, waiting = wait(waiting, timeout=LOOK, return_when=FIRST_COMPLETED)
            for part in done:
                for number, digest in part.result():
                    files["hash"][number] = digest
            progress(min(reading.read, total), total)
    finally:
        reading.is_over = True
        pool.shutdown(cancel_futures=True)


def _parts(sizes: np.ndarray, numbers: np.ndarray) -> Iterable[list[int]]:
    part, size = [], 0
    for number in numbers.tolist():
        part.append(number)
        size += int(sizes[number])
        if size >= PART or len(part) == FILES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _hash_part(paths: Paths, numbers: list[int], reading: _Reading) -> list[tuple[int, np.ndarray]]:
    if isinstance(paths, RemotePaths):
        return [(number, _hash_remote(paths.file(number), reading)) for number in numbers if not reading.is_over]
    return [(number, _hash_file(paths[number], reading)) for number in numbers if not reading.is_over]


def _hash_remote(file: RemoteFile, reading: _Reading) -> np.ndarray:
    """Hash a remote file: its bytes have the hash of a local copy."""
    digest = new_hash()
    for start in range(0, file.facts.size, REQUESTED):
        if reading.is_over:
            break
        digest.update(block := file.read(start, REQUESTED))
        reading.add(len(block))
    return np.frombuffer(digest.digest(), "<u8")


def _hash_file(path: str, reading: _Reading) -> np.ndarray:
    """Hash a file; zeros if it cannot be read, because the image gate will refuse it later."""
    digest = new_hash()
    try:
        with open_regular(path) as file:
            while not reading.is_over and (block := file.read(BLOCK)):
                digest.update(block)
                reading.add(len(block))
    except OSError:
        return np.zeros(2, "<u8")
    return np.frombuffer(digest.digest(), "<u8")


def _in_memory(source: Source) -> np.ndarray:
    """An entry per sample of a source without files; none if its samples are drawn."""
    if source.identity:
        return np.zeros(0, ENTRY)
    samples = min(len(source), source.most_hashed)
    entries = np.zeros(samples, ENTRY)
    for place in range(samples):
        entries[place] = _entry(source, place * len(source) // samples)
    return entries


def _entry(source: Source, number: int) -> np.ndarray:
    """The entry of one sample; a size of -1 and no hash if it cannot be read."""
    entry = np.zeros((), ENTRY)
    try:
        data = source.item(number).data
    except BadImage:
        entry["size"] = -1
        return entry
    entry[()] = (data_size(data), 0, 0, np.frombuffer(data_hash(data), "<u8"))
    return entry
