"""The one gate through which every image enters: bytes in, an upright RGB picture or a counted reason out.

A picture passes, in this order: regular file, size in bytes, magic bytes, the format's own structure and
the size in pixels its header claims, decoding, EXIF orientation, the mode table. Nothing is decoded that
was not checked, and nothing of a file but its first picture is decoded. Colour profiles are not applied.

No Pillow global and no warning filter is touched (`warnings.catch_warnings` is not thread-safe): the gate
keeps Pillow away from the few places where it would warn, so it can be called from any number of threads.
"""

import errno
import itertools
import os
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from io import BytesIO
from pathlib import Path
from typing import cast

from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

LARGEST_FILE = 50_000_000  # bytes
LARGEST_SIDE = 32_768  # pixels
LARGEST_ASPECT = 100  # longer side / shorter side
# Pillow holds a colour pixel in 4 bytes, so the largest JPEG costs 262 MB (measured); it costs 511 MB when it has to
# be turned, 521 MB in CMYK, 641 MB when it is progressive and not subsampled, and the largest WebP costs 508 MB.
MOST_PIXELS = {
    "JPEG": 64_000_000,
    "PNG": 32_000_000,
    "WEBP": 32_000_000,
    "GIF": 32_000_000,
    "BMP": 32_000_000,
}
MOST_SCANS = 100  # of a JPEG, each a pass over all pixels; encoders write about 10, and 220 KB with 1,000 cost 7 s
MOST_PIECES = {  # which Pillow walks in Python; LARGEST_FILE has room for fewer if they are of the usual size
    "JPEG": 1_000,  # segments; Pillow's time for EXIF is quadratic in them
    "PNG": 250_000,  # chunks
    "GIF": 250_000,  # blocks
}
ALLOWED = ", ".join(MOST_PIXELS)


class Reason(StrEnum):
    """Why an image is refused."""

    missing = auto()
    special_file = auto()  # directory, FIFO, device, socket, loop of links
    unreadable = auto()  # permissions, a failing disk
    empty = auto()
    too_large = auto()  # bytes
    not_an_image = auto()
    unsupported_mode = auto()
    too_many_pixels = auto()
    aspect_ratio = auto()
    truncated = auto()
    corrupt = auto()


class Note(StrEnum):
    """What is odd about an image that is accepted all the same."""

    format_mismatch = auto()  # a PNG named .jpg
    animated = auto()  # the first frame is used
    broken_exif = auto()


class BadImage(ValueError):  # noqa: N818  it is the image that is bad, not the program
    """An image that is refused; `str` is one line, safe to print whatever the file is called."""

    def __init__(self, reason: Reason, detail: str, name: str = "") -> None:
        super().__init__(reason, detail, name)  # all of them, so that it can be pickled between processes
        self.reason = reason
        self.detail = detail
        self.name = name

    def __str__(self) -> str:
        return f"{self.name[-200:]!r} {self.detail}" if self.name else f"the image {self.detail}"


@dataclass(frozen=True)
class Decoded:
    """A picture that passed: mode RGB, upright, without metadata."""

    image: Image.Image
    notes: tuple[Note, ...]
    format: str


def read_image(source: Path | str | bytes, *, name: str | None = None) -> Decoded:
    """The image in a file (a path) or in bytes; raises BadImage and nothing else.

    `name` stands in messages and is asked for its suffix; it is never opened. Links are followed.
    """
    path = "" if isinstance(source, bytes) else os.fspath(source)
    name = path if name is None else name
    try:
        return _decode(source if isinstance(source, bytes) else _file_bytes(path), Path(name).suffix.lower())
    except BadImage as bad:
        reason, detail = bad.reason, bad.detail
    # Raised out here it does not keep the frames, and with them the pixels, of the failure alive.
    raise BadImage(reason, detail, name)


def _decode(data: bytes, suffix: str) -> Decoded:
    format = _allowed_format(data)
    notes = [Note.format_mismatch] if SUFFIXES.get(suffix, format) != format else []
    try:
        image = _load(data, format)
        if _is_animated(image, data):
            notes.append(Note.animated)
        orientation, is_broken = _orientation(image.info.get("exif"))
        if is_broken:
            notes.append(Note.broken_exif)
        if orientation in TRANSPOSE:
            image = image.transpose(TRANSPOSE[orientation])
        image = to_rgb(image)
        if isinstance(image, WebPImageFile):
            image = image.copy()  # the plain picture, without the decoder and its two canvases
    except BadImage:
        raise
    except Image.DecompressionBombError as error:  # Pillow's limit is above ours, unless somebody lowered it
        raise BadImage(Reason.too_many_pixels, f"is over Pillow's limit ({error}); make it smaller") from error
    except Exception as error:  # hostile bytes make Pillow raise far more than OSError, MemoryError included
        said = f"{type(error).__name__}: {str(error)!r:.160}"
        has_no_trailer = format == "GIF" and not data.rstrip(b"\0").endswith(b";")
        if "truncated" in said.lower() or has_no_trailer:
            raise BadImage(Reason.truncated, f"ends too early ({said}); fetch the whole {format} again") from error
        raise BadImage(Reason.corrupt, f"is no sound {format} ({said}); fetch it again or leave it out") from error
    image.info.clear()  # an orientation that was applied must not be found, and applied, again
    return Decoded(image, tuple(notes), format)


