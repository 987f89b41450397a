"""The image gate against the nasty inputs N01-N26 and the promises E5, E6, E10; every input is built here."""

import os
import pickle
import random
import socket
import struct
import subprocess
import sys
import textwrap
import zlib
from collections import Counter
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from pictures import animation, chunk, claiming, exif, jpeg, photo, png, saved, segment, with_exif
from vitlab.data.images.colours import to_rgb
from vitlab.data.images.gate import Decoded, read_image
from vitlab.data.images.refusals import LARGEST_FILE, BadImage, Note, Reason
from vitlab.data.images.structure import sniff

FORMATS = ["JPEG", "PNG", "WEBP", "GIF", "BMP"]


# -- Builders ------------------------------------------------------------------------------------


def pixels(decoded: Decoded) -> np.ndarray:
    assert decoded.image.mode == "RGB"
    return np.asarray(decoded.image).astype(int)


def reason(source: Path | str | bytes) -> Reason:
    with pytest.raises(BadImage) as caught:
        read_image(source)
    return caught.value.reason


# -- What is accepted ----------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_sound_image_is_decoded_to_its_pixels_without_a_note(format, tmp_path):
    path = tmp_path / f"a.{format.lower()}"
    path.write_bytes(saved(photo(), format, **{"WEBP": {"lossless": True}}.get(format, {})))
    decoded = read_image(path)
    with Image.open(path) as reference:
        expected = np.asarray(reference.convert("RGB")).astype(int)
    assert (decoded.format, decoded.notes, type(decoded.image.info)) == (format, (), dict)
    assert np.array_equal(pixels(decoded), expected)


def test_path_string_and_bytes_give_the_same_picture(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg())
    pictures = [pixels(read_image(source)) for source in (path, str(path), jpeg())]
    assert all(np.array_equal(picture, pictures[0]) for picture in pictures)


@pytest.mark.parametrize("format", FORMATS)
def test_sniff_knows_a_format_by_its_bytes(format):
    assert sniff(saved(photo(), format)) == format


@pytest.mark.parametrize("data", [b"", b"BM", b"BMW is a car maker, not a bitmap", b"RIFF\0\0\0\0WAVE", b"\xff\xd8"])
def test_sniff_is_not_taken_in_by_a_likeness(data):
    assert sniff(data) is None


def test_n06_png_named_jpg_is_accepted_and_noted(tmp_path):
    path = tmp_path / "a.JPEG"
    path.write_bytes(saved(photo(), "PNG"))
    decoded = read_image(path)
    assert (decoded.format, decoded.notes) == ("PNG", (Note.format_mismatch,))


def test_name_of_bytes_is_asked_for_the_format_but_never_opened(tmp_path):
    assert read_image(jpeg(), name=str(tmp_path / "absent.png")).notes == (Note.format_mismatch,)


def test_decoded_webp_lets_go_of_its_decoder():
    assert type(read_image(saved(photo(), "WEBP")).image) is Image.Image


def test_decoded_picture_carries_no_metadata_that_could_be_applied_again():
    decoded = read_image(saved(photo(), "PNG", exif=b"Exif\0\0" + exif(6)))
    assert not decoded.image.info
    assert not decoded.image.getexif()


# -- Files ---------------------------------------------------------------------------------------


def test_n03_empty_file_is_empty(tmp_path):
    (tmp_path / "a.jpg").touch()
    assert reason(tmp_path / "a.jpg") == reason(b"") == Reason.empty


def test_file_over_the_limit_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "a.jpg").open("wb") as file:
        file.truncate(10 * 2**40)  # sparse; reading it would fail for want of memory
    assert reason(tmp_path / "a.jpg") == Reason.too_large


def test_bytes_over_the_limit_are_refused():
    assert reason(jpeg().ljust(LARGEST_FILE + 1, b"\0")) == Reason.too_large


@pytest.mark.timeout(600)
def test_n26_fifo_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "a.jpg")
    assert reason(tmp_path / "a.jpg") == Reason.special_file


@pytest.mark.timeout(600)
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_n26_device_is_refused(device, tmp_path):
    (tmp_path / "a.jpg").symlink_to(device)
    assert reason(tmp_path / "a.jpg") == Reason.special_file


def test_n26_folder_socket_and_loop_of_links_are_special_files(tmp_path, monkeypatch):
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.jpg")
        found = [reason(name) for name in ("folder.jpg", "loop.jpg", "socket.jpg")]
    assert found == [Reason.special_file] * 3


