"""Data sets by name: KIND:PATH?option=value&option=value."""

import difflib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from torch.utils.data import Dataset

from vitlab.data.images.structure import check_max_pixels
from vitlab.data.source import Source, Transform

SPEC = re.compile(r"(?P<kind>[a-z0-9]+)(?::(?P<path>.*?))?(?:\?(?P<options>\w+=[^?]*))?", re.DOTALL)
Opener = Callable[..., Source]
MAX_PIXELS = "max_pixels"  # an option of every kind whose images are files
DATASET = "dataset"  # a torch Dataset given as an object; see `torch_dataset.py`
ENCODED = {"folder", "pictures", "csv", "imagenet", "shards", "parquet"}


def open_data(data: str | Source | Dataset[Any], transform: Transform | None = None) -> Source:
    """Open a data set for training, for evaluation, or for your own DataLoader and loop.

    `data` is a string such as "folder:photos?split=val" (`vitlab data kinds` lists them all), a `Source`, or any
    map-style torch Dataset of (picture, label), see `DatasetSource`. Items are (RGB PIL image, class number);
    `transform` is applied to the image of each item. It does not affect `vitlab.finetune` and the like, which use the
    transforms of their recipe.
    """
    if isinstance(data, str):
        source = open_source(data)
    elif isinstance(data, Source):
        source = data
    else:
        from vitlab.data.sources.torch_dataset import DatasetSource

        source = DatasetSource(data)
    return source if transform is None else source.with_transform(transform)


def data_name(data: str | Source | Dataset[Any]) -> str:
    """What messages call the data: its spec, or the class of an object."""
    return data if isinstance(data, str) else (isinstance(data, Source) and data.spec) or type(data).__name__


def open_source(spec: str) -> Source:
    """Open the data that a string such as `folder:photos?split=val` names; the error for an unknown one lists all.

    Numbers may be written 1e6; a `&`, `?` or `%` inside a path or value is written %26, %3F, %25.
    """
    source = _opened(spec)
    source.spec = spec
    return source


