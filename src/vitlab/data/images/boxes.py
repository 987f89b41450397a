"""Sizes of AVIF, HEIC and JPEG 2000 pictures, read from their boxes before anything is decoded."""

import struct
from collections.abc import Iterator

from vitlab.data.images.refusals import MOST_PIECES, BadImage, Reason

INSIDE = {b"meta": 4, b"iprp": 0, b"ipco": 0, b"jp2h": 0}  # boxes that hold boxes, after this many bytes
CODESTREAM = b"\xff\x4f\xff\x51"
MOST_COMPONENTS, MOST_TILES = 4, 4_096


def heif_sizes(data: bytes) -> list[tuple[int, int]]:
    """Return width and height of every picture, tile and preview of an AVIF or HEIC file."""
    found = [struct.unpack_from(">II", data, at + 4) for kind, at, _ in _boxes(data, "HEIC") if kind == b"ispe"]
    if not found:
        raise BadImage(Reason.corrupt, "states no size of its picture; replace it or leave it out")
    return found


def jpeg2000_sizes(data: bytes) -> list[tuple[int, int]]:
    """Return the sizes in the header of a JPEG 2000 file and in its coded data, which may differ."""
    if data.startswith(CODESTREAM):
        return [_coded_size(data, 0)]
    sizes = []
    for kind, at, end in _boxes(data, "JPEG 2000"):
        if kind == b"ihdr":
            height, width = struct.unpack_from(">II", data, at)
            sizes.append((width, height))
        elif kind == b"jp2c":
            if end > len(data):
                raise BadImage(Reason.truncated, "ends inside its coded data; get the complete file")
            sizes.append(_coded_size(data, at))
    if len(sizes) != 2:
        raise BadImage(Reason.corrupt, "is not one JPEG 2000 picture with its header; replace it or leave it out")
    return sizes


def _coded_size(data: bytes, at: int) -> tuple[int, int]:
    right, lower, left, upper, across, down = struct.unpack_from(">6I", data, at + 8)
    components = struct.unpack_from(">H", data, at + 40)[0]
    width, height = right - left, lower - upper
    tiles = -(-right // max(across, 1)) * -(-lower // max(down, 1))
    if not 0 < components <= MOST_COMPONENTS or not 0 < tiles <= MOST_TILES:
        found = f"has {components} components in {tiles:,} tiles; {MOST_COMPONENTS} in {MOST_TILES:,} are allowed"
        raise BadImage(Reason.unsupported_mode, f"{found}; save it as a PNG")
    return max(width, 0), max(height, 0)


def _boxes(data: bytes, format: str) -> Iterator[tuple[bytes, int, int]]:
    """Yield (kind, start of the content, end) of every box, also inside those that hold the headers."""
    pieces, waiting = 0, [(0, len(data))]
    while waiting:
        at, end = waiting.pop()
        while at + 8 <= end:
            if pieces == MOST_PIECES[format]:
                raise BadImage(Reason.corrupt, f"is in over {pieces:,} pieces, too many; save it again")
            pieces += 1
            length, kind = struct.unpack_from(">I4s", data, at)
            start = at + 8
            if length == 1:
                length, start = struct.unpack_from(">Q", data, start)[0], start + 8
            stop = at + length if length else end
            if stop < start:
                raise BadImage(Reason.corrupt, f"has a box {kind!r} of {length} bytes; replace it or leave it out")
            yield kind, start, stop
            if kind in INSIDE:
                waiting.append((start + INSIDE[kind], min(stop, end)))
            at = stop
