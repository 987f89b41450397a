"""The identity of a data set: a fingerprint of its samples, and the state of its files."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitlab.data.class_names import check_class_names
from vitlab.data.source import Source

FINGERPRINT_SAMPLES = 2_000_000  # evenly spaced ones of a larger set


@dataclass(frozen=True)
class DataCard:
    """The class names and the fingerprint of a data set; stored with a run and with the model it trains."""

    spec: str
    samples: int
    class_names: tuple[str, ...]
    fingerprint: str

    def check(self, found: "DataCard", *, same_samples: bool = True, command: str = "vitlab resume RUN") -> None:
        """Raise unless `found` describes the same data: the same classes in the same order, then the same samples."""
        check_class_names(self.class_names, found.class_names)
        if same_samples and found.fingerprint != self.fingerprint:
            now = f"{self.samples:,} samples of {self.spec!r} then, {found.samples:,} now; some differ in id or label"
            raise ValueError(f"the data has changed: {now}; start a new run, or {way_out(command)}")


def way_out(command: str) -> str:
    """Return what a user can do about data that has changed; `command` continues the run."""
    flag = ", allow_changed=True" if command.startswith("vitlab.") else " --allow-changed"
    anyway = f"continue anyway with: {command.removesuffix(')')}{flag}{')' * command.endswith(')')}"
    return f"restore the data, or {anyway} (the result then says that the run is not exact)"


def describe(source: Source, spec: str) -> DataCard:
    """Make the card of a source."""
    return DataCard(spec, len(source), tuple(source.class_names), fingerprint(source))


def fingerprint(source: Source) -> str:
    """Hash the classes, the number of samples, and the ids and labels of up to two million samples.

    For drawn images the hash includes the seed and size they are drawn with (`Source.identity`), and for images that
    are not decoded exactly the way they are decoded.
    """
    digest = hashlib.sha256()
    samples = min(len(source), FINGERPRINT_SAMPLES)
    identity = [source.identity] if source.identity else []
    identity += [] if source.decoding == "exact" else [f"decode={source.decoding}"]
    for text in (*source.class_names, str(len(source)), *identity):
        digest.update(text.encode("utf-8", "surrogateescape") + b"\0")
    for place in range(samples):
        number = place * len(source) // samples
        entry = f"{source.id(number)}\0{source.label(number)}\0"
        digest.update(entry.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def unused_classes(source: Source) -> tuple[str, ...]:
    """Return the classes without samples, in order; of a set of over two million samples none is returned."""
    unused = set(range(len(source.class_names))) if len(source) <= FINGERPRINT_SAMPLES else set()
    # In random order, a few samples per class usually show that none is unused; the rest is then skipped.
    for number in np.random.default_rng(0).permutation(len(source)).tolist() if unused else ():
        unused.difference_update(source.label(number))
        if not unused:
            break
    return tuple(source.class_names[label] for label in sorted(unused))


def file_stamp(path: str | Path | int) -> tuple[int, int]:
    """Return size in bytes and modification time in nanoseconds of a file, by path or descriptor; else (-1, -1)."""
    try:
        status = os.stat(path)  # noqa: PTH116  pathlib remembers every name it has seen
    except (OSError, ValueError):
        return -1, -1
    return status.st_size, status.st_mtime_ns


def file_state(path: str | Path) -> tuple[int, int, int]:
    """Return size, modification time and change time of a file; else (-1, -1, -1).

    The change time also tells of content that was replaced and got its old modification time back. It differs between
    copies, so it belongs into scratch files only.
    """
    try:
        status = os.stat(path)  # noqa: PTH116  pathlib remembers every name it has seen
    except (OSError, ValueError):
        return -1, -1, -1
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def state(source: Source) -> str:
    """Hash the stamps of all samples; "" for samples that are in no file.

    The fingerprint says which samples a data set has, on any machine. Its state says, on one machine, whether some of
    them were overwritten since. No file is read.
    """
    digest, is_in_files = hashlib.sha256(), False
    for index in range(len(source)):
        stamp = source.stamp(index)
        is_in_files = is_in_files or bool(stamp)
        digest.update(repr(stamp).encode())
    return digest.hexdigest() if is_in_files else ""