def _allowed_format(data: bytes) -> str:
    if not data:
        raise BadImage(Reason.empty, "has 0 bytes; fetch it again or leave it out")
    if len(data) > LARGEST_FILE:
        raise _too_large(len(data))
    match sniff(data):
        case None:
            found = f"starts with {data[:12]!r}, which no image does"
            raise BadImage(Reason.not_an_image, f"{found}; allowed are {ALLOWED}; convert it or leave it out")
        case "TIFF":
            raise BadImage(Reason.unsupported_mode, f"is a TIFF; allowed are {ALLOWED}; convert it to PNG")
        case format:
            return format


# -- Bytes ---------------------------------------------------------------------------------------

REFUSALS = {  # of os.open; anything else is `unreadable`
    errno.ENOENT: (Reason.missing, "does not exist; give the path of an image"),
    errno.ENOTDIR: (Reason.missing, "lies below a file, not a folder; give the path of an image"),
    errno.ELOOP: (Reason.special_file, "is a loop of symbolic links; give the path of a regular file"),
    errno.ENXIO: (Reason.special_file, "is a socket or a device; give the path of a regular file"),
}


def _file_bytes(path: str) -> bytes:
    """What a regular file holds, read once; whatever else stands there is refused without waiting for it."""
    try:
        # O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError:  # a NUL in the path
        raise BadImage(Reason.missing, "is not a possible path; give the path of an image") from None
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
    return BadImage(Reason.too_large, f"has {size:,} bytes; at most {LARGEST_FILE:,} are read; make it smaller")


MAGIC = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",  # BigTIFF
    b"MM\0+": "TIFF",
}
BMP_HEADERS = {12, 40, 52, 56, 64, 108, 124}  # sizes in bytes of the known versions
SUFFIXES = {
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif"), "JPEG"),
    **dict.fromkeys((".png", ".apng"), "PNG"),
    **dict.fromkeys((".tif", ".tiff"), "TIFF"),
    ".webp": "WEBP",
    ".gif": "GIF",
    ".bmp": "BMP",
}


def sniff(data: bytes) -> str | None:
    """JPEG, PNG, WEBP, GIF, BMP or TIFF by the first bytes, None for all else; names mean nothing here."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[:2] == b"BM" and int.from_bytes(data[14:18], "little") in BMP_HEADERS:
        return "BMP"
    return next((format for magic, format in MAGIC.items() if data.startswith(magic)), None)


# -- Structure, before Pillow --------------------------------------------------------------------


class _Jpeg(JpegImageFile):
    """Pillow's reader without its search for the resolution in EXIF, which warns where EXIF is broken."""

    def _read_dpi_from_exif(self) -> None:
        pass


# Called directly, not through Image.open: no other plugin can be reached (EPS would start Ghostscript), a JPEG
# stays one picture (not an MPO), and Image.open's warning about large pictures is never raised.
READERS: dict[str, Callable[[BytesIO], ImageFile]] = {
    "JPEG": _Jpeg,
    "PNG": PngImageFile,
    "WEBP": WebPImageFile,
    "GIF": GifImageFile,
    "BMP": BmpImageFile,
}


def _load(data: bytes, format: str) -> ImageFile:
    """The first picture, decoded, as Pillow has it."""
    try:
        CHECKS[format](data)
    except (struct.error, IndexError):  # a check looked for a field behind the last byte
        raise BadImage(Reason.truncated, f"ends inside its headers; fetch the whole {format} again") from None
    with BytesIO(data) as stream:
        image = READERS[format](stream)
        _check_size(image.size, format)  # again: this is the size that Pillow would allocate
        image.load()
    if format == "PNG" and image.mode in ("L", "RGB") and "transparency" in image.info:
        image.info["transparency"] = _colour_key(image, depth=data[24])
    return image


