"""Where the files of an image set are: in the folder of all downloads or in one of their own, unpacked or not."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vitlab.data.archives.members import FolderMembers, Members, open_inner, open_members
from vitlab.errors import first_few


class Missing(FileNotFoundError):  # noqa: N818 - says what is wrong
    """A file of an image set is not there."""


@dataclass(frozen=True)
class Place:
    """The folders in which the files of a set may be.

    A set whose files have names that others use too (`images`, `train`) must be in a folder of its own.
    """

    root: Path
    names: tuple[str, ...]  # of the set's own folder
    needs_own: bool = False

    def folders(self) -> Iterator[Path]:
        """Yield the folders that exist, the set's own first."""
        yield from (self.root / name for name in self.names if (self.root / name).is_dir())
        if not self.needs_own:
            yield self.root

    def file(self, *names: str) -> Path:
        """Find the first of these files that exists; raises Missing."""
        for folder in self.folders():
            for name in names:
                if (folder / name).is_file():
                    return folder / name
        raise self._missing(names)

    def find(self, *names: str) -> Path | None:
        """Find a file as `file` does; None if there is none."""
        try:
            return self.file(*names)
        except Missing:
            return None

    def members(self, inside: tuple[str, ...], archives: tuple[str, ...]) -> Members:
        """List what is in a folder named `inside`, unpacked or in an archive; raises Missing."""
        for folder in self.folders():
            for name in inside:
                if (folder / name).is_dir():
                    return FolderMembers(folder / name)
        path = self.find(*archives)
        if path is None:
            raise self._missing((*(f"{name}/" for name in inside), *archives))
        return _below(path, inside)

    def _missing(self, names: tuple[str, ...]) -> Missing:
        """The error; of many forms that a file may have, it names the first and the last, which is the download."""
        forms = " or ".join(dict.fromkeys((names[0], names[-1])))
        where = f"{self.root / self.names[0]}{'' if self.needs_own else ' or above it'}"
        return Missing(f"{forms} is missing; put it into {where}")


def _below(path: Path, inside: tuple[str, ...]) -> Members:
    """The members of an archive that are in a folder of one of these names, also if the archive is in another."""
    outer = open_members(path)
    for folder in inside:
        for name in outer.names():
            at = f"/{name}".find(f"/{folder}/")
            if at >= 0:
                return outer.below(f"{name[:at]}{folder}/")
        for name in outer.names():
            if name.endswith((f"{folder}.tar.gz", f"{folder}.tar")):
                inner = open_inner(outer, name)
                return inner.below(f"{folder}/")
    found = sorted({name.partition("/")[0] for name in outer.names()})
    raise ValueError(f"{path.name} has no folder {' or '.join(inside)}; it has {first_few(found, 5)}")
