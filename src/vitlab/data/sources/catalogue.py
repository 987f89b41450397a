"""Data sets by name: KIND:PATH?option=value&option=value."""

import difflib
import inspect
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_origin
from urllib.parse import unquote

from torch.utils.data import Dataset

from vitlab.data.dedup.exclusion import without_listed
from vitlab.data.images.gate import Decoding, check_decoding
from vitlab.data.images.refusals import READ_SUFFIXES
from vitlab.data.images.structure import check_max_pixels
from vitlab.data.remote.addresses import Address, is_address, parse_address
from vitlab.data.remote.parquet_source import HubSource, RemoteParquetSource
from vitlab.data.remote.shard_source import RemoteShardSource
from vitlab.data.source import Source, Transform
from vitlab.data.sources.arrays import ArraySource
from vitlab.data.sources.cifar import CifarSource
from vitlab.data.sources.digits import DigitsSource
from vitlab.data.sources.drawn.fractals import FractalSource
from vitlab.data.sources.drawn.letters import LetterSource
from vitlab.data.sources.drawn.shapes import ShapeSource
from vitlab.data.sources.folders import FolderSource, PictureSource
from vitlab.data.sources.idx import IdxSource
from vitlab.data.sources.imagenet import ImageNetSource
from vitlab.data.sources.objectnet import ObjectNetSource
from vitlab.data.sources.parquet import ParquetSource
from vitlab.data.sources.shards import ShardSource
from vitlab.data.sources.tables import CsvSource
from vitlab.data.sources.torch_dataset import DatasetSource
from vitlab.data.splits import nested_subset
from vitlab.data.vtab.opening import VtabSource
from vitlab.data.vtab.whole_sets import FlowersSource, PetsSource
from vitlab.require import require

SPEC = re.compile(r"(?P<kind>[a-z0-9]+)(?::(?P<path>.*?))?(?:\?(?P<options>\w+=[^?]*))?", re.DOTALL)
MAX_PIXELS, DECODE = "max_pixels", "decode"  # options of every kind whose images are files
EXCLUDE = "exclude"  # an option of every kind: a list of samples to leave out, as `vitlab data dedup` writes it
SUBSET = "subset"  # an option of every kind: this many random samples, of which fewer are always a part
COMMON = (MAX_PIXELS, DECODE, EXCLUDE, SUBSET)
DATASET = "dataset"  # a torch Dataset given as an object; see `torch_dataset.py`


@dataclass(frozen=True)
class Kind:
    """A kind of data: what opens it, whose parameters besides `path` are the options of a spec, and what it is."""

    opener: Callable[..., Source]
    about: str
    is_encoded: bool = False  # its images are files, whose pixels may be limited and decoded fast

    @property
    def parameters(self) -> dict[str, object]:
        """The annotation of each parameter that a spec may give."""
        found = {name: p.annotation for name, p in inspect.signature(self.opener).parameters.items()}
        own = {name: kind for name, kind in found.items() if kind in OPTIONS or get_origin(kind) is Literal}
        of_files = {MAX_PIXELS: int, DECODE: Decoding} if self.is_encoded else {}
        return own | of_files | {EXCLUDE: Path | None, SUBSET: int}


OPTIONS = (str, int, Path, Path | None)  # annotations of parameters that may stand in a spec, besides Literal
TABLE = "a CSV or TSV table of paths and labels (several with separator=;); numbers are classes unless numbers=names"
IMAGENET = "ImageNet as distributed: synset folders, or the validation images as a folder or tar with a file of labels"
LETTERS = "unlimited labelled letters in matplotlib's fonts, without those that look like digits, drawn on demand"
OBJECTNET = "ObjectNet as distributed, for models of ImageNet's classes: images and mappings"
FLOWERS = "Oxford Flowers-102 as distributed: 102flowers.tgz or jpg, imagelabels.mat, setid.mat"
VTAB = "a task of VTAB-1k in a folder of downloads, such as task=dsprites_location; split=train800, val200 or test"
KINDS = {
    "folder": Kind(FolderSource, "class folders of image files", is_encoded=True),
    "pictures": Kind(PictureSource, "image files anywhere below a folder, without labels", is_encoded=True),
    "csv": Kind(CsvSource, TABLE, is_encoded=True),
    "imagenet": Kind(ImageNetSource, IMAGENET, is_encoded=True),
    "shards": Kind(ShardSource, "webdataset tar shards that `vitlab data index` has indexed", is_encoded=True),
    "parquet": Kind(ParquetSource, "parquet files as Hugging Face writes them, one or a folder", is_encoded=True),
    "hf": Kind(
        HubSource, "a data set of the Hugging Face hub in parquet form, by its name OWNER/NAME", is_encoded=True
    ),
    "objectnet": Kind(ObjectNetSource, OBJECTNET, is_encoded=True),
    "pets": Kind(PetsSource, "Oxford-IIIT Pets as distributed: images and annotations, packed or not", is_encoded=True),
    "flowers": Kind(FlowersSource, FLOWERS, is_encoded=True),
    "vtab": Kind(VtabSource, VTAB, is_encoded=True),
    "cifar10": Kind(partial(CifarSource, 10), "CIFAR-10, binary or python form"),
    "cifar100": Kind(partial(CifarSource, 100), "CIFAR-100, binary or python form"),
    "idx": Kind(IdxSource, "MNIST, Fashion-MNIST, KMNIST or EMNIST"),
    "npz": Kind(ArraySource, "arrays of images and labels"),
    "digits": Kind(DigitsSource, "1,797 handwritten digits, built in; shots=N draws N of each class with the seed"),
    "fractals": Kind(FractalSource, "unlimited labelled fractals, drawn on demand"),
    "shapes": Kind(ShapeSource, "unlimited labelled shapes, drawn on demand"),
    "letters": Kind(LetterSource, LETTERS),
}
REMOTE: dict[str, Callable[..., Source]] = {"shards": RemoteShardSource, "parquet": RemoteParquetSource}
SUFFIXES = {".csv": "csv", ".tsv": "csv", ".npz": "npz", ".parquet": "parquet"}  # of a path given without its kind


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
        source = DatasetSource(data)
    return source if transform is None else source.with_transform(transform)


