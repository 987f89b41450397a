"""Files by name in a folder, a tar or a zip, also a compressed tar or one inside a zip. Nothing is unpacked to disk."""

import os
import stat
import struct
import sys
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vitlab.data.archives.stretches import (
    DEFLATE,
    GZIP_MAGIC,
    Damaged,
    FileStretch,
    Inflated,
    Part,
    Stretch,
)
from vitlab.data.images.refusals import LARGEST_FILE, BadImage, Reason
from vitlab.data.sources.folders import SYSTEM_FOLDERS, Files, PackedFiles
from vitlab.data.sources.tar import TarError, TarFile
from vitlab.errors import printable
from vitlab.files.user_files import check_archive, read_regular
from vitlab.npz import DAMAGE
from vitlab.require import require

MOST_MEMBERS = 2_000_000
LOCAL, LOCAL_MARK = struct.Struct("<4s22x2H"), b"PK\x03\x04"  # before a member of a zip: mark, lengths of what follows
LARGEST_TEXT = 64 * 2**20  # bytes
AGAIN = "download it again"


class Place(NamedTuple):
    """Where a member of a tar is."""

    offset: int
    size: int

    def stretch(self, archive: Stretch) -> Stretch:
        """The bytes at any offset."""
        return Part(archive, self.offset, self.size)

    def read(self, archive: Stretch) -> bytes:
        """All bytes; raises Damaged."""
        data = archive.read(self.offset, self.size)
        if len(data) != self.size:
            raise Damaged("ends too early")
        return data


class ZipPlace(NamedTuple):
    """Where a member of a zip is; `offset` is that of its local header."""

    offset: int
    size: int  # unpacked
    packed: int
    method: int
    checksum: int

    def stretch(self, archive: Stretch) -> Stretch:
        """The bytes at any offset."""
        packed = self._packed(archive)
        return packed if self.method == zipfile.ZIP_STORED else Inflated(packed, DEFLATE, self.checksum)

    def read(self, archive: Stretch) -> bytes:
        """All bytes; raises Damaged."""
        data = self._packed(archive).read(0, self.packed)
        if self.method == zipfile.ZIP_DEFLATED:
            try:
                data = zlib.decompressobj(DEFLATE).decompress(data, self.size + 1)
            except zlib.error as error:
                raise Damaged(f"is damaged ({error})") from None
        if len(data) != self.size or zlib.crc32(data) != self.checksum:
            raise Damaged("does not match its checksum")
        return data

    def _packed(self, archive: Stretch) -> Part:
        if self.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Damaged("is encrypted or compressed in an unusual way")
        header = archive.read(self.offset, LOCAL.size)
        if len(header) < LOCAL.size or header[:4] != LOCAL_MARK:
            raise Damaged("has no header")
        _, name, extra = LOCAL.unpack(header)
        return Part(archive, self.offset + LOCAL.size + name + extra, self.packed)


class Members(ABC):
    """Files below a folder or in an archive; names are relative, with `/`."""

    path: Path  # the folder or archive

    @abstractmethod
    def names(self) -> Sequence[str]:
        """All names, sorted."""

    @abstractmethod
    def contains(self, name: str) -> bool:
        """Whether there is a file of this name."""

    @abstractmethod
    def read(self, name: str, largest: int) -> bytes:
        """Read a file of at most `largest` bytes. Raises ValueError."""

    @abstractmethod
    def choose(self, names: Sequence[str]) -> "Files | ArchiveFiles":
        """Return these files as images by number; one that does not exist is refused when it is read."""

    def lines(self, name: str, largest: int = LARGEST_TEXT) -> list[str]:
        """The stripped, non-empty lines of a text file."""
        text = self.read(name, largest).decode("utf-8-sig", errors="surrogateescape")
        return [line.strip() for line in text.splitlines() if line.strip()]


