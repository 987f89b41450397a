"""Pictures for tests, sound and hostile, built byte by byte where no library would."""

import struct
import zlib
from io import BytesIO

import numpy as np
from PIL import Image


def photo(width: int = 48, height: int = 32) -> Image.Image:
    """Smooth, and different in every corner."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    return Image.fromarray((255 * np.stack([x, y, (x + 2 * y) / 3], axis=-1)).astype(np.uint8))


def saved(image: Image.Image, format: str, **options) -> bytes:
    file = BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def jpeg(image: Image.Image | None = None, **options) -> bytes:
    return saved(image or photo(), "JPEG", **{"quality": 95, "subsampling": 0} | options)


def chunk(kind: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, pixels: bytes, *before: bytes, depth: int = 8, colour: int = 0) -> bytes:
    """A PNG whose rows are unfiltered; `before` are chunks that precede the pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    row = len(pixels) // max(height, 1)
    rows = b"".join(b"\0" + pixels[i * row : (i + 1) * row] for i in range(height if pixels else 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(before) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND")


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def exif(orientation: int, *, order: str = "<", kind: int = 3, more: bytes = b"") -> bytes:
    """A TIFF block with one directory: the orientation, then the entries in `more`."""
    value = struct.pack(f"{order}{'H' if kind == 3 else 'I'}", orientation).ljust(4, b"\0")
    entry = struct.pack(f"{order}HHI", 0x0112, kind, 1) + value
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", 8)
    return head + struct.pack(f"{order}H", 1 + len(more) // 12) + entry + more + bytes(4)


def with_exif(data: bytes, block: bytes) -> bytes:
    """A JPEG without JFIF header, as cameras write it (Pillow then looks for the resolution in EXIF)."""
    assert data[2:4] == b"\xff\xe0"
    return data[:2] + segment(0xE1, b"Exif\0\0" + block) + data[4 + struct.unpack(">H", data[4:6])[0] :]


def animation(format: str, frames: int) -> bytes:
    colours = [(10 + i % 200, 20, 30) for i in range(frames)]
    first, *rest = (Image.new("RGB", (16, 16), colour) for colour in colours)
    options = {"lossless": True} if format == "WEBP" else {}
    return saved(first, format, save_all=True, append_images=rest, **options)


def claiming(format: str, width: int, height: int) -> bytes:
    """A small sound image whose header is changed to claim this size."""
    data = bytearray(saved(Image.new("L", (8, 8), 7), format))
    if format == "PNG":
        return png(width, height, b"")
    if format == "JPEG":
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", height, width)
    elif format == "GIF":
        data[6:10] = struct.pack("<HH", width, height)
    elif format == "BMP":
        data[18:26] = struct.pack("<ii", width, height)
    elif format == "WEBP":
        size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
        data[12:12] = b"VP8X" + struct.pack("<II", 10, 0) + size
        data[4:8] = struct.pack("<I", len(data) - 8)
    return bytes(data)
