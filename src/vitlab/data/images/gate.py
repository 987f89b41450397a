"""The gate through which every image enters: bytes in, an upright RGB picture or a reason for refusal out.

The checks, in order: regular file, size in bytes, magic bytes, the structure of the format and the size in pixels that
the header claims, decoding, EXIF orientation, the mode table. Nothing is decoded unchecked, and only the first picture
of a file is decoded. Colour profiles are not applied.

The gate is thread-safe: it changes no global of Pillow and no warning filter (`warnings.catch_warnings` is not
thread-safe), and avoids the few places where Pillow would warn.
"""

import contextlib
import errno
import itertools
import math
import os
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar, get_args

from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.WebPImagePlugin import WebPImageFile

from vitlab.data.images.colours import TRANSPOSE, bytes_per_pixel, colour_key, orientation_of, to_rgb
from vitlab.data.images.readers import READERS, check_support, rows_above
from vitlab.data.images.refusals import (
    ALLOWED,
    CONVERSIONS,
    DECODE_PER_PIXEL,
    LARGEST_DECODE,
    LARGEST_FILE,
    SUFFIXES,
    BadImage,
    Note,
    Reason,
)
from vitlab.data.images.structure import check_size, check_structure, gif_frames, sniff
from vitlab.data.images.tiff import checked_tags

Decoding = Literal["exact", "fast"]
Box = tuple[int, int, int, int]  # left, upper, right, lower, as in Pillow
FloatBox = tuple[float, float, float, float]


def check_decoding(given: str) -> Decoding:
    """Return a way of decoding; raises ValueError for anything else."""
    for known in get_args(Decoding):
        if given == known:
            return known
    raise ValueError(f"decode {given!r} must be exact or fast")


@dataclass(frozen=True)
class Decoded:
    """A decoded picture: mode RGB, upright, without metadata."""

    image: Image.Image
    notes: tuple[Note, ...]
    format: str


def read_image(source: Path | str | bytes, *, name: str | None = None, max_pixels: int | None = None) -> Decoded:
    """Decode an image file, given as a path or as bytes. Raises BadImage and nothing else.

    `name` is used in messages and for its suffix; it is not opened. Links are followed. `max_pixels` replaces the limit
    of the image's format; decoding may then take 16 bytes of memory per pixel.
    """
    return open_image(source, name=name, max_pixels=max_pixels).whole()


def open_image(
    source: Path | str | bytes,
    *,
    name: str | None = None,
    max_pixels: int | None = None,
    decoding: Decoding = "exact",
) -> "Opened":
    """Check an image file like `read_image`, and leave its decoding to the result."""
    path = "" if isinstance(source, bytes) else os.fspath(source)
    name = path if name is None else name

    def opened() -> Opened:
        data = source if isinstance(source, bytes) else file_bytes(path)
        format = _allowed_format(data)
        header = _translated(data, format, lambda: _header(data, format, max_pixels))
        return Opened(data, format, name, header, decoding)

    return _named(name, opened)


