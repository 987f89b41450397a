"""Pillow's readers of the formats that are allowed, and partial decoding of JPEGs."""

from collections.abc import Callable
from io import BytesIO

from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile


class Jpeg(JpegImageFile):
    """Pillow's reader without its search for the resolution in EXIF, which warns if EXIF is broken."""

    def _read_dpi_from_exif(self) -> None:
        pass

    def keep(self, rows: int, shrink: int) -> None:
        """Let the decoder reduce both sides by `shrink` (1, 2, 4 or 8) and stop after `rows` rows of the result.

        The picture keeps its height, black below these rows: the order in which Pillow resizes the axes depends on it.
        """
        self._size = (-(-self.width // shrink), -(-self.height // shrink))
        self.tile = [self.tile[0]._replace(extents=(0, 0, self.width, rows))]
        self.decoderconfig = (shrink, 0)


# Called directly, not through Image.open: no other plugin is used (EPS would start Ghostscript), a JPEG stays one
# picture (not an MPO), and Image.open does not warn about large pictures.
READERS: dict[str, Callable[[BytesIO], ImageFile]] = {
    "JPEG": Jpeg,
    "PNG": PngImageFile,
    "WEBP": WebPImageFile,
    "GIF": GifImageFile,
    "BMP": BmpImageFile,
}


def rows_above(data: bytes, rows: int, shrink: int = 1) -> ImageFile | None:
    """Decode the first rows of a JPEG, reduced by `shrink`; None if it is unclear whether that succeeded.

    The rows are those of the whole picture bit for bit. About four fifths of the time is entropy decoding, which
    neither starts in the middle nor gets cheaper in a reduced picture, but which can stop early.
    """
    image = Jpeg(BytesIO(data))
    image.decodermaxblock = len(data)  # in one piece
    image.keep(rows, shrink)
    try:
        image.load()
    except Exception:  # after the last row libjpeg reports that more were expected
        if rows == image.height or image._im is None:
            return None
        last = image.im.crop((0, rows - 1, image.width, rows))
        return image if last.getbbox() else None  # rows are black until they are decoded
    return image
