"""The gate through which every image enters: bytes in, an upright RGB picture or a reason for refusal out.

The checks, in order: regular file, size in bytes, magic bytes, the structure of the format and the size in pixels that
the header claims, decoding, EXIF orientation, the mode table. Nothing is decoded unchecked, and only the first picture
of a file is decoded. Colour profiles are not applied.

The gate is thread-safe: it changes no global of Pillow and no warning filter (`warnings.catch_warnings` is not
thread-safe), and avoids the few places where Pillow would warn.
"""

import errno
import itertools
import os
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from vitlab.data.images.colours import TRANSPOSE, bytes_per_pixel, colour_key, orientation_of, to_rgb
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
    path = "" if isinstance(source, bytes) else os.fspath(source)
    name = path if name is None else name
    try:
        data = source if isinstance(source, bytes) else file_bytes(path)
        return _decode(data, Path(name).suffix.lower(), max_pixels)
    except BadImage as bad:
        reason, detail = bad.reason, bad.detail
    # Raised here, it does not keep the frames of the failure, and their pixels, alive.
    raise BadImage(reason, detail, name)


def _decode(data: bytes, suffix: str, max_pixels: int | None) -> Decoded:
    format = _allowed_format(data)
    notes = [Note.format_mismatch] if SUFFIXES.get(suffix, format) != format else []
    try:
        image = _load(data, format, max_pixels)
        if _is_animated(image, data):
            notes.append(Note.animated)
        orientation, is_broken = orientation_of(image.info.get("exif"))
        if is_broken:
            notes.append(Note.broken_exif)
        if orientation in TRANSPOSE:
            image = image.transpose(TRANSPOSE[orientation])
        image = to_rgb(image)
        if isinstance(image, WebPImageFile):
            image = image.copy()  # without the decoder and its two canvases
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
    image.info.clear()  # an orientation must not be applied twice
    return Decoded(image, tuple(notes), format)


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
    """Read a regular file; raises BadImage for anything else, without waiting for it."""
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
        if status.st_size > LARGEST_FILE:
            raise _too_large(status.st_size)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size)
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


class _Jpeg(JpegImageFile):
    """Pillow's reader without its search for the resolution in EXIF, which warns if EXIF is broken."""

    def _read_dpi_from_exif(self) -> None:
        pass


# Called directly, not through Image.open: no other plugin is used (EPS would start Ghostscript), a JPEG stays one
# picture (not an MPO), and Image.open does not warn about large pictures.
READERS: dict[str, Callable[[BytesIO], ImageFile]] = {
    "JPEG": _Jpeg,
    "PNG": PngImageFile,
    "WEBP": WebPImageFile,
    "GIF": GifImageFile,
    "BMP": BmpImageFile,
}


def _load(data: bytes, format: str, max_pixels: int | None) -> ImageFile:
    """Decode the first picture."""
    check_structure(data, format, max_pixels)
    with BytesIO(data) as stream:
        image = READERS[format](stream)
        check_size(image.size, format, max_pixels)  # again, because this is the size that Pillow allocates
        _check_memory(image, format, max(LARGEST_DECODE, DECODE_PER_PIXEL * (max_pixels or 0)))
        image.load()
    if format == "PNG" and image.mode in ("L", "RGB") and "transparency" in image.info:
        image.info["transparency"] = colour_key(image, depth=data[24])
    return image


def _check_memory(image: ImageFile, format: str, most: int) -> None:
    """Raise BadImage if converting the picture to upright RGB takes more than `most` bytes."""
    if format == "WEBP":
        return  # only its size is limited, before it is opened
    is_turned = orientation_of(image.info.get("exif"))[0] in TRANSPOSE
    needed = image.width * image.height * bytes_per_pixel(image, is_turned=is_turned)
    if needed > most:
        kind = f"{'turned ' if is_turned else ''}{image.mode} {format}"
        found = f"is {image.width} x {image.height} pixels, which take {needed:,} bytes to decode as a {kind}"
        pixels = image.width * image.height
        way = f"make it smaller, save it upright and plain, or allow more (--max-pixels {pixels})"
        raise BadImage(Reason.too_many_pixels, f"{found}; {most:,} are allowed; {way}")


def _is_animated(image: ImageFile, data: bytes) -> bool:
    if image.format != "GIF":
        return getattr(image, "is_animated", False)  # read from the header
    try:
        return len(list(itertools.islice(gif_frames(data), 2))) == 2
    except (struct.error, IndexError):  # cut after the first frame, the only one that is used
        return False
