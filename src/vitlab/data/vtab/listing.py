"""One split of an image set as TFDS has it: a key and a label for every image, and a way to open some of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from vitlab.data.archives.members import Members
from vitlab.data.archives.stretches import Stretch
from vitlab.data.fingerprint import file_stamp
from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.source import Paths
from vitlab.require import require


class Pictures(Protocol):
    """Chosen images by number; can be sent to other processes."""

    def read(self, index: int, /) -> bytes | np.ndarray:
        """Return an image file, or pixels (H, W, 3) of uint8; raises BadImage."""
        ...

    def stamp(self, index: int, /) -> tuple[int, ...]:
        """See `Source.stamp`."""
        ...

    def paths(self) -> Paths:
        """See `Source.paths`."""
        ...


@dataclass(frozen=True)
class Listing:
    """A split: `keys` decide the order in which TFDS stores it; `choose` opens the images with these numbers."""

    keys: Sequence[str]
    labels: np.ndarray  # (n,)
    class_names: tuple[str, ...]
    choose: Callable[[np.ndarray], Pictures]


def file_listing(
    members: Members, names: Sequence[str], keys: Sequence[str], classes: Sequence[str], class_names: Sequence[str]
) -> Listing:
    """List image files, given the class of each; raises ValueError if some are missing."""
    there = set(members.names())
    missing = [name for name in names if name not in there]
    lacks = f"{members.path.name} lacks {len(missing):,} of {len(names):,} images, such as {missing[:1]!r:.100}"
    require(not missing, f"{lacks}; download it again")
    place = {name: number for number, name in enumerate(class_names)}

    def choose(numbers: np.ndarray) -> Pictures:
        return members.choose([names[number] for number in numbers.tolist()])

    return Listing(keys, np.array([place[name] for name in classes], np.int64), tuple(class_names), choose)


class Converted:
    """Image files that are converted when they are read, by a function that other processes can import."""

    def __init__(self, pictures: Pictures, convert: Callable[[bytes], bytes]) -> None:
        self._pictures, self._convert = pictures, convert
        self.stamp, self.paths = pictures.stamp, pictures.paths

    def read(self, index: int) -> bytes:
        data = self._pictures.read(index)
        assert isinstance(data, bytes)
        return self._convert(data)


class InFiles:
    """What pictures out of a few files have in common: paths, and a stamp of all files when they were opened."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = [str(Path(file).absolute()) for file in files]
        self._stamp = tuple(number for file in self._files for number in file_stamp(file))

    def stamp(self, index: int) -> tuple[int, ...]:
        return self._stamp

    def paths(self) -> list[str]:
        return self._files


class PixelRows(InFiles):
    """Pixels (n, H, W) or (n, H, W, 3) in memory."""

    def __init__(self, pixels: np.ndarray, files: Sequence[Path]) -> None:
        super().__init__(files)
        self._pixels = pixels

    def read(self, index: int) -> np.ndarray:
        return rgb(self._pixels[index])


class StretchRows(InFiles):
    """Pixels of one size in a file, read one by one: `offsets` are those of the images, `shape` is that of one."""

    def __init__(self, stretch: Stretch, offsets: np.ndarray, shape: tuple[int, ...], file: Path) -> None:
        super().__init__([file])
        self._stretch, self._offsets, self._shape, self._name = stretch, offsets, shape, file.name

    def read(self, index: int) -> np.ndarray:
        size = int(np.prod(self._shape))
        try:
            data = self._stretch.read(int(self._offsets[index]), size)
        except (OSError, ValueError) as error:
            raise BadImage(Reason.unreadable, f"cannot be read ({error}); check {self._name}") from None
        if len(data) != size or self._stretch.stamp() != self._stamp:
            raise BadImage(Reason.changed, f"is in {self._name}, which changed since it was opened; start again")
        return rgb(np.frombuffer(data, np.uint8).reshape(self._shape))


def jpeg(image: Image.Image, quality: int) -> bytes:
    """Encode a picture as a JPEG, where TFDS does so before it stores an image."""
    stream = BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def rgb(pixels: np.ndarray) -> np.ndarray:
    """(H, W), (H, W, 1) or (H, W, 3) -> (H, W, 3), a copy."""
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    return np.array(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