@pytest.mark.parametrize("name", ["absent.jpg", "dangling.jpg", "file/a.jpg", "nul\0.jpg", ""])
def test_n26_absent_dangling_and_impossible_paths_are_missing(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("dangling.jpg").symlink_to("nowhere.jpg")
    Path("file").touch()
    assert reason(name) == Reason.missing


def test_link_to_a_regular_file_is_followed(tmp_path):
    (tmp_path / "a.jpg").write_bytes(jpeg())
    (tmp_path / "link.jpg").symlink_to("a.jpg")
    assert read_image(tmp_path / "link.jpg").image.size == photo().size


def test_file_that_the_system_will_not_open_is_unreadable(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg())
    path.chmod(0)
    denied = path if os.geteuid() else tmp_path / ("a" * 300)  # nothing is denied to root, but a name can be too long
    assert reason(denied) == Reason.unreadable


NAMES = [
    "new\nline.jpg",
    "\u202egpj.exe.jpg",
    "a" * 250 + ".jpg",
    "-rf.jpg",
    "=cmd|' C calc'!A0.jpg",
    "<img src=x onerror=alert(1)>.jpg",
    "\x1b[31mred.jpg",
    os.fsdecode(b"\xff\xfe.jpg"),
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_n25_file_of_any_name_is_read(name, tmp_path):
    (tmp_path / name).write_bytes(jpeg())
    assert read_image(tmp_path / name).notes == ()


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_n25_message_about_a_file_of_any_name_is_one_printable_line(name, tmp_path):
    (tmp_path / name).write_bytes(jpeg()[:100])
    with pytest.raises(BadImage) as caught:
        read_image(tmp_path / name)
    assert str(caught.value).isprintable()
    assert str(caught.value).encode()


# -- What is no image ----------------------------------------------------------------------------

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n0 0 10 10 rectfill\nshowpage\n%%EOF\n"
SVG = b'<?xml version="1.0"?><!DOCTYPE s [<!ENTITY a SYSTEM "file:///etc/hostname">]><svg>&a;</svg>'


@pytest.fixture
def started(monkeypatch) -> list:
    """The programs that somebody tried to start."""
    programs = []

    def refuse(command, *_, **__):
        programs.append(command)
        raise OSError("no program may start")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(os, "system", refuse)
    return programs


@pytest.mark.parametrize("data", [EPS, SVG, b"\xc5\xd0\xd3\xc6" + EPS], ids=["eps", "svg", "binary eps"])
def test_n24_eps_and_svg_are_no_images_and_start_no_program(data, started, tmp_path):
    (tmp_path / "a.jpg").write_bytes(data)
    assert reason(tmp_path / "a.jpg") == Reason.not_an_image
    assert not started


def test_n24_control_plain_pillow_does_start_ghostscript_for_an_eps(started, monkeypatch):
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # as before the first search for it
    with Image.open(BytesIO(EPS)) as image, pytest.raises(OSError):
        image.load()
    assert started


def test_n05_html_page_is_no_image_and_the_message_names_what_is():
    with pytest.raises(BadImage, match="JPEG, PNG, WEBP, GIF, BMP") as caught:
        read_image(b"<!DOCTYPE html>\n<title>404 Not Found</title>", name="a.jpg")
    assert caught.value.reason == Reason.not_an_image


def test_n14_float_tiff_with_negatives_is_refused_with_the_way_out():
    with pytest.raises(BadImage, match=r"TIFF of floats .*save it as an 8-bit TIFF") as caught:
        read_image(saved(Image.new("F", (8, 8), -0.5), "TIFF"))
    assert caught.value.reason == Reason.unsupported_mode


def test_n23_tiff_whose_directory_points_to_itself_is_refused():
    loop = b"II*\0" + struct.pack("<IHHHIII", 8, 1, 0x0100, 3, 1, 1, 8)
    assert reason(loop) == Reason.corrupt


def heif(*brands: bytes) -> bytes:
    """The first box of a picture or film of Apple and others."""
    return struct.pack(">I4s4sI", 12 + 4 * len(brands), b"ftyp", brands[0], 0) + b"".join(brands[1:]) + b"more"


@pytest.mark.parametrize(
    ("data", "format"),
    [
        (b"\xff\x0a\x2f\x03", "JPEG XL"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
    ],
)
def test_a_picture_of_another_format_is_refused_by_its_name_with_the_way_out(data, format):
    with pytest.raises(BadImage, match=rf"is {format}, which is not supported; .*convert it to JPEG or PNG") as caught:
        read_image(data, name="a.jpg")
    assert caught.value.reason == Reason.unsupported_format


@pytest.mark.parametrize(
    ("data", "format"),
    [
        (heif(b"heic", b"mif1", b"heic"), "HEIC"),  # a telephone
        (heif(b"mif1", b"heic", b"miaf"), "HEIC"),
        (heif(b"mif1", b"avif", b"miaf"), "AVIF"),
    ],
)
def test_brands_tell_avif_from_heic(data, format):
    assert sniff(data) == format


def test_a_film_is_no_picture():
    assert reason(heif(b"isom", b"iso2", b"mp41")) == Reason.not_an_image


@pytest.mark.parametrize("format", FORMATS)
def test_the_pixel_limit_can_be_lowered_and_raised(format):
    data = saved(photo(48, 32), format)
    assert read_image(data, max_pixels=48 * 32).image.size == (48, 32)
    with pytest.raises(BadImage, match=r"48 x 32 = 1,536 pixels; a .* may have 1,535; .*--max-pixels 1536") as caught:
        read_image(data, max_pixels=48 * 32 - 1)
    assert caught.value.reason == Reason.too_many_pixels


def test_a_raised_pixel_limit_reads_what_the_default_refuses():
    data = saved(Image.new("1", (8000, 4001)), "PNG")  # 32,008,000 pixels; the default is 32,000,000
    assert reason(data) == Reason.too_many_pixels
    assert read_image(data, max_pixels=33_000_000).image.size == (8000, 4001)


def test_every_refusal_is_one_line_that_names_the_file_and_says_what_to_do():
    with pytest.raises(BadImage) as caught:
        read_image(png(1, 20000, bytes(20000)), name="tall.png")
    assert str(caught.value) == (
        "'tall.png' is 1 x 20000 = 20,000 pixels; one side may be 100 times the other; crop it or leave it out"
    )


def test_refusal_survives_the_way_between_processes():
    bad = pickle.loads(pickle.dumps(BadImage(Reason.corrupt, "is bad", "a.jpg")))  # noqa: S301  our own bytes
    assert (bad.reason, bad.detail, str(bad)) == (Reason.corrupt, "is bad", "'a.jpg' is bad")


def test_refusal_does_not_keep_the_failed_decode_alive():
    with pytest.raises(BadImage) as caught:
        read_image(jpeg()[:-500])
    assert caught.value.__context__ is None
    assert caught.traceback[-1].name == "_named"


# -- Truncated and corrupt -----------------------------------------------------------------------


@pytest.mark.parametrize("progressive", [False, True])
def test_n01_jpeg_cut_in_half_is_truncated(progressive):
    data = jpeg(progressive=progressive)
    assert reason(data[: len(data) // 2]) == Reason.truncated


def test_n01_cut_jpeg_is_truncated_even_where_other_code_told_pillow_to_load_such(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert reason(jpeg()[:-2]) == Reason.truncated


def test_n02_jpeg_cut_to_100_bytes_is_truncated():
    assert reason(jpeg()[:100]) == Reason.truncated


def test_a_jpeg_with_flipped_bits_is_corrupt_and_never_truncated():
    """Nothing is missing from it: whoever reads the reason must not look for a broken download."""
    rng, found = random.Random(0), Counter()
    for whole in (jpeg(), jpeg(progressive=True)):
        for _ in range(1000):
            data = bytearray(whole)
            for at in rng.sample(range(4, len(data) - 2), 3):
                data[at] ^= 1 << rng.randrange(8)
            try:
                read_image(bytes(data))
            except BadImage as bad:
                found[bad.reason] += 1
    assert found[Reason.corrupt] > 20
    assert not found[Reason.truncated]


def test_jpeg_cut_behind_its_thumbnail_is_truncated():
    whole = with_exif(jpeg(), exif(1) + jpeg(photo(8, 8)))
    assert reason(whole[:-100]) == Reason.truncated


@pytest.mark.parametrize("format", FORMATS)
def test_image_cut_in_half_is_truncated(format):
    data = saved(photo(), format)
    assert reason(data[: len(data) // 2]) == Reason.truncated


def test_png_without_its_end_chunk_is_truncated():
    assert reason(saved(photo(), "PNG")[:-12]) == Reason.truncated


def test_n04_jpeg_with_overwritten_tables_is_corrupt():
    data = bytearray(jpeg())
    at = data.index(b"\xff\xc4")  # the first Huffman table: a count of codes per length
    data[at + 5 : at + 21] = b"\xfe" * 16
    assert reason(bytes(data)) == Reason.corrupt


@pytest.mark.parametrize("kind", [b"IHDR", b"IDAT", b"tEXt"])
def test_n20_png_with_a_wrong_checksum_is_corrupt(kind):
    data = bytearray(png(4, 4, bytes(16), chunk(b"tEXt", b"key\0value")))
    at = data.index(kind)
    data[at + 4 + int.from_bytes(data[at - 4 : at])] ^= 1
    assert reason(bytes(data)) == Reason.corrupt


def test_n20_control_plain_pillow_decodes_a_wrong_checksum_of_pixels():
    data = bytearray(png(4, 4, bytes(16)))
    data[-13] ^= 1
    with Image.open(BytesIO(data)) as image:
        image.load()


@pytest.mark.parametrize("kind", ["zTXt", "iCCP", "iTXt"])
@pytest.mark.parametrize("place", ["before", "after"])
def test_n19_bomb_in_a_text_or_profile_chunk_is_corrupt(kind, place):
    packed = zlib.compress(bytes(20_000_000))
    head = {"zTXt": b"key\0\0", "iCCP": b"key\0\0", "iTXt": b"key\0\1\0\0\0"}[kind]
    bomb = chunk(kind.encode(), head + packed)
    whole = png(4, 4, bytes(16), bomb) if place == "before" else png(4, 4, bytes(16))[:-12] + bomb + chunk(b"IEND")
    assert reason(whole) == Reason.corrupt


def test_png_with_its_header_late_or_twice_is_corrupt():
    data, header = png(4, 4, bytes(16)), chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0))
    late = data.replace(header, chunk(b"tEXt", b"key\0value") + header)
    assert [reason(late), reason(data.replace(header, header * 2))] == [Reason.corrupt] * 2


@pytest.mark.parametrize("frames", [[0], [2, 2]], ids=["no frames", "counted twice"])
def test_animation_chunk_that_pillow_warns_about_is_corrupt(frames):
    control = [chunk(b"acTL", struct.pack(">II", n, 0)) for n in frames]
    with pytest.raises(BadImage, match="not a valid animated PNG"):
        read_image(png(4, 4, bytes(16), *control))


@pytest.mark.parametrize(("width", "height"), [(0, 4), (4, 0)])
def test_n22_png_without_width_or_height_is_corrupt(width, height):
    assert reason(png(width, height, b"")) == Reason.corrupt


@pytest.mark.parametrize("cut", [1, 2], ids=["trailer", "trailer and end of frame"])
def test_gif_without_its_end_is_accepted_when_the_first_picture_is_whole(cut):
    assert read_image(saved(photo(), "GIF")[:-cut]).image.size == photo().size


def test_png_whose_pixels_end_too_early_is_truncated():
    assert reason(png(100, 100, bytes(100))) == Reason.truncated


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("order", ["<", ">"])
def test_300_random_bytes_changed_never_raise_anything_but_bad_image(format, order):
    draw = random.Random(0)
    block = b"Exif\0\0" + exif(6, order=order)
    whole = saved(photo(), format, **{} if format in ("GIF", "BMP") else {"exif": block})
    for _ in range(300):
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= draw.randrange(1, 256)
        try:
            assert read_image(bytes(data)).image.mode == "RGB"
        except BadImage as bad:
            assert "Warning" not in bad.detail  # noqa: PT017  either outcome is right, a warning is not


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "BMP"])
def test_300_random_truncations_are_all_refused(format):
    draw = random.Random(0)
    whole = saved(photo(), format)
    found = {reason(whole[: draw.randrange(1, len(whole))]) for _ in range(300)}
    assert found <= {Reason.truncated, Reason.not_an_image}  # not an image: the magic bytes are cut


def test_300_random_gif_truncations_never_raise_anything_but_bad_image():
    draw = random.Random(0)
    whole = saved(photo(), "GIF")
    for _ in range(300):
        try:
            assert read_image(whole[: draw.randrange(len(whole))]).image.size == photo().size
        except BadImage as bad:
            assert bad.reason in (Reason.truncated, Reason.not_an_image, Reason.empty)  # noqa: PT017


# -- Orientation ---------------------------------------------------------------------------------

STORED = {  # how an upright picture (H, W, 3) lies in the file that has this orientation
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a.swapaxes(0, 1)[::-1],
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: a.swapaxes(0, 1)[:, ::-1],
}


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize(("format", "most"), [("JPEG", 3), ("PNG", 0), ("WEBP", 0)])
def test_e6_all_eight_orientations_give_the_upright_picture(format, most, orientation, order):
    upright = np.asarray(photo())
    lying = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    options = {"JPEG": {"quality": 95, "subsampling": 0}, "PNG": {}, "WEBP": {"lossless": True}}[format]
    decoded = read_image(saved(lying, format, exif=b"Exif\0\0" + exif(orientation, order=order), **options))
    assert decoded.image.size == photo().size
    assert abs(pixels(decoded) - upright).max() <= most
    assert decoded.notes == ()


def test_orientation_behind_the_pixels_of_a_png_is_applied():
    data = saved(photo(), "PNG")[:-12] + chunk(b"eXIf", exif(6)) + chunk(b"IEND")
    assert read_image(data).image.size == photo().size[::-1]


def test_orientation_written_as_a_long_is_applied():
    assert read_image(with_exif(jpeg(), exif(8, order=">", kind=4))).image.size == photo().size[::-1]


BROKEN = {
    "garbage": b"\x00\x01garbage",
    "empty": b"",
    "header only": b"II*\0",
    "directory outside": b"II*\0\xff\xff\xff\x7f",
    "directory cut": exif(1)[:-8],
    "65535 entries": b"MM\0*\0\0\0\x08\xff\xff" + bytes(30),
    "orientation 0": exif(0),
    "orientation 9": exif(9),
    "value outside": exif(1, more=struct.pack("<HHII", 0x011A, 5, 1, 9999)),
    "value too long": exif(1, more=struct.pack("<HHII", 0x010E, 2, 2**32 - 1, 8)),
}


@pytest.mark.parametrize("block", BROKEN.values(), ids=BROKEN)
def test_n08_broken_exif_is_one_note_no_warning_and_an_unrotated_picture(block):
    decoded = read_image(with_exif(jpeg(), block))  # warnings are errors here
    assert decoded.notes == (Note.broken_exif,)
    assert decoded.image.size == photo().size


def test_orientation_is_applied_though_another_entry_is_broken():
    block = exif(6, more=struct.pack("<HHII", 0x011A, 5, 1, 9999))
    decoded = read_image(with_exif(jpeg(), block))
    assert (decoded.image.size, decoded.notes) == (photo().size[::-1], (Note.broken_exif,))


# -- The mode table (E5) -------------------------------------------------------------------------


def over_white(colour, alpha):
    """Exact, in real numbers."""
    colour, alpha = np.asarray(colour, float), np.asarray(alpha, float) / 255
    return np.rint(colour * alpha + 255 * (1 - alpha))


def test_n13_one_bit_is_black_and_white():
    found = pixels(read_image(png(8, 1, b"\xa5", depth=1)))
    assert found[0, :, 0].tolist() == [255, 0, 255, 0, 0, 255, 0, 255]


def test_grey_is_the_same_in_all_three_channels():
    found = pixels(read_image(png(16, 16, bytes(range(256)))))
    assert np.array_equal(found, np.arange(256).reshape(16, 16, 1).repeat(3, axis=2))


def test_n13_grey_with_alpha_lies_over_white():
    grey, alpha = np.meshgrid(np.arange(256), np.arange(256))
    data = png(256, 256, np.stack([grey, alpha], axis=-1).astype(np.uint8).tobytes(), colour=4)
    assert np.array_equal(pixels(read_image(data))[..., 1], over_white(grey, alpha))


@pytest.mark.parametrize("format", ["PNG", "WEBP"])
def test_n12_colour_with_alpha_lies_over_white(format):
    colour = np.asarray(photo(256, 64))
    alpha = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None], (64, 256, 1))
    image = Image.fromarray(np.concatenate([colour, alpha], axis=-1))
    data = saved(image, format, **{"lossless": True, "exact": True} if format == "WEBP" else {})
    assert np.array_equal(pixels(read_image(data)), over_white(colour, alpha))


PALETTE = bytes([0, 0, 0, 200, 10, 20, 30, 100, 250, 60, 70, 80])


@pytest.mark.parametrize("alphas", [[0, 128, 255, 30], [255, 0, 255, 255], [255, 90]], ids=["bytes", "index", "short"])
def test_n11_palette_with_transparency_lies_over_white(alphas):
    data = png(4, 1, bytes(range(4)), chunk(b"PLTE", PALETTE), chunk(b"tRNS", bytes(alphas)), colour=3)
    alpha = np.array((alphas + [255] * 4)[:4])[:, None]
    assert np.array_equal(pixels(read_image(data))[0], over_white(np.array(list(PALETTE)).reshape(4, 3), alpha))


def test_palette_without_transparency_gives_its_colours():
    data = png(4, 1, bytes(range(4)), chunk(b"PLTE", PALETTE), colour=3)
    assert pixels(read_image(data))[0].ravel().tolist() == list(PALETTE)


def test_transparent_colour_of_a_gif_is_white():
    image = Image.new("P", (4, 1))
    image.putpalette(PALETTE)
    image.putdata(range(4))
    found = pixels(read_image(saved(image, "GIF", transparency=2)))
    assert found[0].tolist() == [[0, 0, 0], [200, 10, 20], [255, 255, 255], [60, 70, 80]]


@pytest.mark.parametrize(
    ("depth", "row", "key", "expected"),
    [
        (1, b"\x80", 1, [255, 0, 0, 0]),
        (1, b"\x80", 0, [255, 255, 255, 255]),
        (2, b"\x1b", 1, [0, 255, 170, 255]),
        (4, b"\x01\x2f", 1, [0, 255, 34, 255]),
        (8, bytes([0, 7, 8, 255]), 7, [0, 255, 8, 255]),
        (16, struct.pack(">4H", 0, 1000, 1001, 65535), 1000, [0, 255, 4, 255]),
    ],
)
def test_transparent_grey_of_a_png_is_white_at_every_depth(depth, row, key, expected):
    data = png(4, 1, row, chunk(b"tRNS", struct.pack(">H", key)), depth=depth)
    assert pixels(read_image(data))[0, :, 0].tolist() == expected


def test_transparent_colour_of_a_png_is_white_and_its_neighbour_is_not():
    data = png(2, 1, bytes([9, 8, 7, 9, 8, 6]), chunk(b"tRNS", struct.pack(">3H", 9, 8, 7)), colour=2)
    assert pixels(read_image(data))[0].tolist() == [[255, 255, 255], [9, 8, 6]]


def test_transparent_colour_of_16_bits_is_refused_as_pillow_keeps_only_8():
    data = png(1, 1, bytes(6), chunk(b"tRNS", bytes(6)), depth=16, colour=2)
    assert reason(data) == Reason.unsupported_mode


def test_n10_all_65536_values_of_16_bit_grey_are_scaled_and_rounded():
    values = np.arange(65536)
    found = pixels(read_image(png(256, 256, values.astype(">u2").tobytes(), depth=16)))
    assert np.array_equal(found[..., 2].ravel(), np.rint(values / 257))
    assert found.mean() == 127.5


@pytest.mark.parametrize("depth_colour", [(16, 2), (16, 6)])
def test_16_bit_colour_is_within_one_step(depth_colour):
    depth, colour = depth_colour
    values = np.arange(0, 65536, 13)
    channels = [values, values, values] + ([np.full_like(values, 65535)] if colour == 6 else [])
    data = png(71, 71, np.stack(channels, axis=-1)[:5041].astype(">u2").tobytes(), depth=depth, colour=colour)
    assert abs(pixels(read_image(data))[..., 0].ravel() - values[:5041] / 257).max() <= 1


@pytest.mark.parametrize("ink", [(0, 0, 0, 0), (255, 0, 0, 0), (100, 50, 0, 60), (10, 200, 90, 128), (0, 0, 0, 255)])
def test_n09_cmyk_jpeg_is_within_three_of_paper_times_ink(ink):
    data = jpeg(Image.new("CMYK", (16, 16), ink))
    assert b"Adobe" in data[:200]  # so its inks are stored inverted
    c, m, y, k = np.array(ink) / 255
    expected = 255 * (1 - np.array([c, m, y])) * (1 - k)
    assert abs(pixels(read_image(data)) - expected).max() <= 3


def test_alpha_of_a_bmp_lies_over_white():
    masks = struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    header = struct.pack("<IiiHHIIiiII", 56, 1, 1, 1, 32, 3, 4, 0, 0, 0, 0) + masks
    data = b"BM" + struct.pack("<IHHI", 14 + 56 + 4, 0, 0, 70) + header + bytes([10, 20, 30, 128])
    assert np.array_equal(pixels(read_image(data))[0, 0], over_white([30, 20, 10], 128))


@pytest.mark.parametrize("mode", ["F", "HSV", "LAB", "YCbCr", "RGBX"])
def test_mode_without_one_plain_meaning_is_refused(mode):
    with pytest.raises(BadImage, match=mode) as caught:
        to_rgb(Image.new(mode, (2, 2)))
    assert caught.value.reason == Reason.unsupported_mode


def test_mode_i_is_scaled_as_16_bits_and_refused_beyond_them():
    assert to_rgb(Image.new("I", (1, 1), 40000)).getpixel((0, 0)) == (156, 156, 156)
    with pytest.raises(BadImage, match="65536"):
        to_rgb(Image.new("I", (1, 1), 65536))


def test_mode_pa_lies_over_white():
    image = Image.new("RGBA", (2, 2), (200, 10, 20, 128)).convert("PA")
    assert to_rgb(image).getpixel((0, 0)) == tuple(over_white([200, 10, 20], 128))


# -- Animations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP"])
def test_n15_first_frame_of_an_animation_is_used_and_noted(format):
    decoded = read_image(animation(format, 3))
    assert decoded.notes == (Note.animated,)
    assert np.array_equal(pixels(decoded), np.broadcast_to([10, 20, 30], (16, 16, 3)))


def test_n16_frames_of_a_gif_behind_the_second_are_never_looked_at():
    data = animation("GIF", 400)
    second = data.index(b"\x21\xf9", data.index(b"\x21\xf9") + 1)
    decoded = read_image(data[: second + 40] + b"\xff" * (len(data) - second - 40))
    assert decoded.notes == (Note.animated,)
    assert np.array_equal(pixels(decoded), pixels(read_image(data)))


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP"])
def test_animation_of_one_frame_is_a_picture(format):
    assert read_image(animation(format, 1)).notes == ()


# -- Limits (E10) --------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("width", "height"), [(9000, 9000), (32_769, 400), (400, 32_769), (65_535, 65_535)])
def test_claimed_size_over_a_limit_is_too_many_pixels(format, width, height):
    assert reason(claiming(format, width, height)) == Reason.too_many_pixels


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF", "BMP"])
def test_only_a_jpeg_may_have_64_million_pixels(format):
    assert reason(claiming(format, 8000, 8000)) == Reason.too_many_pixels


def test_n17_small_png_claiming_60000_squared_is_refused():
    assert reason(png(60_000, 60_000, b"", chunk(b"tEXt", b"key\0" + bytes(900)))) == Reason.too_many_pixels


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_cut_bomb_is_still_a_bomb(format):
    assert reason(claiming(format, 60_000, 60_000)[:-12]) == Reason.too_many_pixels


@pytest.mark.parametrize("lossless", [False, True])
def test_claim_in_the_first_bytes_of_a_plain_webp_counts(lossless):
    data = bytearray(saved(photo(), "WEBP", lossless=lossless))
    at, claim = (21, struct.pack("<I", 12_999 | 12_999 << 14)) if lossless else (26, struct.pack("<HH", 13_000, 13_000))
    data[at : at + 4] = claim
    assert reason(bytes(data[:40])) == Reason.too_many_pixels


def test_lower_limit_of_pillow_is_respected(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert reason(saved(photo(), "WEBP")) == Reason.too_many_pixels


@pytest.mark.parametrize("junk", [b"", b"\0\0"], ids=["blocks", "junk between blocks"])
def test_frame_that_enlarges_the_canvas_of_a_gif_counts(junk):
    data = bytearray(saved(Image.new("L", (8, 8)), "GIF"))
    at = data.index(b",")
    data[at + 5 : at + 9] = struct.pack("<HH", 10_000, 10_000)  # 100 Mpx: Pillow would only warn
    assert reason(bytes(data[:at] + junk + data[at:])) == Reason.too_many_pixels


def test_second_frame_header_of_a_jpeg_cannot_hide_a_larger_size():
    small, large = claiming("JPEG", 8, 8), claiming("JPEG", 60_000, 60_000)
    at = large.index(b"\xff\xc0")
    header = large[at : at + 4 + 9]
    cut = small.index(b"\xff\xda")
    assert reason(small[:cut] + header + small[cut:]) == Reason.too_many_pixels


def test_n21_one_pixel_is_accepted():
    assert pixels(read_image(png(1, 1, b"\x07"))).tolist() == [[[7, 7, 7]]]


@pytest.mark.parametrize(("width", "height"), [(1, 20_000), (101, 1), (1, 101)])
def test_n21_aspect_over_100_is_refused(width, height):
    assert reason(png(width, height, bytes(width * height))) == Reason.aspect_ratio


def test_n21_aspect_of_100_is_accepted():
    assert read_image(png(100, 1, bytes(100))).image.size == (100, 1)


def scans(count: int) -> bytes:
    """A progressive grey JPEG of 8 x 8 pixels: the mean, then `count` - 1 scans that add nothing."""
    tables = segment(0xC4, b"\x00\x01" + bytes(15) + b"\0") + segment(0xC4, b"\x10\x01" + bytes(15) + b"\0")
    head = segment(0xDB, b"\0" + bytes([1] * 64)) + segment(0xC2, struct.pack(">BHHB", 8, 8, 8, 1) + b"\1\x11\0")
    first = segment(0xDA, b"\1\1\0\0\0\0") + b"\x7f"
    return (
        b"\xff\xd8" + head + tables + first + (segment(0xDA, b"\1\1\0\1\x3f\0") + b"\x7f") * (count - 1) + b"\xff\xd9"
    )


def test_jpeg_may_have_100_scans_and_no_more():
    assert read_image(scans(100)).image.size == (8, 8)
    assert reason(scans(101)) == Reason.corrupt


def test_file_of_too_many_pieces_is_corrupt():
    comments = jpeg()[:2] + segment(0xFE, b"") * 1001 + jpeg()[2:]
    chunks = png(4, 4, bytes(16), chunk(b"prVt") * 250_001)
    blocks = saved(photo(), "GIF")[:-1].replace(b",", b"!\xfe" + b"\1a" * 250_001 + b"\0,", 1)
    assert [reason(data) for data in (comments, chunks, blocks)] == [Reason.corrupt] * 3


def test_run_length_encoded_bmp_is_refused():
    data = bytearray(saved(Image.new("P", (8, 8)), "BMP"))
    data[30:34] = struct.pack("<I", 1)
    assert reason(bytes(data)) == Reason.unsupported_mode


IN_A_CHILD = """
    import resource, sys
    from pathlib import Path
    from PIL import Image
    from vitlab.data.images.gate import read_image
    from vitlab.data.images.refusals import BadImage

    path, megabytes, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + megabytes * 10**6,) * 2)
    try:
        if how == "gate":
            print(read_image(path).image.size)
        else:
            Image.MAX_IMAGE_PIXELS = None
            print(Image.open(path).convert("RGB").size)
    except BadImage as bad:
        print(bad.reason)
    except MemoryError:
        print("MemoryError")
"""


def read_with_at_most(megabytes: int, path: Path, how: str = "gate") -> str:
    """What becomes of an image in a process that may allocate this much more than it holds after its imports."""
    command = [sys.executable, "-c", textwrap.dedent(IN_A_CHILD), str(path), str(megabytes), how]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


@pytest.fixture(scope="module")
def bomb(tmp_path_factory) -> Path:
    """N18: a sound grey PNG of 13000 x 13000 pixels in about 164 KB."""
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(13_001 * 1000)) for _ in range(13)) + packer.flush()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 13_000, 13_000, 8, 0, 0, 0, 0))
    path = tmp_path_factory.mktemp("bomb") / "bomb.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", packed) + chunk(b"IEND"))
    return path


