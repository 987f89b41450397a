"""The formats and limits of images, and the reasons to refuse one."""

from enum import StrEnum, auto

LARGEST_FILE = 50_000_000  # bytes
LARGEST_SIDE = 32_768  # pixels
LARGEST_ASPECT = 100  # longer side / shorter side
LARGEST_DECODE = 300_000_000  # bytes of memory at the peak of decoding, turning and conversion
MOST_PIXELS = {
    "JPEG": 64_000_000,
    "PNG": 32_000_000,
    "WEBP": LARGEST_DECODE // 16,  # its decoder allocates 16 bytes per pixel when it opens a file
    "GIF": 32_000_000,
    "BMP": 32_000_000,
    "TIFF": 32_000_000,
    "AVIF": LARGEST_DECODE // 16,
    "HEIC": LARGEST_DECODE // 16,
    "JPEG 2000": LARGEST_DECODE // 32,  # its decoder keeps every value in four bytes, more than once
}
MOST_SCANS = 100  # of a JPEG, each a pass over all pixels; encoders write about 10, and 1,000 in 220 KB take 7 s
MOST_PIECES = {  # that Pillow walks in Python; files of usual pieces have fewer
    "JPEG": 1_000,  # segments; Pillow's time for EXIF is quadratic in them
    "PNG": 250_000,  # chunks
    "GIF": 250_000,  # blocks
    "TIFF": 32_768,  # strips or tiles
    "AVIF": 10_000,  # boxes
    "HEIC": 10_000,
    "JPEG 2000": 1_000,
}
DECODE_PER_PIXEL = 16  # bytes of memory per pixel, under a limit set by the user
ALLOWED = ", ".join(MOST_PIXELS)
SUFFIXES = {
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif"), "JPEG"),
    **dict.fromkeys((".png", ".apng"), "PNG"),
    **dict.fromkeys((".tif", ".tiff"), "TIFF"),
    **dict.fromkeys((".heic", ".heif"), "HEIC"),
    **dict.fromkeys((".jp2", ".j2k", ".jpx", ".jpf"), "JPEG 2000"),
    ".avif": "AVIF",
    ".jxl": "JPEG XL",
    ".webp": "WEBP",
    ".gif": "GIF",
    ".bmp": "BMP",
}
# Formats that are recognised but not read, with a command that converts such a file.
CONVERSIONS = {"JPEG XL": "djxl IN.jxl OUT.png"}
READ_SUFFIXES = tuple(suffix for suffix, format in SUFFIXES.items() if format not in CONVERSIONS)


class Reason(StrEnum):
    """Why an image is refused."""

    missing = auto()
    special_file = auto()  # directory, FIFO, device, socket, loop of links
    unreadable = auto()  # permissions, a failing disk
    empty = auto()
    too_large = auto()  # bytes
    not_an_image = auto()
    unsupported_format = auto()  # a format that is not read, such as JPEG XL, or HEIC without its extra
    unsupported_mode = auto()
    too_many_pixels = auto()
    aspect_ratio = auto()
    truncated = auto()
    corrupt = auto()
    hash_mismatch = auto()  # with a manifest
    changed = auto()  # since the source was opened
    outside_root = auto()  # a link to a place outside the data folder


class Note(StrEnum):
    """What is unusual about an image that is accepted."""

    format_mismatch = auto()  # a PNG named .jpg
    animated = auto()  # the first frame or page is used
    broken_exif = auto()


class BadImage(ValueError):  # noqa: N818  it is the image that is bad, not the program
    """An image that is refused; its message is one line, safe to print for any file name."""

    def __init__(self, reason: Reason, detail: str, name: str = "") -> None:
        super().__init__(reason, detail, name)  # all arguments, so that it can be pickled
        self.reason = reason
        self.detail = detail
        self.name = name

    def __str__(self) -> str:
        return f"{self.name[-200:]!r} {self.detail}" if self.name else f"the image {self.detail}"
