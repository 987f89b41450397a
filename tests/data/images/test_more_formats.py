"""TIFF, AVIF, HEIC and JPEG 2000 through the gate, and files that are made to hurt their decoders."""

import contextlib
import random
import struct
import sys
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from pictures import photo, saved
from vitlab.data.images.gate import read_image
from vitlab.data.images.refusals import BadImage, Note, Reason
from vitlab.data.images.tiff import plain_tiff

GREY16 = (np.arange(64 * 40, dtype=np.uint16).reshape(40, 64) * 25).astype(np.uint16)


def refused(data: bytes, **options) -> Reason:
    with pytest.raises(BadImage) as caught:
        read_image(data, **options)
    return caught.value.reason


def heic(image: Image.Image, **options) -> bytes:
    heif = pytest.importorskip("pillow_heif", reason="pillow-heif is not installed")
    file = BytesIO()
    heif.from_pillow(image).save(file, quality=-1, **options)
    return file.getvalue()


def tiff(tags: dict[int, tuple[int, ...]], pixels: bytes = b"", order: str = "<", following: int = 0) -> bytes:
    """A TIFF with one strip at offset 8, if any, and the given tags as 32-bit numbers."""
    start = 8 + len(pixels) + len(pixels) % 2
    values, entries = b"", b""
    place = start + 2 + 12 * len(tags) + 4
    for tag, numbers in sorted(tags.items()):
        packed = struct.pack(f"{order}{len(numbers)}I", *numbers)
        where = packed if len(packed) == 4 else struct.pack(f"{order}I", place + len(values))
        values += b"" if len(packed) == 4 else packed
        entries += struct.pack(f"{order}HHI", tag, 4, len(numbers)) + where
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", start)
    body = struct.pack(f"{order}H", len(tags)) + entries + struct.pack(f"{order}I", following) + values
    return head + pixels + bytes(len(pixels) % 2) + body


def grey(**changed: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """Tags of an 8-bit grey picture of 4 x 4 pixels; `t256=(9,)` changes one, an empty tuple removes it."""
    tags = {256: (4,), 257: (4,), 258: (8,), 259: (1,), 262: (1,), 273: (8,), 277: (1,), 278: (4,), 279: (16,)}
    tags |= {int(name[1:]): values for name, values in changed.items()}
    return {tag: values for tag, values in tags.items() if values}


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits"])
@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "RGBA", "CMYK", "LA"])
def test_tiffs_of_every_mode_and_allowed_compression_are_read(mode, compression):
    image = photo().convert(mode)
    decoded = read_image(saved(image, "TIFF", compression=compression), name="a.tiff")
    expected = read_image(saved(image, "PNG" if mode != "CMYK" else "TIFF")).image
    assert decoded.format == "TIFF"
    assert decoded.notes == ()
    assert np.array_equal(decoded.image, expected)


@pytest.mark.parametrize("compression", [None, "tiff_lzw"])
def test_16_bit_grey_is_scaled_by_257_like_a_png(compression):
    expected = read_image(saved(Image.fromarray(GREY16), "PNG")).image
    assert np.array_equal(read_image(saved(Image.fromarray(GREY16), "TIFF", compression=compression)).image, expected)
    assert np.array_equal(np.asarray(expected)[..., 0], (GREY16.astype(int) + 128) // 257)


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders_are_read(order):
    pixels = np.arange(16, dtype=np.uint16).reshape(4, 4) * 4000
    tags = grey(t258=(16,), t279=(32,))
    decoded = read_image(tiff(tags, pixels.astype(f"{order}u2").tobytes(), order)).image
    assert np.array_equal(np.asarray(decoded)[..., 1], (pixels.astype(int) + 128) // 257)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["TIFF", "AVIF"])
def test_turned_pictures_become_upright(format, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"exif": exif} | ({"quality": 100, "subsampling": "4:4:4"} if format == "AVIF" else {})
    as_png = read_image(saved(photo(), "PNG", exif=exif)).image
    found = read_image(saved(photo(), format, **options)).image
    assert found.size == as_png.size
    assert np.abs(np.asarray(found, int) - np.asarray(as_png, int)).max() <= (0 if format == "TIFF" else 6)


def test_the_first_page_of_a_tiff_is_used_and_noted():
    data = saved(photo(), "TIFF", save_all=True, append_images=[Image.new("RGB", (9, 9))])
    decoded = read_image(data)
    assert decoded.image.size == photo().size
    assert decoded.notes == (Note.animated,)


def test_only_checked_tags_reach_the_decoder():
    data = saved(photo(), "TIFF", tiffinfo={270: "a description", 34377: b"x" * 1000}, icc_profile=b"p" * 500)
    with Image.open(BytesIO(plain_tiff(data))) as image:
        assert not {270, 34377, 34675} & set(image.tag_v2)
        assert image.n_frames == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (saved(Image.new("F", (8, 8), -0.5), "TIFF"), Reason.unsupported_mode),
        (saved(Image.new("I", (8, 8), -5), "TIFF"), Reason.unsupported_mode),
        (saved(photo(), "TIFF", compression="jpeg"), Reason.unsupported_mode),
        (saved(photo().convert("1"), "TIFF", compression="group4"), Reason.unsupported_mode),
        (saved(photo(), "TIFF", big_tiff=True), Reason.unsupported_mode),
        (tiff(grey(t262=(0,), t258=(16,), t279=(32,)), bytes(32)), Reason.unsupported_mode),
        (tiff(grey(t256=(60_000,), t257=(60_000,)), bytes(16)), Reason.too_many_pixels),
        (tiff(grey(t256=(20_000,), t257=(20_000,)), bytes(16)), Reason.too_many_pixels),
        (tiff(grey(t256=(4,), t257=(4_000,)), bytes(16)), Reason.aspect_ratio),
        (tiff(grey(), bytes(16), following=24), Reason.corrupt),  # its own page again
        (tiff(grey(t279=(10**9,)), bytes(16)), Reason.truncated),
        (tiff(grey(t273=(10**9,)), bytes(16)), Reason.truncated),
        (tiff(grey(t278=(1,)), bytes(16)), Reason.corrupt),  # four strips are needed
        (tiff(grey(t273=(8,) * 9, t279=(16,) * 9), bytes(16)), Reason.corrupt),
        (tiff(grey(t322=(2**31,), t323=(2**31,), t324=(8,), t325=(16,)), bytes(16)), Reason.corrupt),
        (tiff(grey(t277=(60_000,)), bytes(16)), Reason.corrupt),
        (tiff(grey(t256=()), bytes(16)), Reason.corrupt),
        (tiff(grey(t262=()), bytes(16)), Reason.corrupt),
        (tiff(grey(t256=(0,)), bytes(16)), Reason.corrupt),
        (b"II*\0\x08\0\0\0\0\0\0\0\0\0", Reason.corrupt),  # no tag
        (b"II*\0\xff\xff\xff\x7f", Reason.truncated),
        (b"II*\0\x08\0\0\0\xff\xff", Reason.truncated),
        (b"II*\0" + struct.pack("<IHHHIII", 8, 1, 256, 3, 2**31, 1, 0), Reason.corrupt),  # a huge tag
    ],
)
def test_a_tiff_that_is_damaged_or_has_no_clear_meaning_is_refused(data, reason):
    assert refused(data) == reason