def _opened(spec: str) -> Source:
    match = SPEC.fullmatch(spec)
    kind = match["kind"] if match else ""
    if kind == DATASET:
        raise ValueError(
            f"{spec!r} is a torch Dataset, a Python object that cannot be opened by name; continue the run from Python "
            f"with vitlab.open_run(PATH).resume(data=...)"
        )
    if match is None or kind not in KINDS:
        near = difflib.get_close_matches(kind or spec.partition(":")[0], KINDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        if not near and Path(spec).exists():
            hint = f"; did you mean 'folder:{spec}'?"
        forms = ", ".join(described_kinds())
        raise ValueError(f"no data is named {spec!r}{hint} Known kinds are {forms}; vitlab data kinds explains them")
    opener, parameters = KINDS[kind], _parameters(kind)
    arguments = _options(kind, match["options"] or "", parameters)
    if "path" not in parameters:
        if match["path"]:
            raise ValueError(f"{kind} is built in and takes no path, not {match['path']!r}")
        return opener(**arguments)
    if not match["path"]:
        raise ValueError(f"{kind} needs a path: {kind}:PATH")
    limit = cast(int | None, arguments.pop(MAX_PIXELS, None))
    check_max_pixels(limit)
    source = opener(Path(unquote(match["path"], errors="surrogateescape")).expanduser(), **arguments)
    source.max_pixels = limit
    return source


def with_max_pixels(spec: str, max_pixels: int | None) -> str:
    """Add a limit on the pixels of an image to a spec; returned as it is without a limit or without a spec."""
    if max_pixels is None or not spec:
        return spec
    check_max_pixels(max_pixels)
    kind = spec.partition(":")[0].partition("?")[0]
    if kind in KINDS and kind not in ENCODED:
        raise ValueError(f"max_pixels has no effect on {spec!r}, which has no image files; leave it out")
    match = SPEC.fullmatch(spec)
    return f"{spec}{'&' if match and match['options'] else '?'}{MAX_PIXELS}={max_pixels}"


def _parameters(kind: str) -> dict[str, inspect.Parameter]:
    """The options of a kind of data: the parameters of its opener, and a pixel limit if its images are files."""
    own = dict(inspect.signature(KINDS[kind]).parameters)
    if kind in ENCODED:
        own[MAX_PIXELS] = inspect.Parameter(MAX_PIXELS, inspect.Parameter.KEYWORD_ONLY, annotation=int)
    return own


def described_kinds() -> dict[str, str]:
    """Describe every kind of data, by its form with all options, such as `npz:PATH?split=`."""
    described = {}
    for kind, opener in KINDS.items():
        parameters = _parameters(kind)
        options = "&".join(f"{name}=" for name in parameters if name != "path")
        form = f"{kind}:PATH" if "path" in parameters else kind
        described[f"{form}{'?' if options else ''}{options}"] = " ".join((inspect.getdoc(opener) or "").split())
    return described


def _options(kind: str, text: str, parameters: Any) -> dict[str, object]:
    """Parse the options of a spec, each to the type of its parameter."""
    allowed = {name: p for name, p in parameters.items() if name != "path"}
    chosen: dict[str, object] = {}
    for part in filter(None, text.split("&")):
        name, _, value = part.partition("=")
        if name not in allowed:
            raise ValueError(f"{kind} has no option {name!r}; it has {', '.join(allowed) or 'none'}")
        if name in chosen:
            raise ValueError(f"option {name!r} is given twice; give it once")
        chosen[name] = _converted(name, unquote(value, errors="surrogateescape"), allowed[name].annotation)
    return chosen


def _converted(name: str, value: str, kind: object) -> object:
    if kind is int:
        try:
            number = float(value)
            if number == int(number):
                return int(value) if value.lstrip("-").isdecimal() else int(number)
        except (ValueError, OverflowError):
            pass
        raise ValueError(f"option {name}={value!r} must be a whole number, such as 1000 or 1e6")
    return Path(value) if kind is Path else value


def _folder(path: Path, *, split: str = "") -> Source:
    """class folders of image files"""
    from vitlab.data.sources.folders import FolderSource

    return FolderSource(path, split)


def _pictures(path: Path, *, split: str = "") -> Source:
    """image files anywhere below a folder, without labels"""
    from vitlab.data.sources.folders import PictureSource

    return PictureSource(path, split)


def _csv(
    path: Path, *, root: str = "", column: str = "path", label: str = "label", separator: str = "", numbers: str = ""
) -> Source:
    """a CSV or TSV table of paths and labels; a separator such as ; makes it multi-label; whole numbers are class
    numbers, or names with numbers=names"""
    from vitlab.data.sources.tables import CsvSource

    given = Path(root) if root else None
    how = {"separator": separator, "numbers": numbers}
    return CsvSource(path, given, path=column, label=label, **how)  # pyrefly: ignore[bad-argument-type] - checked there


def _imagenet(path: Path, *, split: str = "", labels: str = "", synsets: str = "") -> Source:
    """ImageNet as distributed: synset folders, or the validation images as a folder or tar with a file of labels"""
    from vitlab.data.sources.imagenet import ImageNetSource

    given = {name: Path(file) for name, file in (("labels", labels), ("synsets", synsets)) if file}
    return ImageNetSource(path, split, **given)


def _shards(path: Path, *, index: str = "") -> Source:
    """webdataset tar shards that `vitlab data index` has indexed"""
    from vitlab.data.sources.shards import ShardSource

    return ShardSource(path, Path(index) if index else None)


def _parquet(path: Path, *, split: str = "", image: str = "image", label: str = "label") -> Source:
    """parquet files as Hugging Face writes them, one or a folder"""
    from vitlab.data.sources.parquet import ParquetSource

    return ParquetSource(path, split, image=image, label=label)


def _cifar10(path: Path, *, split: str = "train") -> Source:
    """CIFAR-10, binary or python form"""
    from vitlab.data.sources.cifar import CifarSource

    return CifarSource(path, 10, split)  # pyrefly: ignore[bad-argument-type] - checked there


def _cifar100(path: Path, *, split: str = "train") -> Source:
    """CIFAR-100, binary or python form"""
    from vitlab.data.sources.cifar import CifarSource

    return CifarSource(path, 100, split)  # pyrefly: ignore[bad-argument-type] - checked there


def _idx(path: Path, *, split: str = "train") -> Source:
    """MNIST, Fashion-MNIST, KMNIST or EMNIST"""
    from vitlab.data.sources.idx import IdxSource

    return IdxSource(path, split)  # pyrefly: ignore[bad-argument-type] - checked there


def _npz(path: Path, *, split: str = "") -> Source:
    """arrays of images and labels"""
    from vitlab.data.sources.arrays import ArraySource

    return ArraySource(path, split)


def _digits(*, split: str = "all", shots: int = 0, seed: int = 0) -> Source:
    """1,797 handwritten digits, built in; shots=N draws N of each class with the seed"""
    from vitlab.data.sources.digits import DigitsSource

    return DigitsSource(split, shots, seed)  # pyrefly: ignore[bad-argument-type] - checked there


def _fractals(*, classes: int = 1000, images: int = 1_000_000, size: int = 224, seed: int = 0) -> Source:
    """unlimited labelled fractals, drawn on demand"""
    from vitlab.data.sources.drawn.fractals import FractalSource

    return FractalSource(classes=classes, images=images, size=size, seed=seed)


def _shapes(*, classes: int = 910, images: int = 1_000_000, size: int = 224, seed: int = 0) -> Source:
    """unlimited labelled shapes, drawn on demand"""
    from vitlab.data.sources.drawn.shapes import ShapeSource

    return ShapeSource(classes=classes, images=images, size=size, seed=seed)


def _letters(*, classes: int = 29, images: int = 1_000_000, size: int = 224, seed: int = 0) -> Source:
    """unlimited labelled letters in matplotlib's fonts, without those that look like digits, drawn on demand"""
    from vitlab.data.sources.drawn.letters import LetterSource

    return LetterSource(classes=classes, images=images, size=size, seed=seed)


KINDS: dict[str, Opener] = {
    "folder": _folder,
    "pictures": _pictures,
    "csv": _csv,
    "imagenet": _imagenet,
    "shards": _shards,
    "parquet": _parquet,
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "idx": _idx,
    "npz": _npz,
    "digits": _digits,
    "fractals": _fractals,
    "shapes": _shapes,
    "letters": _letters,
}
