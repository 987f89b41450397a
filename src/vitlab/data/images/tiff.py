"""TIFF files: a strict check of the first picture, and the same picture with nothing else around it.

TIFF is a container of containers. What is not needed for the pixels (other pages, previews, EXIF, profiles) is not read
here and is not passed on: Pillow and libtiff get a directory of their own, written from the values checked below.

Allowed are whole numbers of 1 to 16 bits without sign, uncompressed or compressed by LZW, Deflate or PackBits, in
strips or tiles. Other compressions are rare in data sets, and each is one more decoder for untrusted bytes.
"""

import struct
from collections.abc import Iterator

from vitlab.data.images.refusals import MOST_PIECES, BadImage, Reason

WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, ORIENTATION = 256, 257, 258, 259, 262, 274
STRIPS, SAMPLES, STRIP_ROWS, STRIP_BYTES, PLANES = 273, 277, 278, 279, 284
TILE_WIDTH, TILE_HEIGHT, TILES, TILE_BYTES = 322, 323, 324, 325
FILL_ORDER, PREDICTOR, COLOURS, EXTRA, SAMPLE_FORMAT = 266, 317, 320, 338, 339
DEFAULTS = {COMPRESSION: (1,), BITS: (1,), SAMPLES: (1,), PLANES: (1,), FILL_ORDER: (1,), PREDICTOR: (1,), EXTRA: ()}
KEPT = {  # the tags that are read, and the most values of each; offsets and sizes of strips have their own limit
    **dict.fromkeys((WIDTH, HEIGHT, COMPRESSION, PHOTOMETRIC, ORIENTATION, SAMPLES, STRIP_ROWS), 1),
    **dict.fromkeys((PLANES, TILE_WIDTH, TILE_HEIGHT, FILL_ORDER, PREDICTOR), 1),
    **dict.fromkeys((BITS, EXTRA, SAMPLE_FORMAT), 8),
    **dict.fromkeys((STRIPS, STRIP_BYTES, TILES, TILE_BYTES), MOST_PIECES["TIFF"]),
    COLOURS: 3 * 2**16,
}
TYPES = {1: "B", 3: "H", 4: "I"}  # whole numbers without sign
COMPRESSIONS = {1: "none", 5: "LZW", 8: "Deflate", 32773: "PackBits", 32946: "Deflate"}
PHOTOMETRICS = {0: "white is 0", 1: "black is 0", 2: "RGB", 3: "palette", 5: "CMYK"}
MOST_ENTRIES, MOST_PAGES = 1_000, 10_000
AGAIN = "save it as an 8-bit TIFF without compression (16-bit if black is 0), or as a PNG"
Tags = dict[int, tuple[int, ...]]


def checked_tags(data: bytes) -> tuple[Tags, bool]:
    """Return the tags of the first picture and whether there are more pictures; raises BadImage or struct.error."""
    order = "<" if data[:2] == b"II" else ">"
    if data[2:4] not in (b"*\0", b"\0*"):
        raise BadImage(Reason.unsupported_mode, f"is a BigTIFF; {AGAIN}")
    first, *others = _directories(data, order)
    tags = DEFAULTS | _tags(data, order, first)
    for tag in (WIDTH, HEIGHT, PHOTOMETRIC):
        if tag not in tags:
            raise _broken(f"has no tag {tag}")
    _check_pixels(tags)
    return tags, bool(others)


def plain_tiff(data: bytes) -> bytes:
    """Return the file with a directory of only the checked tags behind it, and no other."""
    order = "<" if data[:2] == b"II" else ">"
    tags, _ = checked_tags(data)
    data += bytes(-len(data) % 2)
    place = len(data) + 2 + 12 * len(tags) + 4
    entries, values = b"", b""
    for tag, numbers in sorted(tags.items()):
        kind = "H" if tag not in (STRIPS, STRIP_BYTES, TILES, TILE_BYTES) and max(numbers, default=0) < 2**16 else "I"
        packed = struct.pack(f"{order}{len(numbers)}{kind}", *numbers)
        is_inside = len(packed) <= 4
        where = packed.ljust(4, b"\0") if is_inside else struct.pack(f"{order}I", place + len(values))
        values += b"" if is_inside else packed + bytes(len(packed) % 2)
        entries += struct.pack(f"{order}HHI", tag, {"H": 3, "I": 4}[kind], len(numbers)) + where
    directory = struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + values
    return data[:4] + struct.pack(f"{order}I", len(data)) + data[8:] + directory


