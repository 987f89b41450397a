"""Nasty image files, for everything that reads pictures: each with its outcome."""

import zlib

import numpy as np
from PIL import Image

from pictures import animation, chunk, claiming, exif, jpeg, photo, png, saved, with_exif

# name: bytes, and the reason it is refused for; None is accepted
NASTY = {
    "n01 cut in half.jpg": (jpeg()[: len(jpeg()) // 2], "truncated"),
    "n02 cut to 100.jpg": (jpeg()[:100], "truncated"),
    "n03 empty.jpg": (b"", "empty"),
    "n04 overwritten.jpg": (jpeg()[:30] + bytes(300) + jpeg()[330:], "corrupt"),
    "n08 broken exif.jpg": (with_exif(jpeg(), b"Exif\0\0II*\0\xff\xff\xff\xff"), None),
    "n05 page.jpg": (b"<!DOCTYPE html><title>404</title>", "not_an_image"),
    "n06 png named.jpg": (saved(photo(), "PNG"), None),
    "n07 turned.jpg": (with_exif(jpeg(), exif(6)), None),
    "n09 inks.jpg": (jpeg(photo().convert("CMYK")), None),
    "n10 sixteen bits.png": (saved(Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000), "PNG"), None),
    "n11 palette.png": (saved(photo().convert("P"), "PNG", transparency=bytes(range(256))), None),
    "n12 alpha.png": (saved(photo().convert("RGBA"), "PNG"), None),
    "n13 one bit.png": (saved(photo().convert("1"), "PNG"), None),
    "n14 float.png": (saved(Image.new("F", (4, 4), -1.0), "TIFF"), "unsupported_mode"),
    "n15 frames.gif": (animation("GIF", 3), None),
    "n16 many frames.gif": (animation("GIF", 60), None),
    "n17 claims.png": (claiming("PNG", 60_000, 60_000), "too_many_pixels"),
    "n19 text bomb.png": (png(1, 1, b"\0\0", chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(20_000_000)))), "corrupt"),
    "n18 bomb.png": (claiming("PNG", 13_000, 13_000), "too_many_pixels"),
    "n20 checksum.png": (saved(photo(), "PNG")[:-13] + b"\0" + saved(photo(), "PNG")[-12:], "corrupt"),
    "n21 dot.png": (saved(Image.new("RGB", (1, 1)), "PNG"), None),
    "n21 thread.png": (saved(Image.new("L", (1, 20_000)), "PNG"), "aspect_ratio"),
    "n22 no width.png": (png(0, 4, b""), "corrupt"),
    "n23 loop.png": (b"II*\0\x08\0\0\0\1\0" + bytes(12) + b"\x08\0\0\0", "corrupt"),
    "n24 script.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not_an_image"),
    "n25 =cmd<img onerror>\n\u202e.png": (saved(photo(), "PNG"), None),
}
