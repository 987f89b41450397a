"""Write tar shards in the webdataset convention, which `shards.py` reads, and continue where an earlier write ended."""

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from vitlab.data.images.gate import read_image
from vitlab.data.images.refusals import CONVERSIONS, READ_SUFFIXES, SUFFIXES, BadImage, Reason
from vitlab.data.images.structure import sniff
from vitlab.data.source import Source
from vitlab.errors import printable
from vitlab.files.store import make_folder, replacing
from vitlab.require import require

PER_SHARD = 1_024  # samples
FORMATS = ("JPEG", "PNG", "WEBP")  # that are stored as they are
SUFFIX_OF = {format: suffix[1:] for suffix, format in reversed(SUFFIXES.items()) if suffix in READ_SUFFIXES}


class Stored(NamedTuple):
    """The bytes of a sample in a shard, and the suffix of their name there."""

    data: bytes
    suffix: str
    is_damaged: bool = False  # it could not be decoded, and is stored as it is


class Written(NamedTuple):
    """How far the writing is: samples that are in shards, and in all."""

    done: int
    total: int


def write_shards(source: Source, folder: Path, name: str, per_shard: int = PER_SHARD) -> Iterator[Written]:
    """Write the samples of a source into `folder`/`name`-00000.tar and so on; yields after every sample.

    A shard is a file under its final name only if it is complete. Shards that exist are not written again. Image files
    are stored as they are, pixels as PNG. Index the folder afterwards (`index_folder`).
    """
    require(per_shard >= 1, f"{per_shard} samples per shard; at least 1 is needed")
    make_folder(folder)
    yield Written(0, len(source))
    for shard, start in enumerate(range(0, len(source), per_shard)):
        path, numbers = folder / f"{name}-{shard:05d}.tar", range(len(source))[start : start + per_shard]
        if not path.exists():
            with replacing(path) as temporary, tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
                for number in numbers:
                    _add(tar, source, number)
                    yield Written(number, len(source))
        yield Written(numbers.stop, len(source))


def _add(tar: tarfile.TarFile, source: Source, number: int) -> None:
    stored = storable(source.item(number).data, source.id(number))
    (label,) = source.label(number)
    add_members(tar, f"{number:09d}", {stored.suffix: stored.data, "cls": str(label).encode()})


def add_members(tar: tarfile.TarFile, key: str, contents: Mapping[str, bytes]) -> int:
    """Append the files of a sample, by suffix; returns where the content of the first one begins."""
    start = tar.offset + tarfile.BLOCKSIZE
    for suffix, content in contents.items():
        member = tarfile.TarInfo(f"{key}.{suffix}")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return start


def storable(data: bytes | np.ndarray | Tensor, name: str) -> Stored:
    """What shards hold of a sample: files of the usual formats as they are, pixels and other formats as PNG.

    A file that is not a readable image is stored too, so that it is refused where the shards are read, and counted. It
    has the suffix of its format, or that of `name`. Raises ValueError if its format needs an extra that is missing.
    """
    if isinstance(data, np.ndarray):
        return Stored(png(data), "png")
    require(isinstance(data, bytes), "float tensors cannot be stored in shards")
    assert isinstance(data, bytes)
    format = sniff(data)
    if format in FORMATS:
        return Stored(data, SUFFIX_OF[format])
    try:
        return Stored(png(np.asarray(read_image(data).image)), "png")
    except BadImage as bad:
        is_extra_missing = bad.reason == Reason.unsupported_format and format not in CONVERSIONS
        require(not is_extra_missing, f"{printable(name)!r:.200} {bad.detail}")
    own = Path(name).suffix.lower()
    return Stored(data, SUFFIX_OF.get(format or "", own[1:] if own in READ_SUFFIXES else "jpg"), is_damaged=True)


def png(pixels: np.ndarray) -> bytes:
    """(H, W, 3) of uint8 as a PNG, of one channel or one bit where that is enough."""
    image = Image.fromarray(pixels)
    if (pixels == pixels[..., :1]).all():
        image = Image.fromarray(np.ascontiguousarray(pixels[..., 0]))
        if np.isin(pixels[..., 0], (0, 255)).all():
            image = image.convert("1", dither=Image.Dither.NONE)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
