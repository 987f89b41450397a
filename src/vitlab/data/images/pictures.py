"""Pictures in any form (paths, bytes, PIL images, arrays, tensors) as upright RGB images."""

import os
import re
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitlab.data.images.colours import TRANSPOSE, orientation_of, to_rgb
from vitlab.data.images.gate import Decoded, read_image
from vitlab.data.images.refusals import SUFFIXES as FORMATS
from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.images.structure import check_max_pixels, check_size
from vitlab.data.loading.accounting import Excluded
from vitlab.data.sources.folders import SUFFIXES, images_below
from vitlab.require import require

Picture = str | Path | bytes | Image.Image | np.ndarray | Tensor

KINDS = (
    "a path (a file, a folder or a pattern), bytes of an image file, a PIL image, an (H, W, 3) array of uint8, a "
    "(3, H, W) tensor of uint8, or several of them"
)
# Includes formats that are not read: such a file in a folder gets an error that says how to convert it.
PICTURES = tuple(sorted({*SUFFIXES, *map(str.encode, FORMATS)}))

_MAGIC = re.compile(r"[*?[]")


class Named(NamedTuple):
    """A picture and its name in results: its path, or its place among those given."""

    name: str
    picture: Picture


Pictures = Picture | Iterable[Picture | Named]


def named_pictures(images: Pictures) -> Iterator[Named]:
    """Yield one or several pictures, checked and named; raises ValueError for anything else."""
    for place, image in enumerate(_each(images), 1):
        if isinstance(image, Named):
            yield image
            continue
        check_picture(image)
        if isinstance(image, str | Path):
            for path in image_files((image,)):
                yield Named(str(path), path)
        else:
            yield Named(f"picture {place}", image)


def number_of(images: Pictures) -> int | None:
    """How many pictures these are; None if that is unknown before they are read, as for folders and iterators."""
    each = _each(images)
    has_paths = isinstance(each, Sized) and any(isinstance(image, str | Path) for image in each)
    return len(each) if isinstance(each, Sized) and not has_paths else None


def read_picture(picture: Picture, name: str, max_pixels: int | None = None) -> Decoded:
    """Convert a picture to upright RGB; raises BadImage if that is impossible, with the limits of files."""
    check_max_pixels(max_pixels)
    if isinstance(picture, str | Path | bytes):
        return read_image(picture, name=name if isinstance(picture, bytes) else None, max_pixels=max_pixels)
    try:
        if isinstance(picture, Tensor):
            picture = picture.detach().cpu().permute(1, 2, 0).numpy()
        image = Image.fromarray(np.ascontiguousarray(picture)) if isinstance(picture, np.ndarray) else picture
        check_size(image.size, "PNG", max_pixels)  # the limit of a lossless format
        return Decoded(_upright(image), (), image.format or "pixels")
    except BadImage as bad:
        reason, detail = bad.reason, bad.detail
    except Exception as error:  # Pillow decodes an opened file only now
        reason, detail = Reason.corrupt, f"cannot be decoded ({type(error).__name__}: {str(error)!r:.160})"
    raise BadImage(reason, detail, name)


def _upright(image: Image.Image) -> Image.Image:
    """Convert to RGB and apply the EXIF orientation, as for a file; the given image is not changed."""
    image.load()
    orientation, _ = orientation_of(image.info.get("exif"))
    if orientation in TRANSPOSE:
        image = image.transpose(TRANSPOSE[orientation])
    return to_rgb(image)


def _each(images: Pictures) -> Iterable[Picture | Named]:
    if isinstance(images, np.ndarray | Tensor):
        return tuple(images) if images.ndim == 4 else (images,)
    is_one = isinstance(images, str | bytes | Path | Image.Image) or not isinstance(images, Iterable)
    return (images,) if is_one else images


def check_picture(image: object) -> None:
    """Raise a ValueError that says what is allowed unless this is a picture."""
    if isinstance(image, np.ndarray | Tensor):
        kind, place = ("array", -1) if isinstance(image, np.ndarray) else ("tensor", 0)
        is_picture = image.ndim == 3 and image.shape[place] == 3 and 0 not in image.shape
        if is_picture and image.dtype in (np.uint8, torch.uint8):
            return
        form = "(H, W, 3)" if kind == "array" else "(3, H, W)"
        found = f"a picture as {kind} is {form} of uint8, not {tuple(image.shape)} of {image.dtype}"
        raise ValueError(f"{found}; a batch of vitlab.preprocess is one float tensor (B, 3, H, W)")
    is_picture = isinstance(image, str | Path | bytes | Image.Image)
    require(is_picture, f"images must be {KINDS}, not {type(image).__name__}")


# -- Paths, folders and patterns ------------------------------------------------------------------


def image_files(given: Iterable[str | Path], excluded: Excluded | None = None) -> Iterator[str | Path]:
    """Yield the files given, the images anywhere below a folder, and those that match a pattern (*.jpg).

    Images below a folder and matches of a pattern are sorted. Files that are not named like an image are counted in
    `excluded`. Raises ValueError for a folder without images or a pattern without matches.
    """
    left_out = Excluded() if excluded is None else excluded
    for one in given:
        own = Excluded()
        if os.path.isdir(one):  # noqa: PTH112 - Path raises where a folder above may not be entered
            names = images_below(Path(one), "", own, PICTURES)
            found = [os.path.join(one, os.fsdecode(name)) for name in names]  # noqa: PTH118 - keeps its spelling
            why = f"{os.fspath(one)!r} has no images in it; {own.described() or 'it is empty'}"
        elif isinstance(one, str) and _MAGIC.search(one) and not os.path.lexists(one):
            found = _matches(one, own)
            why = f"no image matches {one!r}; {own.described() or 'only folders do'}"
        else:
            yield one
            continue
        left_out.add(own)
        require(bool(found), why)
        yield from found


def _matches(pattern: str, excluded: Excluded) -> list[str]:
    """The sorted matches that are images, without hidden files; ** does not follow links, which may be loops."""
    known = set(Path(pattern).parts)
    anchor = Path(pattern).anchor
    found = [str(path) for path in Path(anchor).glob(pattern.removeprefix(anchor)) if not _is_hidden(path, known)]
    require(bool(found), f"no file matches {pattern!r}; give an image file, a folder or another pattern")
    images = []
    for path in sorted(found, key=os.fsencode):
        if os.fsencode(path).lower().endswith(PICTURES):
            images.append(path)
        elif not Path(path).is_dir():
            excluded.leave_out("other_suffix", path)
    return images


def _is_hidden(path: Path, known: set[str]) -> bool:
    """Whether a part of the path begins with a dot that the pattern does not contain."""
    return any(part.startswith(".") and part not in known for part in path.parts)
