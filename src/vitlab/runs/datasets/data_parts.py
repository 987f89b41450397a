"""How data is cut into the parts of some work: some thousand samples of any source, or a tar shard."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from vitlab.data.indexing.listing import ListedSamples, Listing
from vitlab.data.sources.shards import ShardFolder

PER_PART = 4096  # samples
LISTING = "listing.index"


@dataclass(frozen=True)
class SampleParts:
    """Work on the samples of a listing, some thousand in each part."""

    listing: Path
    spec: str
    root: str
    samples: int
    per_part: int
    folder: Path
    place: Path  # the working directory, which paths in the spec are relative to
    unit: ClassVar[Literal["images", "bytes"]] = "images"

    @classmethod
    def of(cls, listing: Listing, per_part: int, folder: Path, **more: Any) -> Self:
        """The work on a listing, with paths that other processes can use; `more` are fields of the kind of work."""
        return cls(
            listing=listing.path.absolute(),
            spec=listing.spec,
            root=listing.root,
            samples=listing.samples,
            per_part=per_part,
            folder=folder.absolute(),
            place=Path.cwd(),
            **more,
        )

    def __getstate__(self) -> dict[str, object]:
        """The fields without what is open, which other processes open themselves."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def parts(self) -> int:
        return -(-self.samples // self.per_part)

    def amount(self, part: int) -> int:
        return min(self.per_part, self.samples - part * self.per_part)

    def result(self, part: int) -> Path:
        """The file with what was found in a part."""
        return self.folder / f"{part:06d}.part"

    def outputs(self, part: int) -> tuple[Path, ...]:
        return (self.result(part),)

    def state(self, part: int) -> str:
        start = part * self.per_part
        return self.opened.state(start, start + self.amount(part))

    @cached_property
    def opened(self) -> ListedSamples:
        """The samples, opened once by each process."""
        with contextlib.chdir(self.place):  # a worker of Ray has another
            return ListedSamples(self.listing, self.spec, self.root)


@dataclass(frozen=True)
class ShardParts:
    """Work on tar shards, each as a part."""

    source: ShardFolder
    shards: tuple[tuple[str, int], ...]  # names and sizes
    folder: Path
    unit: ClassVar[Literal["images", "bytes"]] = "bytes"

    @property
    def parts(self) -> int:
        return len(self.shards)

    def amount(self, part: int) -> int:
        return self.shards[part][1]

    def result(self, part: int) -> Path:
        """The file with what was found in a shard."""
        return self.folder / f"{part:06d}.part"

    def outputs(self, part: int) -> tuple[Path, ...]:
        return (self.result(part),)

    def state(self, part: int) -> str:
        return repr(self.source.state(self.shards[part][0]))


def sizes_of(source: ShardFolder, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """The names and sizes of shards; 0 for those that are missing."""
    return tuple((name, max(source.stamp(name)[0], 0)) for name in names)
