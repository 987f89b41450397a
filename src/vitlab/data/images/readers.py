"""Pillow's readers of the formats that are allowed, and partial decoding of JPEGs."""

from collections.abc import Callable
from io import BytesIO

from PIL import features
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.images.tiff import plain_tiff


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


def _tiff(stream: BytesIO) -> ImageFile:
    return TiffImageFile(BytesIO(plain_tiff(stream.getvalue())))


def _heic(stream: BytesIO) -> ImageFile:
    try:
        from pillow_heif import HeifImageFile  # pyrefly: ignore[missing-import] - an extra
    except ImportError:
        way = 'install it with pip install "vitlab[heic]", or convert the file to JPEG'
        raise BadImage(Reason.unsupported_format, f"is HEIC, which needs the package pillow-heif; {way}") from None
    return HeifImageFile(stream)


def check_support(format: str) -> None:
    """Raise BadImage if this build of Pillow was made without the decoder of a format."""
    feature = FEATURES.get(format, "")
    if feature and not features.check(feature):
        way = "install Pillow from PyPI, or convert the file to JPEG or PNG"
        raise BadImage(Reason.unsupported_format, f"is {format}, which this build of Pillow does not read; {way}")


FEATURES = {"TIFF": "libtiff", "AVIF": "avif", "JPEG 2000": "jpg_2000"}  # Pillow's names of optional decoders
# Called directly, not through Image.open: no other plugin is used (EPS would start Ghostscript), a JPEG stays one
# picture (not an MPO), and Image.open does not warn about large pictures.
READERS: dict[str, Callable[[BytesIO], ImageFile]] = {
    "JPEG": Jpeg,
    "PNG": PngImageFile,
    "WEBP": WebPImageFile,
    "GIF": GifImageFile,
    "BMP": BmpImageFile,
    "TIFF": _tiff,
    "AVIF": AvifImageFile,
    "HEIC": _heic,
    "JPEG 2000": Jpeg2KImageFile,
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