def _directories(data: bytes, order: str) -> Iterator[int]:
    """Yield the offset of each page's directory; a loop is refused."""
    seen: set[int] = set()
    at = struct.unpack_from(f"{order}I", data, 4)[0]
    while at:
        if at in seen or len(seen) == MOST_PAGES:
            raise _broken(
                "has pages that follow each other in a loop" if at in seen else f"has over {MOST_PAGES} pages"
            )
        seen.add(at)
        entries = struct.unpack_from(f"{order}H", data, at)[0]
        following = struct.unpack_from(f"{order}I", data, at + 2 + 12 * entries)[0]
        yield at
        at = following


def _tags(data: bytes, order: str, start: int) -> Tags:
    entries = struct.unpack_from(f"{order}H", data, start)[0]
    if not 0 < entries <= MOST_ENTRIES:
        raise _broken(f"has {entries} tags")
    tags: Tags = {}
    for at in range(start + 2, start + 2 + 12 * entries, 12):
        tag, kind, count = struct.unpack_from(f"{order}HHI", data, at)
        if tag not in KEPT:
            continue
        if kind not in TYPES or not 0 < count <= KEPT[tag] or tag in tags:
            raise _broken(f"has {count:,} values of type {kind} in tag {tag}")
        layout = f"{order}{count}{TYPES[kind]}"
        place = at + 8 if struct.calcsize(layout) <= 4 else struct.unpack_from(f"{order}I", data, at + 8)[0]
        tags[tag] = struct.unpack_from(layout, data, place)
    if tags.get(ORIENTATION, (1,))[0] not in range(1, 9):
        del tags[ORIENTATION]
    return tags


def _check_pixels(tags: Tags) -> None:
    """Raise BadImage unless the pixels have one clear meaning."""
    (compression,), (photometric,), bits = tags[COMPRESSION], tags[PHOTOMETRIC], tags[BITS]
    if compression not in COMPRESSIONS:
        allowed = ", ".join(dict.fromkeys(COMPRESSIONS.values()))
        found = f"is a TIFF with compression {compression}"
        raise BadImage(Reason.unsupported_mode, f"{found}; allowed are {allowed}; {AGAIN}")
    if set(tags.get(SAMPLE_FORMAT, (1,))) != {1}:
        raise BadImage(Reason.unsupported_mode, f"is a TIFF of floats or of numbers with a sign; {AGAIN}")
    if len(set(bits)) != 1 or bits[0] not in (1, 2, 4, 8, 16):
        raise BadImage(Reason.unsupported_mode, f"is a TIFF with {'/'.join(map(str, bits))} bits; {AGAIN}")
    is_negative = photometric == 0 and bits[0] == 16  # Pillow does not invert it
    if photometric not in PHOTOMETRICS or is_negative or tags[FILL_ORDER] != (1,):
        found = f"is a TIFF with photometric interpretation {photometric} and {bits[0]} bits"
        raise BadImage(Reason.unsupported_mode, f"{found}; {AGAIN}")
    if not 1 <= tags[SAMPLES][0] <= 8 or tags[PLANES][0] not in (1, 2):
        raise _broken(f"has {tags[SAMPLES][0]} samples per pixel in layout {tags[PLANES][0]}")


def check_pieces(data: bytes, tags: Tags) -> None:
    """Raise BadImage unless strips or tiles are as many as the picture needs, of usual size and inside the file."""
    (width,), (height,) = tags[WIDTH], tags[HEIGHT]
    if TILES in tags:
        (across,), (down,) = tags.get(TILE_WIDTH, (0,)), tags.get(TILE_HEIGHT, (0,))
        places, sizes = tags[TILES], tags.get(TILE_BYTES, ())
    else:
        across, down = width, min(tags.get(STRIP_ROWS, (height,))[0], height)
        places, sizes = tags.get(STRIPS, ()), tags.get(STRIP_BYTES, ())
    if not (0 < across < width + 1024 and 0 < down < height + 1024):
        raise _broken(f"has tiles of {across} x {down} pixels")
    needed = -(-width // across) * -(-height // down) * (tags[SAMPLES][0] if tags[PLANES] == (2,) else 1)
    if needed > MOST_PIECES["TIFF"] or len(places) != needed or len(sizes) != needed:
        raise _broken(f"has {len(places):,} pieces instead of {needed:,}; {MOST_PIECES['TIFF']:,} are allowed")
    end = max(place + size for place, size in zip(places, sizes, strict=True))
    if end > len(data):
        found = f"has {len(data):,} of the TIFF's {end:,} bytes"
        raise BadImage(Reason.truncated, f"{found}; get the complete file")


def _broken(found: str) -> BadImage:
    return BadImage(Reason.corrupt, f"{found}, which is not a valid TIFF; replace it or leave it out")