def test_a_refused_compression_is_named_with_those_allowed():
    with pytest.raises(
        BadImage, match=r"compression 7; allowed are none, LZW, Deflate, PackBits; save it as"
    ) as caught:
        read_image(saved(photo(), "TIFF", compression="jpeg"))
    assert caught.value.reason == Reason.unsupported_mode


@pytest.mark.parametrize("options", [{}, {"no_jp2": True}], ids=["jp2", "codestream"])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_jpeg_2000_is_read(mode, options):
    image = photo().convert(mode)
    decoded = read_image(saved(image, "JPEG2000", **options))
    assert decoded.format == "JPEG 2000"
    assert np.array_equal(decoded.image, read_image(saved(image, "PNG")).image)  # lossless by default


@pytest.mark.parametrize("format", ["AVIF", "HEIC"])
def test_avif_and_heic_are_read(format):
    data = saved(photo(), "AVIF", quality=100, subsampling="4:4:4") if format == "AVIF" else heic(photo())
    decoded = read_image(data, name=f"a.{format.lower()}")
    assert (decoded.format, decoded.notes) == (format, ())
    assert np.abs(np.asarray(decoded.image, int) - np.asarray(photo(), int)).max() <= 12


def test_heic_without_its_package_names_the_extra(monkeypatch):
    data = heic(photo())
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(BadImage, match=r'pip install "vitlab\[heic\]"') as caught:
        read_image(data)
    assert caught.value.reason == Reason.unsupported_format


def encoded(format: str) -> bytes:
    image = photo(128, 64)
    return heic(image) if format == "HEIC" else saved(image, {"JPEG 2000": "JPEG2000"}.get(format, format))


NEWER = ("TIFF", "AVIF", "HEIC", "JPEG 2000")


@pytest.mark.parametrize("format", NEWER)
def test_the_size_is_limited_before_anything_is_decoded(format):
    data = encoded(format)
    assert refused(data, max_pixels=128 * 64 - 1) == Reason.too_many_pixels
    assert read_image(data, max_pixels=128 * 64).image.size == (128, 64)
    width, height = struct.pack(">I", 128), struct.pack(">I", 64)
    huge = struct.pack(">I", 60_000)
    if format in ("AVIF", "HEIC"):
        assert refused(data.replace(width + height, huge + huge)) == Reason.too_many_pixels
    if format == "JPEG 2000":
        in_code = data.replace(b"\xff\x51\x00\x2f\x00\x00" + width + height, b"\xff\x51\x00\x2f\x00\x00" + huge + huge)
        assert in_code != data
        assert refused(in_code) in (Reason.too_many_pixels, Reason.unsupported_mode)
        assert refused(data.replace(height + width, huge + huge)) == Reason.too_many_pixels


@pytest.mark.parametrize("format", NEWER)
def test_cut_files_are_refused(format):
    data = encoded(format)
    for part in (12, 30, 100, len(data) // 2, len(data) - 20):
        assert refused(data[:part]) in (Reason.truncated, Reason.corrupt, Reason.not_an_image)


@pytest.mark.parametrize("format", NEWER)
def test_damaged_files_are_decoded_or_refused_and_nothing_else(format):
    whole, dice = encoded(format), random.Random(0)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(dice.choice((1, 1, 3, 20))):
            data[dice.randrange(len(data))] = dice.randrange(256)
        with contextlib.suppress(BadImage):
            assert read_image(bytes(data)).image.mode == "RGB"


def test_many_boxes_are_refused():
    boxes = struct.pack(">I4s", 8, b"free") * 20_000
    assert refused(saved(photo(), "AVIF") + boxes) == Reason.corrupt
    assert refused(saved(photo(), "JPEG2000") + boxes) == Reason.corrupt