def _check_size(size: tuple[int, int], format: str) -> None:
    width, height = size
    found = f"is {width} x {height} = {width * height:,} pixels"
    if min(size) < 1:
        raise BadImage(Reason.corrupt, f"{found}; fetch it again or leave it out")
    if max(size) > LARGEST_SIDE or width * height > MOST_PIXELS[format]:
        allowed = f"a {format} may have {MOST_PIXELS[format]:,} and {LARGEST_SIDE:,} along a side"
        raise BadImage(Reason.too_many_pixels, f"{found}; {allowed}; make it smaller")
    if max(size) > LARGEST_ASPECT * min(size):
        allowed = f"one side may be {LARGEST_ASPECT} times the other"
        raise BadImage(Reason.aspect_ratio, f"{found}; {allowed}; crop it or leave it out")


# In coded data FF 00 is a byte and FF D0..D7 a restart; FF 01 and FF D8 have no length either, FF FF is padding.
JPEG_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])")
JPEG_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}


def _check_jpeg(data: bytes) -> None:
    """From marker to marker, as the decoder goes, to the end mark."""
    at, pieces, scans = 2, 0, 0
    while found := JPEG_MARKER.search(data, at):
        marker, at = found[1][0], found.end()
        if marker == 0xD9:
            return
        if marker in JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 3)
            _check_size((width, height), "JPEG")
        scans += marker == 0xDA
        if scans > MOST_SCANS:
            raise BadImage(Reason.corrupt, f"has over {MOST_SCANS} scans; save it as a baseline JPEG")
        pieces = _one_more(pieces, "JPEG")
        at += struct.unpack_from(">H", data, at)[0]
    raise BadImage(Reason.truncated, "ends before the JPEG's end mark; fetch it again or leave it out")


def _one_more(pieces: int, format: str) -> int:
    if pieces == MOST_PIECES[format]:
        raise BadImage(Reason.corrupt, f"is in over {pieces:,} pieces, too many for a {format}; save it again")
    return pieces + 1


def _check_png(data: bytes) -> None:
    """Every chunk whole and with the right checksum, to the end chunk: Pillow does not look at those of the pixels."""
    at, pieces, kind, has_frames = 8, 0, b"", False
    view = memoryview(data)
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if end > len(data):
            raise BadImage(Reason.truncated, f"ends inside the PNG's chunk {kind!r}; fetch it again or leave it out")
        if zlib.crc32(view[at + 4 : end - 4]) != struct.unpack_from(">I", data, end - 4)[0]:
            raise BadImage(Reason.corrupt, f"has a wrong checksum in the PNG's chunk {kind!r}; fetch it again")
        if (kind == b"IHDR") != (at == 8):
            raise BadImage(Reason.corrupt, "does not start with the PNG's one header; fetch it again or leave it out")
        if kind == b"IHDR":
            _check_size(struct.unpack_from(">II", data, at + 8), "PNG")
        if kind == b"acTL":  # Pillow decodes a second one, or one of no frames, with a warning
            if has_frames or not 0 < struct.unpack_from(">I", data, at + 8)[0] <= 2**31:
                raise BadImage(Reason.corrupt, "is no sound animated PNG; save it as a plain PNG")
            has_frames = True
        pieces = _one_more(pieces, "PNG")
        at = end


def _check_webp(data: bytes) -> None:
    """The canvas, which Pillow allocates as soon as it opens the file, and the size in bytes."""
    match struct.unpack_from("4s", data, 12)[0]:
        case b"VP8 ":
            width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
        case b"VP8L":
            bits = struct.unpack_from("<I", data, 21)[0]
            width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        case kind:
            raise BadImage(Reason.corrupt, f"has {kind!r} where a WEBP has its pixels; fetch it again or leave it out")
    _check_size((width, height), "WEBP")
    declared = 8 + struct.unpack_from("<I", data, 4)[0]
    if len(data) < declared:
        raise BadImage(Reason.truncated, f"has {len(data):,} of the WEBP's {declared:,} bytes; fetch it again")


def _check_gif(data: bytes) -> None:
    width, height = struct.unpack_from("<HH", data, 6)
    for right, bottom in itertools.islice(_gif_frames(data), 1):  # Pillow lets the first frame enlarge the canvas
        width, height = max(width, right), max(height, bottom)
    _check_size((width, height), "GIF")


