"""Hashes of contents: of the bytes of an image file, or of pixels with their shape."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from torch import Tensor

from vitlab.files.user_files import open_regular

DIGEST = 16  # bytes of a hash, BLAKE2b
BLOCK = 2**20  # bytes read at a time


def data_hash(data: bytes | np.ndarray | Tensor) -> bytes:
    """Hash an image file, or the shape and the values of pixels."""
    digest = new_hash()
    if not isinstance(data, bytes):
        digest.update(f"{tuple(data.shape)}".encode())
    digest.update(data if isinstance(data, bytes) else np.ascontiguousarray(data).data)
    return digest.digest()


def data_size(data: bytes | np.ndarray | Tensor) -> int:
    """The size of what `data_hash` hashes, in bytes."""
    return len(data) if isinstance(data, bytes) else int(np.asarray(data).nbytes)


def file_hash(path: Path) -> str:
    """Hash a file of any size, in hexadecimal."""
    with open_regular(path) as file:
        return stream_hash(file)[1].hex()


def stream_hash(file: BinaryIO) -> tuple[int, bytes]:
    """The size and the hash of all that is left of a file."""
    digest, size = new_hash(), 0
    while block := file.read(BLOCK):
        digest.update(block)
        size += len(block)
    return size, digest.digest()


def new_hash() -> "hashlib.blake2b":
    """A hash to which bytes are added piece by piece."""
    return hashlib.blake2b(digest_size=DIGEST)


class ListDigest:
    """A running hash of the ids and labels of a data set."""

    def __init__(self) -> None:
        self._digest = new_hash()

    def add(self, name: bytes, labels: tuple[int, ...]) -> None:
        """Add one sample."""
        self._digest.update(b"%d %s%s" % (len(name), name, repr(labels).encode()))

    def finish(self, class_names: Iterable[str]) -> str:
        """The hash of all samples and of the classes, in hexadecimal."""
        for name in class_names:
            self._digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
        return self._digest.hexdigest()