class FolderMembers(Members):
    """The files below a folder, without hidden ones and those of system folders; links are not followed to folders."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._names: list[str] | None = None

    def names(self) -> Sequence[str]:
        if self._names is None:
            found, waiting = [], [""]
            while waiting:
                inside = waiting.pop()
                for entry in os.scandir(self.path / inside):
                    name = f"{inside}/{entry.name}" if inside else entry.name
                    if entry.name.startswith(".") or entry.name in SYSTEM_FOLDERS:
                        continue
                    (waiting if entry.is_dir(follow_symlinks=False) else found).append(name)
            self._names = sorted(found)
        return self._names

    def contains(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read(self, name: str, largest: int) -> bytes:
        return read_regular(self.path / name, largest)

    def choose(self, names: Sequence[str]) -> Files:
        return Files(self.path, map(os.fsencode, names))


class ArchiveMembers(Members):
    """The files of an archive below `prefix`; `stretch` are the bytes that the places refer to."""

    def __init__(self, path: Path, stretch: Stretch, places: Mapping[str, Place | ZipPlace], prefix: str = "") -> None:
        self.path, self.stretch, self.places, self.prefix = Path(path).absolute(), stretch, places, prefix
        self._names: list[str] | None = None

    def below(self, prefix: str) -> "ArchiveMembers":
        """The files whose names start with `prefix`, named without it."""
        return ArchiveMembers(self.path, self.stretch, self.places, self.prefix + prefix)

    def names(self) -> Sequence[str]:
        if self._names is None:
            cut = len(self.prefix)
            self._names = sorted(name[cut:] for name in self.places if name.startswith(self.prefix))
        return self._names

    def contains(self, name: str) -> bool:
        return self.prefix + name in self.places

    def read(self, name: str, largest: int) -> bytes:
        where = f"{self.path.name} has {name!r:.200}"
        require(self.contains(name), f"{self.path.name} has no {name!r:.200}; {AGAIN}")
        place = self.places[self.prefix + name]
        require(place.size <= largest, f"{where} of {place.size:,} bytes; at most {largest:,} are read")
        try:
            return place.read(self.stretch)
        except Damaged as error:
            raise ValueError(f"{where}, which {error}; {AGAIN}") from None

    def stretch_of(self, name: str) -> Stretch:
        """The bytes of a member at any offset, however large it is."""
        require(self.contains(name), f"{self.path.name} has no {name!r:.200}; {AGAIN}")
        return self.places[self.prefix + name].stretch(self.stretch)

    def choose(self, names: Sequence[str]) -> "ArchiveFiles":
        return ArchiveFiles(self, names)


class ArchiveFiles(PackedFiles):
    """Chosen images of a tar or zip archive; one that does not exist is refused when it is read."""

    def __init__(self, members: ArchiveMembers, names: Sequence[str]) -> None:
        super().__init__(members.path, names, members.stretch.stamp())
        self._stretch = members.stretch
        self._places = [members.places.get(members.prefix + name) for name in names]

    def read(self, index: int) -> bytes:
        name = self.name(index)
        place = self._places[index]
        if place is None:
            raise BadImage(Reason.missing, f"is not in {self._path.name}; {AGAIN}", name)
        if place.size > LARGEST_FILE:
            raise BadImage(Reason.too_large, f"has {place.size:,} bytes; at most {LARGEST_FILE:,} are allowed", name)
        try:
            data = place.read(self._stretch)
        except OSError as error:
            why = f"cannot be read ({error.strerror}); check {self._path.name}"
            raise BadImage(Reason.unreadable, why, name) from None
        except Damaged as error:
            data, damage = b"", str(error)
        else:
            damage = ""
        if self._stretch.stamp() != self._stamp:
            raise BadImage(Reason.changed, f"is in {self._path.name}, which changed since it was opened", name)
        if damage:
            raise BadImage(Reason.corrupt, f"is in {self._path.name} and {damage}; {AGAIN}", name)
        return data


# -- Archives --------------------------------------------------------------------------------------


def is_archive(path: Path) -> bool:
    """Whether a name ends like that of an archive that can be read."""
    return path.name.lower().endswith((".tar", ".tar.gz", ".tgz", ".zip"))


def open_members(path: Path) -> ArchiveMembers:
    """List the members of a tar, a compressed tar or a zip. Raises ValueError for a damaged or incomplete archive."""
    if path.name.lower().endswith(".zip"):
        return ArchiveMembers(path, FileStretch(path), _zip_places(path))
    return _tar_members(path, FileStretch(path), path.name)


def open_inner(outer: ArchiveMembers, name: str) -> ArchiveMembers:
    """List the members of a tar that is a member of another archive."""
    return _tar_members(outer.path, outer.stretch_of(name), f"{outer.path.name}, {name}")


def _tar_members(path: Path, stretch: Stretch, name: str) -> ArchiveMembers:
    stretch = gunzipped(stretch)
    tar, places = _TarStretch(stretch), dict[str, Place]()
    try:
        for member in tar.members():
            if member.kind == "file":
                plain = os.fsdecode(member.name).removeprefix("./")
                places[plain] = Place(member.offset, member.size)
                require(len(places) <= MOST_MEMBERS, f"{name} has over {MOST_MEMBERS:,} members")
    except TarError as error:
        raise ValueError(f"{name} is {error.reason}: it is not a complete tar file; {AGAIN}") from None
    except Damaged as error:
        raise ValueError(f"{name} {error}; {AGAIN}") from None
    return ArchiveMembers(path, stretch, places)


def gunzipped(stretch: Stretch) -> Stretch:
    """What a gzip file unpacks to; any other bytes as they are."""
    return Inflated(stretch) if stretch.read(0, 2) == GZIP_MAGIC else stretch


class _TarStretch(TarFile):
    """The headers of a tar that is a stretch; its end is known when it is reached."""

    def __init__(self, stretch: Stretch) -> None:
        self._stretch = stretch

    def stamp(self) -> tuple[int, int]:
        return self._stretch.stamp()

    def read(self, offset: int, size: int) -> bytes:
        return self._stretch.read(offset, size)

    def end(self) -> int:
        return sys.maxsize if isinstance(self._stretch, Inflated | Part) else self.stamp()[0]


def _zip_places(path: Path) -> dict[str, ZipPlace]:
    check_archive(path, MOST_MEMBERS)
    try:
        with zipfile.ZipFile(path) as archive:
            listed = archive.infolist()
    except DAMAGE as error:
        raise ValueError(f"{path.name} is not a complete zip file ({printable(str(error))[:100]}); {AGAIN}") from None
    places = {}
    for member in listed:
        kind = stat.S_IFMT(member.external_attr >> 16)
        if not member.is_dir() and kind in (0, stat.S_IFREG):
            method = -1 if member.flag_bits & 1 else member.compress_type  # -1: encrypted
            sizes = member.file_size, member.compress_size
            places[member.filename] = ZipPlace(member.header_offset, *sizes, method, member.CRC)
    return places
