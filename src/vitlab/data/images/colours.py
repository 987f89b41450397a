"""Conversion of a decoded picture to upright RGB: EXIF orientation, transparency, bit depths."""

import struct
from typing import cast

from PIL import Image
from PIL.ImageFile import ImageFile

from vitlab.data.images.refusals import BadImage, Reason

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


def orientation_of(exif: bytes | None) -> tuple[int, bool]:
    """Return the orientation, 1 to 8 (1 if unknown), and whether the first directory of the EXIF block is broken."""
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


def colour_key(image: ImageFile, depth: int) -> int | tuple[int, ...]:
    """Return the transparent colour of a grey or RGB PNG in the 8-bit units of Pillow's pixels."""
    key = image.info["transparency"]
    if image.mode == "L":
        return key % 2**depth * 255 // (2**depth - 1)  # depth 2, 4, 8; Pillow widens the pixels but not the key
    if depth == 16:
        raise BadImage(Reason.unsupported_mode, "is a 16-bit PNG with a transparent colour; save it with 8 bits")
    return key


# Peak memory per pixel in bytes, measured with Pillow 13: the decoded picture, its conversion, and for a progressive
# JPEG the coefficients of all scans.
PLAIN_COST = {"RGB": 4, "1": 5, "L": 5, "P": 5, "RGBA": 8, "LA": 8, "PA": 8, "CMYK": 8}
PROGRESSIVE_COST = {"L": 5, "RGB": 10, "CMYK": 12}
KEY_COST = {"RGB": 12}  # with a transparent colour; other modes 9
OTHER_COST = 12  # 16 bits and what is refused later


def bytes_per_pixel(image: ImageFile, *, is_turned: bool) -> int:
    """Return the peak memory per pixel of decoding and conversion to upright RGB, from the header."""
    if "transparency" in image.info:
        cost = KEY_COST.get(image.mode, 9)
    elif image.info.get("progressive"):
        cost = PROGRESSIVE_COST.get(image.mode, OTHER_COST)
    else:
        cost = PLAIN_COST.get(image.mode, OTHER_COST)
    return max(cost, 8) if is_turned else cost  # two copies while it is rotated


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert a picture to RGB, transparency over white; raises BadImage for a mode without one clear meaning."""
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
        case "I;16" | "I;16B" | "I", _:
            return _from_16_bits(image)
        case mode, _:
            raise BadImage(Reason.unsupported_mode, f"has pixels of mode {mode}; save it as 8-bit RGB")


def _over_white(image: Image.Image) -> Image.Image:
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image)
    return white


def _from_16_bits(image: Image.Image) -> Image.Image:
    """Map 0..65535 to 0..255 by v / 257, rounded."""
    image = image.convert("I")
    low, high = cast(tuple[int, int], image.getextrema())
    if low < 0 or high > 65535:
        raise BadImage(Reason.unsupported_mode, f"has grey values {low}..{high}; 16 bits hold 0..65535; rescale it")
    table = [(value + 128) // 257 for value in range(65536)]
    if "transparency" in image.info:
        table[image.info["transparency"]] = 255
    return image.point(table, "L").convert("RGB")
