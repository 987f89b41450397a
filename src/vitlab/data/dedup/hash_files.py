"""Hashes and thumbnails of a data set in files, so that each picture is read once.

FOLDER/set.json       which pictures, and how they are hashed
FOLDER/00000.npz      of pictures 0 to 1023; written whole, so it is complete if it exists
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import add
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from vitlab.data.dedup.hashing import BITS, SIDE, digests, perceptual_hashes, thumbnail
from vitlab.data.fingerprint import FINGERPRINT_SAMPLES, state
from vitlab.data.loading.accounting import Quarantined
from vitlab.data.loading.workers import RangeReader
from vitlab.data.source import Sample, Source, decode
from vitlab.data.splits import Subset
from vitlab.data.survey import content_hash
from vitlab.files.store import make_folder, remove_folder, remove_leftovers, replacing, write_json
from vitlab.files.strict_json import read_json
from vitlab.npz import NpzError, damage_explained, open_archive, read_array
from vitlab.require import require

CARD: Final = "set.json"
PER_FILE = 1024  # pictures; 1 MB
READ = 64  # pictures between two reports
ARRAYS = {"numbers", "hashes", "contents", "thumbnails", "digests", "bad", "state"}


@dataclass(frozen=True)
class Hashes:
    """What is known of n pictures, and which could not be read."""

    numbers: np.ndarray  # (n,) in the data set, ascending
    hashes: np.ndarray  # (n,) of uint64
    digests: np.ndarray  # (n, 2) of uint64: of the thumbnails
    contents: np.ndarray  # (n, 2) of uint64: of the files, or of pixels that are in none
    thumbnails: np.ndarray  # (n, 32, 32) of uint8
    bad: tuple[Quarantined, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class HashFolder:
    """The folder of a data set of `samples` pictures."""

    path: Path
    samples: int

    @property
    def files(self) -> int:
        """The number of files of a finished folder."""
        return -(-self.samples // PER_FILE)

    def name(self, number: int) -> str:
        """Return the name of file `number`."""
        return f"{number:05d}.npz"

    def part(self, number: int) -> range:
        """Return the pictures of a file."""
        return range(self.samples)[number * PER_FILE : (number + 1) * PER_FILE]

    def begin(self, source: Source) -> int:
        """Start or continue the folder; returns how many files were removed because their pictures have changed.

        Files are removed if the data set is another one, if image files have another size or time, if they are
        damaged, and always for data that is in no file, whose changes cannot be noticed.
        """
        card = {"format": "vitlab-hashes", "version": 1, "bits": BITS, "side": SIDE, "per_file": PER_FILE}
        card |= {"samples": self.samples, "pictures": identity(source)}
        outdated = 0
        if self.path.exists() and (not (self.path / CARD).is_file() or read_json(self.path / CARD) != card):
            outdated = sum(1 for _ in self.path.glob("*.npz"))
            remove_folder(self.path)
        make_folder(self.path)
        remove_leftovers(self.path)
        write_json(self.path / CARD, card)
        for number in range(self.files):
            file = self.path / self.name(number)
            if file.is_file() and not self._is_current(file, source, number):
                file.unlink()
                outdated += 1
        return outdated

    def read(self, number: int) -> Hashes:
        """Read a file; raises ValueError if it is damaged."""
        arrays = _arrays(self.path / self.name(number), ARRAYS - {"state"})
        bad = tuple(Quarantined(*row) for row in arrays.pop("bad").tolist())
        return Hashes(**cast(Any, arrays), bad=bad)

    def write(self, number: int, found: Hashes, source: Source) -> None:
        """Write a file."""
        arrays = {name: getattr(found, name) for name in ARRAYS - {"bad", "state"}}
        rows = [(one.id, one.reason, one.detail, one.sha256) for one in found.bad]
        arrays |= {"bad": np.array(rows, np.str_).reshape(-1, 4), "state": np.array(self._state(source, number))}
        with replacing(self.path / self.name(number)) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)

    def _state(self, source: Source, number: int) -> str:
        own = self.part(number)
        return state(Subset(source, len(own), partial(add, own.start))) or source.identity

    def _is_current(self, file: Path, source: Source, number: int) -> bool:
        now = self._state(source, number)
        try:
            _arrays(file, ARRAYS)  # the checksums too
            return bool(now) and str(_arrays(file, {"state"})["state"]) == now
        except ValueError:
            return False


def _arrays(file: Path, wanted: set[str]) -> dict[str, np.ndarray]:
    try:
        with open_archive(file, len(ARRAYS)) as archive, damage_explained():
            names = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            return {name: read_array(archive, names[name]) for name in wanted}
    except NpzError as error:
        raise ValueError(f"{file} is damaged: {error}; remove it and start again") from None


def identity(source: Source) -> str:
    """Hash the number and the ids of the pictures, up to two million of them; labels do not matter here."""
    digest = hashlib.sha256(f"{len(source)}\0{source.identity}\0".encode("utf-8", "surrogateescape"))
    samples = min(len(source), FINGERPRINT_SAMPLES)
    for place in range(samples):
        digest.update(source.id(place * len(source) // samples).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def hash_part(source: Source, part: range) -> Iterator[int | Hashes]:
    """Hash the pictures of a part: yields how many are done now and then, and the result at the end."""
    require(not source.is_prepared, "the data set gives float tensors, so there are no pictures to compare")
    reader, thumbnails, contents, numbers, bad = _Thumbnails(source, 0), [], [], [], []
    for start in range(part.start, part.stop, READ):
        found, refused = reader[range(start, min(start + READ, part.stop))]
        for number, small, content in found:
            numbers.append(number)
            thumbnails.append(small)
            contents.append(content)
        bad += [sample for _, sample in refused]
        yield len(numbers) + len(bad)
    small = np.stack(thumbnails) if thumbnails else np.zeros((0, SIDE, SIDE), np.uint8)
    yield Hashes(
        numbers=np.array(numbers, np.int64),
        hashes=perceptual_hashes(small),
        digests=digests(small),
        contents=np.frombuffer(b"".join(contents), "<u8").reshape(-1, 2),
        thumbnails=small,
        bad=tuple(bad),
    )


class _Thumbnails(RangeReader):
    """Keeps number, thumbnail and content hash of a sample."""

    def use(self, sample: Sample, epoch: int, position: int) -> tuple[int, np.ndarray, bytes]:
        return position, thumbnail(decode(sample, self.source.max_pixels).image), content_hash(sample)[:16]