@pytest.mark.slow
def test_n18_bomb_of_169_megapixels_is_refused_within_20_megabytes(bomb):
    assert read_with_at_most(20, bomb) == Reason.too_many_pixels


@pytest.mark.slow
def test_n18_control_plain_pillow_runs_out_of_300_megabytes(bomb):
    assert read_with_at_most(300, bomb, how="pillow") == "MemoryError"


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_n17_claim_of_60000_squared_is_refused_within_20_megabytes(format, tmp_path):
    path = tmp_path / "claim"
    path.write_bytes(claiming(format, 60_000, 60_000))
    assert read_with_at_most(20, path) == Reason.too_many_pixels


@pytest.mark.slow
def test_e10_largest_jpeg_is_decoded_within_300_megabytes(tmp_path):
    path = tmp_path / "large.jpg"
    Image.new("RGB", (8000, 8000), (90, 120, 60)).save(path)
    assert read_with_at_most(300, path) == "(8000, 8000)"


def flat(mode: str, megapixels: float) -> Image.Image:
    side = int((megapixels * 1e6) ** 0.5)
    return Image.new("RGB", (side, side), (90, 120, 60)).convert(mode)


LARGEST_KINDS = {  # the largest of each kind that is read: mode, megapixels, format, options
    "turned.jpg": ("RGB", 37.4, "JPEG", {"exif": b"Exif\0\0" + exif(6)}),
    "inks.jpg": ("CMYK", 37.4, "JPEG", {}),
    "grey.jpg": ("L", 59.9, "JPEG", {}),
    "progressive.jpg": ("RGB", 29.9, "JPEG", {"progressive": True, "subsampling": 0}),
    "alpha.png": ("RGBA", 31.9, "PNG", {"compress_level": 1}),
    "key.png": ("RGB", 24.9, "PNG", {"compress_level": 1, "transparency": (1, 2, 3)}),
    "plain.webp": ("RGB", 18.7, "WEBP", {"method": 0}),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LARGEST_KINDS)
def test_e10_the_largest_of_every_kind_is_decoded_within_the_limit_and_a_larger_one_refused(name, tmp_path):
    mode, megapixels, format, options = LARGEST_KINDS[name]
    image = flat(mode, megapixels)
    image.save(tmp_path / name, format, **options)
    assert read_with_at_most(320, tmp_path / name) == str(image.size)  # 300 MB and what the allocator rounds up
    flat(mode, megapixels * 1.08).save(tmp_path / name, format, **options)
    assert read_with_at_most(20, tmp_path / name) == Reason.too_many_pixels


@pytest.mark.slow
def test_want_of_memory_is_a_refusal_like_any_other(tmp_path):
    path = tmp_path / "large.jpg"
    Image.new("RGB", (8000, 8000), (90, 120, 60)).save(path)
    assert read_with_at_most(100, path) == Reason.corrupt
