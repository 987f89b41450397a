"""Checks of an image file's bytes before they are decoded: magic, chunks, sizes, end marks."""

import itertools
import re
import struct
import zlib
from collections.abc import Callable, Iterator

from vitlab.data.images.boxes import heif_sizes, jpeg2000_sizes
from vitlab.data.images.refusals import (
    LARGEST_ASPECT,
    LARGEST_SIDE,
    MOST_PIECES,
    MOST_PIXELS,
    MOST_SCANS,
    BadImage,
    Reason,
)
from vitlab.data.images.tiff import HEIGHT, WIDTH, check_pieces, checked_tags
from vitlab.require import require

MAGIC = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",  # BigTIFF
    b"MM\0+": "TIFF",
    b"\0\0\0\x0cjP  \r\n\x87\n": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",  # without a container
    b"\0\0\0\x0cJXL \r\n\x87\n": "JPEG XL",
    b"\xff\x0a": "JPEG XL",  # without a container
}
HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}
BMP_HEADERS = {12, 40, 52, 56, 64, 108, 124}  # sizes in bytes of the known versions


def sniff(data: bytes) -> str | None:
    """Recognise a format, one that is read or one of `CONVERSIONS`, by the first bytes; None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[:2] == b"BM" and int.from_bytes(data[14:18], "little") in BMP_HEADERS:
        return "BMP"
    if data[4:8] == b"ftyp":
        return _heif_kind(data)
    return next((format for magic, format in MAGIC.items() if data.startswith(magic)), None)


def _heif_kind(data: bytes) -> str | None:
    """AVIF or HEIC, by the main and the compatible brands of the first box; None for a video."""
    length = min(int.from_bytes(data[:4], "big"), 256)
    brands = {data[8:12], *(data[at : at + 4] for at in range(16, length, 4))}
    return "AVIF" if brands & {b"avif", b"avis"} else "HEIC" if brands & HEIF_BRANDS else None


def check_structure(data: bytes, format: str, max_pixels: int | None = None) -> bool:
    """Raise BadImage unless the bytes are a complete file of the format, within the limits.

    Returns whether it is a JPEG of a single scan, after which nothing follows that could be refused.
    """
    try:
        return CHECKS[format](data, max_pixels) is True
    except (struct.error, IndexError):  # a field would be beyond the last byte
        raise BadImage(Reason.truncated, f"ends inside its headers; get the complete {format} file") from None


def check_max_pixels(max_pixels: int | None) -> None:
    """Raise ValueError unless this can be a limit on the pixels of an image; None is the limit of each format."""
    is_limit = max_pixels is None or max_pixels >= 1
    require(is_limit, f"max_pixels {max_pixels} must be at least 1; leave it out for the default of each format")


def check_size(size: tuple[int, int], format: str, max_pixels: int | None = None) -> None:
    """Raise BadImage if width or height exceed the limits; `max_pixels` replaces that of the format."""
    width, height = size
    most = max_pixels or MOST_PIXELS[format]
    found = f"is {width} x {height} = {width * height:,} pixels"
    if min(size) < 1:
        raise BadImage(Reason.corrupt, f"{found}; replace it or leave it out")
    if max(size) > LARGEST_SIDE:
        raise BadImage(Reason.too_many_pixels, f"{found}; a side may have {LARGEST_SIDE:,}; make it smaller")
    if width * height > most:
        way = f"make it smaller, or allow more (--max-pixels {width * height}, or ?max_pixels= in a data spec)"
        raise BadImage(Reason.too_many_pixels, f"{found}; a {format} may have {most:,}; {way}")
    if max(size) > LARGEST_ASPECT * min(size):
        allowed = f"one side may be {LARGEST_ASPECT} times the other"
        raise BadImage(Reason.aspect_ratio, f"{found}; {allowed}; crop it or leave it out")


# In coded data FF 00 is a byte and FF D0..D7 a restart; FF 01 and FF D8 have no length either, FF FF is padding.
JPEG_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])")
JPEG_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}


def _check_jpeg(data: bytes, max_pixels: int | None) -> bool:
    """From marker to marker, as the decoder goes, to the end mark; returns whether the only scan is the last part."""
    at, pieces, scans, marker, last = 2, 0, 0, 0, 0
    has_end = data.rstrip(b"\0").endswith(b"\xff\xd9")
    while found := JPEG_MARKER.search(data, at):
        marker, last = found[1][0], marker
        if marker == 0xD9:
            # FF D8 in coded data makes the decoder refuse the file, but only after the last row.
            return scans == 1 and last == 0xDA and data.find(b"\xff\xd8", at, found.start()) < 0
        at = found.end()
        if marker in JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 3)
            check_size((width, height), "JPEG", max_pixels)
        scans += marker == 0xDA
        if scans > MOST_SCANS:
            raise BadImage(Reason.corrupt, f"has over {MOST_SCANS} scans; save it as a baseline JPEG")
        pieces = _one_more(pieces, "JPEG")
        at += struct.unpack_from(">H", data, at)[0]
        if at > len(data) and has_end:
            raise BadImage(Reason.corrupt, "has a part longer than the JPEG itself; replace it or leave it out")
    raise BadImage(Reason.truncated, "ends before the JPEG's end mark; replace it or leave it out")


def _one_more(pieces: int, format: str) -> int:
    if pieces == MOST_PIECES[format]:
        raise BadImage(Reason.corrupt, f"is in over {pieces:,} pieces, too many for a {format}; save it again")
    return pieces + 1


def _check_png(data: bytes, max_pixels: int | None) -> None:
    """Check that every chunk is complete and has the right checksum; Pillow does not check those of the pixels."""
    at, pieces, kind, has_frames = 8, 0, b"", False
    view = memoryview(data)
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if end > len(data):
            raise BadImage(Reason.truncated, f"ends inside the PNG's chunk {kind!r}; replace it or leave it out")
        if zlib.crc32(view[at + 4 : end - 4]) != struct.unpack_from(">I", data, end - 4)[0]:
            raise BadImage(Reason.corrupt, f"has a wrong checksum in PNG chunk {kind!r}; replace it or leave it out")
        if (kind == b"IHDR") != (at == 8):
            raise BadImage(Reason.corrupt, "does not start with the PNG's one header; replace it or leave it out")
        if kind == b"IHDR":
            check_size(struct.unpack_from(">II", data, at + 8), "PNG", max_pixels)
        if kind == b"acTL":  # Pillow warns about a second one, or one without frames
            if has_frames or not 0 < struct.unpack_from(">I", data, at + 8)[0] <= 2**31:
                raise BadImage(Reason.corrupt, "is not a valid animated PNG; save it as a plain PNG")
            has_frames = True
        pieces = _one_more(pieces, "PNG")
        at = end


def _check_webp(data: bytes, max_pixels: int | None) -> None:
    """Check the canvas, which Pillow allocates when it opens the file, and the size in bytes."""
    match struct.unpack_from("4s", data, 12)[0]:
        case b"VP8 ":
            width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
        case b"VP8L":
            bits = struct.unpack_from("<I", data, 21)[0]
            width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        case kind:
            raise BadImage(Reason.corrupt, f"has {kind!r} where a WEBP has its pixels; replace it or leave it out")
    check_size((width, height), "WEBP", max_pixels)
    declared = 8 + struct.unpack_from("<I", data, 4)[0]
    if len(data) < declared:
        found = f"has {len(data):,} of the WEBP's {declared:,} bytes"
        raise BadImage(Reason.truncated, f"{found}; replace it or leave it out")


def _check_gif(data: bytes, max_pixels: int | None) -> None:
    width, height = struct.unpack_from("<HH", data, 6)
    for right, bottom in itertools.islice(gif_frames(data), 1):  # in Pillow the first frame may enlarge the canvas
        width, height = max(width, right), max(height, bottom)
    check_size((width, height), "GIF", max_pixels)


def gif_frames(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the right and bottom edge of each frame."""

    def colours(flags: int) -> int:
        return 3 << (flags & 7) + 1 if flags & 0x80 else 0  # bytes of a palette

    at, pieces = 13 + colours(data[10]), 0
    while (kind := data[at : at + 1]) not in (b"", b";"):
        pieces = _one_more(pieces, "GIF")
        at += 1
        if kind not in (b"!", b","):
            continue  # Pillow skips junk between blocks
        if kind == b",":
            left, top, width, height, flags = struct.unpack_from("<4HB", data, at)
            yield left + width, top + height
            at += 9 + colours(flags)
        at += 1  # an extension's label, or the code size of a frame
        while size := data[at]:
            pieces = _one_more(pieces, "GIF")
            at += 1 + size
        at += 1


