"""A data set that tells in a file how often it was opened and how often all its labels were read."""

import os
import time
from collections import Counter
from pathlib import Path

import numpy as np

from vitlab.cli import main
from vitlab.data.source import Sample, Source
from vitlab.data.sources.catalogue import KINDS, Kind

OPENED, READ = "opened", "read"


class Told(Source):
    """twelve pictures of three colours; `path` is where it tells"""

    class_names = ("blue", "green", "red")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._labels: set[int] = set()
        self._tell(OPENED)

    def __len__(self) -> int:
        return 12

    def item(self, index: int) -> Sample:
        pixels = np.zeros((16, 16, 3), np.uint8)
        pixels[..., index % 3] = 200
        return Sample(pixels, (index % 3,), self.id(index))

    def label(self, index: int) -> tuple[int, ...]:
        self._labels.add(index)
        if len(self._labels) == len(self):  # a fingerprint reads all of them
            self._labels.clear()
            self._tell(READ)
        return (index % 3,)

    def id(self, index: int) -> str:
        return str(index)

    def _tell(self, what: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{what} {os.getpid()}\n")


def told(path: Path) -> list[dict[str, int]]:
    """What each process did with the data, how often."""
    found: dict[str, Counter[str]] = {}
    for line in path.read_text().splitlines():
        what, process = line.split()
        found.setdefault(process, Counter())[what] += 1
    return [dict(one) for one in found.values()]


def start_slowly(words: list[str], seconds: float) -> int:
    """What each rank does: a command on such data, which all ranks but the first take their time to open."""

    class Slow(Told):
        """Takes its time to open on all ranks but the first."""

        def __init__(self, path: Path) -> None:
            super().__init__(path)
            time.sleep(seconds if os.environ["RANK"] != "0" else 0.0)

    KINDS["told"] = Kind(Slow, "the same, from a slow disk")
    return main(words)
