"""Data sets of a few files with contents of their own, for what reads and copies bytes."""

import tarfile
from io import BytesIO
from pathlib import Path


def photos(root: Path, count: int = 30) -> str:
    """A folder of three classes; every file has its own bytes."""
    for number in range(count):
        path = root / "abc"[number % 3] / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"image {number} ".encode() * (number + 1))
    return f"folder:{root}"


def write_shards(folder: Path, shards: int = 3, samples: int = 4) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        with tarfile.open(folder / f"s{shard}.tar", "w") as tar:
            for number in range(samples):
                for name, data in (
                    (f"{number}.jpg", f"{shard} {number}".encode() * 50),
                    (f"{number}.cls", b"%d" % number),
                ):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, BytesIO(data))