def _check_bmp(data: bytes, max_pixels: int | None) -> None:
    if data[14] > 12 and struct.unpack_from("<I", data, 30)[0] in (1, 2):  # decoded in Python: 20 s at 50 MB
        raise BadImage(Reason.unsupported_mode, "is a run-length encoded BMP; save it as a plain BMP or PNG")


def _check_tiff(data: bytes, max_pixels: int | None) -> None:
    tags, _ = checked_tags(data)
    check_size((tags[WIDTH][0], tags[HEIGHT][0]), "TIFF", max_pixels)
    check_pieces(data, tags)


def _check_avif(data: bytes, max_pixels: int | None) -> None:
    for size in heif_sizes(data):
        check_size(size, "AVIF", max_pixels)


def _check_heic(data: bytes, max_pixels: int | None) -> None:
    for size in heif_sizes(data):
        check_size(size, "HEIC", max_pixels)


def _check_jpeg2000(data: bytes, max_pixels: int | None) -> None:
    for size in jpeg2000_sizes(data):
        check_size(size, "JPEG 2000", max_pixels)


CHECKS: dict[str, Callable[[bytes, int | None], bool | None]] = {
    "JPEG": _check_jpeg,
    "PNG": _check_png,
    "WEBP": _check_webp,
    "GIF": _check_gif,
    "BMP": _check_bmp,
    "TIFF": _check_tiff,
    "AVIF": _check_avif,
    "HEIC": _check_heic,
    "JPEG 2000": _check_jpeg2000,
}