class Opened:
    """An image file that has passed every check that is possible before decoding.

    Of an upright JPEG with a single scan, `part` decodes only the rows that are needed; its pixels and refusals are
    those of the whole picture. With the decoding `fast`, it also decodes at a half, a quarter or an eighth of the size
    where the result is smaller still, which changes pixels.
    """

    def __init__(self, data: bytes, format: str, name: str, header: "Header", decoding: Decoding) -> None:
        self._data, self._format, self._name, self._header, self._decoding = data, format, name, header, decoding
        self._whole: Decoded | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the upright picture."""
        return self._header.image.size if self._header.has_parts else self.whole().image.size

    def whole(self) -> Decoded:
        """Decode the whole picture. Raises BadImage and nothing else."""
        if self._whole is None:
            self._whole = _named(self._name, lambda: _decoded(self._data, self._format, self._name, self._header))
        return self._whole

    def part(self, box: Box, size: tuple[int, int], support: int = 0) -> tuple[Image.Image, FloatBox]:
        """Decode what resizing a box to `size`, (height, width), needs: an RGB picture, and where the box is in it.

        Pixels up to `support` result pixels outside the box are needed too.
        """
        shrink = self._shrink(box, size)
        beyond = math.ceil(support * max(1, (box[3] - box[1]) / size[0])) + shrink * (support > 0)
        rows = -(-min(box[3] + beyond, self.size[1]) // shrink)
        image = rows_above(self._data, rows, shrink) if self._header.has_parts and self._whole is None else None
        if image is None:  # not of this kind, or broken: decoding the whole says why
            return self.whole().image, box
        image = to_rgb(image)
        image.info.clear()
        return image, (box[0] / shrink, box[1] / shrink, box[2] / shrink, box[3] / shrink) if shrink > 1 else box

    def _shrink(self, box: Box, size: tuple[int, int]) -> int:
        if self._decoding == "exact":
            return 1
        smaller = min((box[2] - box[0]) // size[1], (box[3] - box[1]) // size[0])
        return next(scale for scale in (8, 4, 2, 1) if smaller >= scale or scale == 1)


def part_of(
    picture: Image.Image | Opened, box: Box, size: tuple[int, int], support: int
) -> tuple[Image.Image, FloatBox]:
    """Return the pixels that resizing a box to `size`, (height, width), needs, and where the box is in them."""
    return (picture, box) if isinstance(picture, Image.Image) else picture.part(box, size, support)


Kept = TypeVar("Kept")


def _named(name: str, work: Callable[[], Kept]) -> Kept:
    """Do work that may refuse the image; the refusal has its name."""
    try:
        return work()
    except BadImage as bad:
        reason, detail = bad.reason, bad.detail
    # Raised here, it does not keep the frames of the failure, and their pixels, alive.
    raise BadImage(reason, detail, name)


def _decoded(data: bytes, format: str, name: str, header: "Header") -> Decoded:
    notes = [Note.format_mismatch] if SUFFIXES.get(Path(name).suffix.lower(), format) != format else []

    def upright() -> Image.Image:
        image = _load(data, format, header.image)
        if _is_animated(image, data):
            notes.append(Note.animated)
        orientation, is_broken = orientation_of(image.info.get("exif"))
        if is_broken:
            notes.append(Note.broken_exif)
        if orientation in TRANSPOSE:
            image = image.transpose(TRANSPOSE[orientation])
        image = to_rgb(image)
        return image.copy() if isinstance(image, WebPImageFile) else image  # without the decoder and its two canvases

    try:
        image = _translated(data, format, upright)
    except BadImage:
        header.image.close()  # and free its pixels
        raise
    image.info.clear()  # an orientation must not be applied twice
    return Decoded(image, tuple(notes), format)


def _translated(data: bytes, format: str, work: Callable[[], Kept]) -> Kept:
    """Do work with Pillow; whatever it raises becomes a BadImage."""
    try:
        return work()
    except BadImage:
        raise
    except Image.DecompressionBombError as error:  # Pillow's limit is above ours unless it was lowered
        raise BadImage(Reason.too_many_pixels, f"is over Pillow's limit ({error}); make it smaller") from error
    except Exception as error:  # hostile bytes make Pillow raise far more than OSError, MemoryError included
        said = f"{type(error).__name__}: {str(error)!r:.160}"
        has_no_trailer = format == "GIF" and not data.rstrip(b"\0").endswith(b";")
        # The decoder reports a damaged JPEG as truncated too. The structure of this one was followed to its end
        # mark, so nothing is missing.
        if ("truncated" in said.lower() and format != "JPEG") or has_no_trailer:
            raise BadImage(Reason.truncated, f"ends too early ({said}); get the complete {format} file") from error
        raise BadImage(Reason.corrupt, f"is not a valid {format} ({said}); replace it or leave it out") from error


def _allowed_format(data: bytes) -> str:
    if not data:
        raise BadImage(Reason.empty, "has 0 bytes; replace it or leave it out")
    if len(data) > LARGEST_FILE:
        raise _too_large(len(data))
    match sniff(data):
        case None:
            found = f"starts with {data[:12]!r}, which no image does"
            raise BadImage(Reason.not_an_image, f"{found}; allowed are {ALLOWED}; convert it or leave it out")
        case format if format in CONVERSIONS:
            found = f"is {format}, which is not supported; allowed are {ALLOWED}"
            way = f"convert it to JPEG or PNG, for example with {CONVERSIONS[format]}"
            raise BadImage(Reason.unsupported_format, f"{found}; {way}")
        case format:
            return format


# -- Bytes ---------------------------------------------------------------------------------------

REFUSALS = {  # of os.open; anything else is `unreadable`
    errno.ENOENT: (Reason.missing, "does not exist; give the path of an image"),
    errno.ENOTDIR: (Reason.missing, "is below a file, not a folder; give the path of an image"),
    errno.ELOOP: (Reason.special_file, "is a loop of symbolic links; give the path of a regular file"),
    errno.ENXIO: (Reason.special_file, "is a socket or a device; give the path of a regular file"),
}


def file_bytes(path: str) -> bytes:
    """Read a regular file within the limit of size; raises BadImage for anything else, without waiting for it."""
    with regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_FILE:
            raise _too_large(size)
        return file.read(size)


@contextlib.contextmanager
def regular_file(path: str) -> Iterator[BufferedReader]:
    """Open a regular file of any size; raises BadImage for anything else, and if reading it fails."""
    try:
        # O_NONBLOCK: opening a FIFO without a writer would block forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError:  # a NUL in the path
        raise BadImage(Reason.missing, "is not a valid path; give the path of an image") from None
    except OSError as error:
        raise BadImage(*REFUSALS.get(error.errno or 0, _unreadable(error))) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a FIFO or a device"
            raise BadImage(Reason.special_file, f"is {kind}; give the path of a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    except (OSError, MemoryError) as error:
        raise BadImage(*_unreadable(error)) from None
    finally:
        os.close(descriptor)


def _unreadable(error: OSError | MemoryError) -> tuple[Reason, str]:
    why = error.strerror if isinstance(error, OSError) else "out of memory"
    return Reason.unreadable, f"cannot be read ({why}); check its permissions and its disk"


def _too_large(size: int) -> BadImage:
    return BadImage(Reason.too_large, f"has {size:,} bytes; at most {LARGEST_FILE:,} are allowed; make it smaller")


# -- Pillow --------------------------------------------------------------------------------------


class Header(NamedTuple):
    """A file that Pillow has opened, and whether parts of its picture can be decoded."""

    image: ImageFile
    has_parts: bool


def _header(data: bytes, format: str, max_pixels: int | None) -> Header:
    """Check the structure and the sizes of a file and open it."""
    ends_with_scan = check_structure(data, format, max_pixels)
    check_support(format)
    image = READERS[format](BytesIO(data))
    check_size(image.size, format, max_pixels)  # again, because this is the size that Pillow allocates
    _check_memory(image, format, max(LARGEST_DECODE, DECODE_PER_PIXEL * (max_pixels or 0)))
    is_upright = "exif" not in image.info or orientation_of(image.info["exif"])[0] not in TRANSPOSE
    return Header(image, ends_with_scan and is_upright)


def _load(data: bytes, format: str, image: ImageFile) -> ImageFile:
    """Decode the first picture."""
    image.load()
    if format == "PNG" and image.mode in ("L", "RGB") and "transparency" in image.info:
        image.info["transparency"] = colour_key(image, depth=data[24])
    return image


def _check_memory(image: ImageFile, format: str, most: int) -> None:
    """Raise BadImage if converting the picture to upright RGB takes more than `most` bytes."""
    if format in ("WEBP", "AVIF", "HEIC", "JPEG 2000"):
        return  # only their size is limited, before they are opened
    is_turned = orientation_of(image.info.get("exif"))[0] in TRANSPOSE
    needed = image.width * image.height * bytes_per_pixel(image, is_turned=is_turned)
    if needed > most:
        kind = f"{'turned ' if is_turned else ''}{image.mode} {format}"
        found = f"is {image.width} x {image.height} pixels, which take {needed:,} bytes to decode as a {kind}"
        pixels = image.width * image.height
        way = f"make it smaller, save it upright and plain, or allow more (--max-pixels {pixels})"
        raise BadImage(Reason.too_many_pixels, f"{found}; {most:,} are allowed; {way}")


def _is_animated(image: ImageFile, data: bytes) -> bool:
    if image.format == "TIFF":
        return checked_tags(data)[1]
    if image.format != "GIF":
        return getattr(image, "is_animated", False)  # read from the header
    try:
        return len(list(itertools.islice(gif_frames(data), 2))) == 2
    except (struct.error, IndexError):  # cut after the first frame, the only one that is used
        return False