def data_name(data: str | Source | Dataset[Any]) -> str:
    """Return what messages call the data: its spec, or the class of an object.

    An address that may have a secret in it raises, before anything prints it.
    """
    if isinstance(data, str):
        refuse_secrets(data)
        return data
    return (isinstance(data, Source) and data.spec) or type(data).__name__


def refuse_secrets(spec: str) -> None:
    """Raise if a spec has an address in it that is not allowed, such as one with a password; no error repeats it."""
    match = SPEC.fullmatch(spec)
    kind = KINDS.get(match["kind"]) if match else None
    place, options = (unquote(match["path"] or ""), match["options"] or "") if match and kind else (unquote(spec), "")
    if not is_address(place):
        return
    names = {option.partition("=")[0] for option in options.split("&") if option}
    is_query = kind is not None and not names <= kind.parameters.keys()  # of the address, and not options of the spec
    parse_address(f"{place}?{options}" if is_query else place)


@dataclass(frozen=True)
class Resolved:
    """What a spec names: the opener of its kind with its arguments, and the options that kinds have in common."""

    spec: str
    kind: Kind
    arguments: dict[str, Any]
    max_pixels: int | None = None
    decode: Decoding = "exact"
    exclude: Path | None = None
    subset: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether every sample is used."""
        return self.exclude is None and self.subset is None

    def open(self) -> Source:
        """Open the data."""
        source = self.kind.opener(**self.arguments)
        source.spec, source.max_pixels, source.decoding = self.spec, self.max_pixels, self.decode
        source = source if self.exclude is None else without_listed(source, self.exclude.expanduser())
        source = source if self.subset is None else nested_subset(source, self.subset)
        source.spec = self.spec
        return source


def open_source(spec: str) -> Source:
    """Open the data that a string such as `folder:photos?split=val` names.

    Numbers may be written 1e6; a `&`, `?` or `%` inside a path or value is written %26, %3F, %25.
    """
    return resolve(spec).open()


def resolve(spec: str) -> Resolved:
    """Find out what a spec names, without opening it."""
    refuse_secrets(spec)
    match = SPEC.fullmatch(spec)
    name = match["kind"] if match else ""
    if name == DATASET:
        again = "continue the run from Python with vitlab.open_run(PATH).resume(data=...)"
        raise ValueError(f"{spec!r} is a torch Dataset, a Python object that cannot be opened by name; {again}")
    if match is None or name not in KINDS:
        raise ValueError(_unknown(spec))
    kind, path = KINDS[name], match["path"]
    parameters = kind.parameters
    arguments = _options(name, match["options"] or "", parameters)
    common = {option: arguments.pop(option) for option in COMMON if option in arguments}
    check_max_pixels(common.get(MAX_PIXELS))
    check_decoding(common.get(DECODE, "exact"))
    if "path" in parameters:
        require(bool(path), f"{name} needs a path: {name}:PATH")
        place = _place(name, unquote(path, errors="surrogateescape"), parameters["path"])
        kind = replace(kind, opener=REMOTE[name]) if isinstance(place, Address) else kind
        arguments["path"] = place
    else:
        require(not path, f"{name} is built in and takes no path, not {path!r}")
    return Resolved(spec, kind, arguments, **common)


def is_remote(spec: str) -> bool:
    """Whether opening the data makes requests to other machines."""
    match = SPEC.fullmatch(spec)
    return match is not None and (match["kind"] == "hf" or is_address(unquote(match["path"] or "")))


def _place(name: str, text: str, kind: object) -> Path | Address | str:
    """What the path of a spec names: a local path, a remote address, or something of a hub."""
    if not is_address(text):
        return text if kind is str else Path(text).expanduser()
    address = parse_address(text)
    require(
        name in REMOTE,
        f"{name} data is not read from {address}; {' and '.join(REMOTE)} are the kinds that may be remote",
    )
    return address


def _unknown(spec: str) -> str:
    """Say that a spec names no data, and what may be meant."""
    if is_address(spec):
        address = parse_address(unquote(spec))
        kind = "parquet" if address.scheme == "hf" or address.name.endswith(".parquet") else "shards"
        return f"{spec!r} does not say what kind of data it is; did you mean '{kind}:{spec}'? ({' or '.join(REMOTE)})"
    near = difflib.get_close_matches(re.split("[:?]", spec)[0], KINDS, n=1)
    if spec and Path(spec).is_file() and Path(spec).suffix.lower() in READ_SUFFIXES:
        classes = Path(spec).parent.parent
        return f"{spec} is a single image, not a data set; give the folder of its classes, such as folder:{classes}"
    if spec and Path(spec).exists():
        has_shards = any(Path(spec).glob("*.tar"))
        meant = f"{SUFFIXES.get(Path(spec).suffix.lower(), 'shards' if has_shards else 'folder')}:{spec}"
    elif near and set(spec) & set(":?"):
        meant = re.sub(r"^[^:?]*", near[0], spec)
    elif "/" in spec and ":" not in spec:
        return f"{spec} does not exist; check the path, and give its kind too, such as folder:{spec}"
    elif near and near[0] not in spec:  # a word such as `digit`, but not `nofolder`, which is a folder's name
        meant = near[0]
    elif spec and not set(spec) & set(":?"):
        return f"{spec!r} does not exist, and no kind of data has that name (vitlab data kinds lists all kinds)"
    else:
        return f"no data is named {spec!r}; the kinds are {', '.join(KINDS)} (vitlab data kinds explains them)"
    return f"no data is named {spec!r}; did you mean {meant!r}? (vitlab data kinds lists all kinds)"


def with_max_pixels(spec: str, max_pixels: int | None) -> str:
    """Add a limit on the pixels of an image to a spec; returned as it is without a limit or without a spec."""
    check_max_pixels(max_pixels)
    return _with_option(spec, MAX_PIXELS, max_pixels)


def with_decode(spec: str, decode: str | None) -> str:
    """Add a way of decoding to a spec; returned as it is without one, for exact decoding or without a spec."""
    way = None if decode is None else check_decoding(decode)
    return _with_option(spec, DECODE, None if way == "exact" else way)


def with_absolute_path(spec: str) -> str:
    """The spec with a local path in one spelling: absolute, without `..` and trailing slashes."""
    match = SPEC.fullmatch(spec)
    path = unquote(match["path"] or "", errors="surrogateescape") if match else ""
    local = os.path.expanduser(path)  # noqa: PTH111  false for names that are no paths, such as those of a hub
    if match is None or not path or not os.path.exists(local):  # noqa: PTH110
        return spec
    absolute = re.sub("[%&?]", lambda found: f"%{ord(found[0]):02X}", os.path.abspath(local))  # noqa: PTH100
    return f"{spec[: match.start('path')]}{absolute}{spec[match.end('path') :]}"


def _with_option(spec: str, name: str, value: object) -> str:
    if value is None or not spec:
        return spec
    kind = KINDS.get(spec.partition(":")[0].partition("?")[0])
    has_effect = kind is None or kind.is_encoded
    require(has_effect, f"{name} has no effect on {spec!r}, which has no image files; leave it out")
    match = SPEC.fullmatch(spec)
    return f"{spec}{'&' if match and match['options'] else '?'}{name}={value}"


def described_kinds() -> dict[str, str]:
    """Describe every kind of data, by its form with all options, such as `npz:PATH?split=`."""
    described = {}
    for name, kind in KINDS.items():
        parameters = kind.parameters
        form = f"{name}:PATH" if "path" in parameters else name
        options = "&".join(f"{option}=" for option in parameters if option != "path")
        described[f"{form}{'?' if options else ''}{options}"] = kind.about
    return described


def _options(kind: str, text: str, parameters: dict[str, object]) -> dict[str, Any]:
    """Parse the options of a spec, each to the type of its parameter."""
    allowed = [name for name in parameters if name != "path"]
    chosen: dict[str, Any] = {}
    for part in filter(None, text.split("&")):
        name, _, value = part.partition("=")
        require(name in allowed, f"{kind} has no option {name!r}; it has {', '.join(allowed) or 'none'}")
        require(name not in chosen, f"option {name!r} is given twice; give it once")
        chosen[name] = _converted(name, unquote(value, errors="surrogateescape"), parameters[name])
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
    if kind == Path | None:
        require(bool(value), f"option {name}= is empty; give a path, or leave it out")
        return Path(value)
    return value
