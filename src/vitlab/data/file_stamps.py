"""Whether files are what they were, by size and time of the last change: nothing is read."""

import hashlib
import os
from pathlib import Path

from vitlab.data.source import Source


def file_stamp(path: str | Path) -> tuple[int, int]:
    """Size in bytes and time of the last change in nanoseconds; (-1, -1) of what is not there."""
    try:
        status = os.stat(path)  # noqa: PTH116  pathlib remembers every name it has seen
    except (OSError, ValueError):
        return -1, -1
    return status.st_size, status.st_mtime_ns


def sample_stamp(source: Source, index: int) -> tuple[int, ...]:
    """That of the file, or of the files, a sample lies in; empty where samples are drawn or built in."""
    return source.stamp(index) if hasattr(source, "stamp") else ()


def state(source: Source) -> str:
    """A hash of the stamps of all samples, "" where they lie in no file.

    The fingerprint of a data set says which samples it has, on any machine; its state says, on one machine, whether
    somebody has overwritten some of them since.
    """
    digest, is_in_files = hashlib.sha256(), False
    for index in range(len(source)):
        stamp = sample_stamp(source, index)
        is_in_files = is_in_files or bool(stamp)
        digest.update(repr(stamp).encode())
    return digest.hexdigest() if is_in_files else ""