def _gif_frames(data: bytes) -> Iterator[tuple[int, int]]:
    """Right and bottom edge of each frame, block by block; ends where the blocks do."""

    def colours(flags: int) -> int:
        return 3 << (flags & 7) + 1 if flags & 0x80 else 0  # bytes of a palette

    at, pieces = 13 + colours(data[10]), 0
    while (kind := data[at : at + 1]) not in (b"", b";"):
        pieces = _one_more(pieces, "GIF")
        at += 1
        if kind not in (b"!", b","):
            continue  # Pillow reads over junk between blocks
        if kind == b",":
            left, top, width, height, flags = struct.unpack_from("<4HB", data, at)
            yield left + width, top + height
            at += 9 + colours(flags)
        at += 1  # an extension's label, or the code size of a frame
        while size := data[at]:
            pieces = _one_more(pieces, "GIF")
            at += 1 + size
        at += 1


def _check_bmp(data: bytes) -> None:
    if data[14] > 12 and struct.unpack_from("<I", data, 30)[0] in (1, 2):  # decoded in Python: 20 s at 50 MB
        raise BadImage(Reason.unsupported_mode, "is a run-length encoded BMP; save it as a plain BMP or PNG")


CHECKS: dict[str, Callable[[bytes], None]] = {
    "JPEG": _check_jpeg,
    "PNG": _check_png,
    "WEBP": _check_webp,
    "GIF": _check_gif,
    "BMP": _check_bmp,
}


def _is_animated(image: ImageFile, data: bytes) -> bool:
    if image.format != "GIF":
        return getattr(image, "is_animated", False)  # read from the header
    try:
        return len(list(itertools.islice(_gif_frames(data), 2))) == 2
    except (struct.error, IndexError):  # cut inside or behind the first frame, which is all we want
        return False


# -- Pixels --------------------------------------------------------------------------------------

TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
EXIF_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}  # type: bytes of one value


def _orientation(exif: bytes | None) -> tuple[int, bool]:
    """Orientation 1..8 (1 where none can be read), and whether the first directory of the EXIF block is broken."""
    if exif is None:
        return 1, False
    exif = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1, True
    orientation, is_broken = 1, False
    try:
        start = struct.unpack_from(f"{order}I", exif, 4)[0]
        for entry in range(struct.unpack_from(f"{order}H", exif, start)[0]):
            at = start + 2 + 12 * entry
            tag, kind, count, value = struct.unpack_from(f"{order}HHII", exif, at)
            size = EXIF_SIZES.get(kind, 0) * count
            is_broken |= size > 4 and value + size > len(exif)
            if tag == 0x0112:
                given = value if kind == 4 else struct.unpack_from(f"{order}H", exif, at + 8)[0]
                orientation = given if given in TRANSPOSE else 1
                is_broken |= not 1 <= given <= 8
    except struct.error:
        is_broken = True
    return orientation, is_broken


def _colour_key(image: ImageFile, depth: int) -> int | tuple[int, ...]:
    """The transparent colour of a grey or RGB PNG in the units of Pillow's pixels, which have 8 bits."""
    key = image.info["transparency"]
    if image.mode == "L":
        return key % 2**depth * 255 // (2**depth - 1)  # depth 2, 4, 8; Pillow widens the pixels but not the key
    if depth == 16:
        raise BadImage(Reason.unsupported_mode, "is a 16-bit PNG with a transparent colour; save it with 8 bits")
    return key


def to_rgb(image: Image.Image) -> Image.Image:
    """The mode table: RGB from each mode with one plain meaning, transparency over white; else BadImage."""
    match image.mode, "transparency" in image.info:
        case "RGB", False:
            return image
        case "1" | "L" | "P", False:
            return image.convert("RGB")
        case "CMYK", _:
            return image.convert("RGB")  # (1 - c)(1 - k); Pillow has undone Adobe's inversion
        case "LA" | "RGBA", _:
            return _over_white(image)
        case "1" | "L" | "P" | "PA" | "RGB", _:
            return _over_white(image.convert("RGBA"))
        case "I;16" | "I", _:
            return _from_16_bits(image)
        case mode, _:
            raise BadImage(Reason.unsupported_mode, f"has pixels of mode {mode}; save it as 8-bit RGB")


def _over_white(image: Image.Image) -> Image.Image:
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image)
    return white


def _from_16_bits(image: Image.Image) -> Image.Image:
    """0..65535 to 0..255 by v / 257, rounded."""
    image = image.convert("I")
    low, high = cast(tuple[int, int], image.getextrema())
    if low < 0 or high > 65535:
        raise BadImage(Reason.unsupported_mode, f"has grey values {low}..{high}; 16 bits hold 0..65535; rescale it")
    table = [(value + 128) // 257 for value in range(65536)]
    if "transparency" in image.info:
        table[image.info["transparency"]] = 255
    return image.point(table, "L").convert("RGB")
