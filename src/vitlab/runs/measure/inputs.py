"""What a user gives to measure: a model and data in any form, with the ranks that share the work and the console."""

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from rich.console import Console
from torch import nn
from torch.utils.data import Dataset

from vitlab.artefacts.artefact import Artefact, is_artefact, open_artefact
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import open_data, with_max_pixels
from vitlab.engines.engine import Engine, EngineName
from vitlab.engines.opening import open_engine
from vitlab.errors import printable
from vitlab.models import classifier
from vitlab.models.build import Model
from vitlab.models.classifier import check_model
from vitlab.paper.models import name_of
from vitlab.require import require
from vitlab.runs.progress import announced, default_console, say
from vitlab.spec import CONVENTIONS, AttentionLike, ConventionName, ViTSpec
from vitlab.spec.pixels import Preprocessing
from vitlab.weights.load import load_model
from vitlab.world.device import pick_device, products_in
from vitlab.world.group import World, join

T = TypeVar("T")
ModelLike = str | Path | nn.Module  # a name of released weights, a file or folder of weights, or a vitlab model
DataLike = str | Source | Dataset[Any]  # a spec such as "folder:photos", a source, or a map-style torch Dataset
ImageSize = int | tuple[int, int]
PreprocessingName = Literal["own", "few-shot", "paper", "timm", "hf", "torchvision", "deit"]
_FOR_WEIGHTS = (
    "conventions, image, merge, attention and heads apply to weights; give a name or a path instead of a module"
)
PATIENCE = 600.0  # seconds between two exchanges of the ranks; a slow disk may take long


@contextlib.contextmanager
def measuring(device: str, console: Console | None, *, quiet: bool) -> Iterator[tuple[World, Console]]:
    """Join the ranks that a launcher such as torchrun started; only rank 0 prints, to standard error by default.

    Whatever the program allows elsewhere, a GPU computes float32 in float32 inside the block, not in TF32.
    """
    with join(device, PATIENCE) as world, products_in("fp32", pick_device(device)):
        yield world, default_console(console, quiet=quiet or not world.leads)


def as_list(given: T | Sequence[T]) -> list[T]:
    """One or several, as a list."""
    return list(given) if isinstance(given, list | tuple) else [cast(T, given)]


def open_set(data: DataLike, max_pixels: int | None = None) -> tuple[str, Source]:
    """Open data; returns the name that tables give it, its spec or the kind of source, and the source."""
    if isinstance(data, str):
        spec = with_max_pixels(data, max_pixels)
        return spec, open_data(spec)
    require(max_pixels is None, "max_pixels is for data given as a spec; set it when you open the source")
    source = open_data(data)
    return source.spec or type(source).__name__, source


@dataclass(frozen=True)
class ModelOptions:
    """How weights are loaded and images are preprocessed.

    `conventions` are whose GELU, epsilon and preprocessing to use (default: the file's own), `image` is the resolution
    (default: the model's own), `merge` the number of tokens to merge in every layer (default: the model's own, usually
    0), `attention` a pattern such as "window:7" (default: the model's own), `heads` the attention heads of a file that
    does not state them. `device` "auto" is a GPU if there is one. All but `preprocessing` and `device` are for weights;
    a module is used as it is, and stays on its device unless `device` names another.
    """

    conventions: ConventionName | None = None
    image: ImageSize | None = None
    preprocessing: PreprocessingName = "own"
    device: str = "auto"
    heads: int | None = None
    allow_partial: bool = False
    allow_nonfinite: bool = False
    merge: int | None = None
    attention: AttentionLike | None = None


def open_model(given: ModelLike, options: ModelOptions, console: Console) -> Model:
    """Return a module as it is, or load the weights of a name or path, on the device of the options."""
    device = pick_device(options.device)  # raises before the weights are loaded
    if not isinstance(given, nn.Module):
        with announced(console, f"loading {printable(str(given))} ...", is_brief=True):
            names = ("conventions", "image", "heads", "allow_partial", "allow_nonfinite", "merge", "attention")
            return load_model(given, **{name: getattr(options, name) for name in names}).to(device)
    check_model(given)
    is_plain = replace(options, preprocessing="own", device="auto") == ModelOptions()
    require(is_plain, _FOR_WEIGHTS)
    model = cast(Model, given)
    return model if options.device == "auto" else model.to(device)


def open_copy(given: ModelLike, options: ModelOptions, console: Console) -> Model:
    """Open a model as `open_model` does, in float32 on the CPU; a module is copied, and the copy is resized."""
    if not isinstance(given, nn.Module):
        return open_model(given, replace(options, device="cpu"), console).float().eval()
    model = copy.deepcopy(open_model(given, replace(options, image=None, device="auto"), console))
    if options.image is not None:
        model.resize(options.image)
    return model.float().cpu().eval()


def open_any(given: ModelLike, options: ModelOptions, console: Console) -> Model | Artefact:
    """Open a model as `open_model` does, or an artefact, which is as it was exported."""
    if not is_artefact(given):
        return open_model(given, options, console)
    is_plain = replace(options, device="auto") == ModelOptions() and pick_device(options.device).type == "cpu"
    fixed = "an artefact runs on the CPU as it was exported; leave conventions, preprocessing, image, merge, attention,"
    again = "heads and device out, or export the model again with other options"
    require(is_plain or options == ModelOptions(), f"{fixed} {again}")
    with announced(console, f"loading {printable(str(given))} ...", is_brief=True):
        return open_artefact(cast(str, given))


def load(given: ModelLike, options: ModelOptions, console: Console) -> tuple[Model, Preprocessing]:
    """Open a model, and print what it is and how its images are preprocessed."""
    model = open_model(given, options, console)
    return model, _introduced(given, model, options, console)


def load_any(given: ModelLike, options: ModelOptions, console: Console) -> tuple[Model | Artefact, Preprocessing]:
    """The same for a model or an artefact."""
    model = open_any(given, options, console)
    return model, _introduced(given, model, options, console)


def _introduced(given: ModelLike, model: Model | Artefact, options: ModelOptions, console: Console) -> Preprocessing:
    how = preprocessing_of(model, options.preprocessing)
    names = dict.fromkeys((printable(label_of(given, model)), name_of(model.spec)))  # the same for a module
    say(console, f"{': '.join(names)}, preprocessing: {how}", "dim")
    return how


def settled(
    model: Model | Artefact, engine: EngineName, batch: int, world: World, console: Console, images: int | None = None
) -> EngineName:
    """Open the engine and print what computes; of several ranks, rank 0 makes an automatic choice, which all open."""
    if isinstance(model, Artefact):
        return own_engine(model, engine)
    if engine != "auto":
        return opened(model, engine, batch, console).name
    chosen: EngineName = world.first(lambda: opened(model, engine, batch, console, images).name)
    return open_engine(model, chosen, batch=batch).name


def opened(model: Model, engine: EngineName, batch: int, console: Console, images: int | None = None) -> Engine:
    """Open an engine for so many images, and print how an automatic choice came about."""
    with announced(console, f"preparing engine {engine} ...", is_brief=engine in ("torch", "plain")):
        made = open_engine(model, engine, batch=batch, images=images)
    if made.note:
        say(console, f"engine {made.name}: {made.note}", "dim")
    return made


def own_engine(artefact: Artefact, engine: EngineName) -> EngineName:
    """The engine of an artefact; raises if another one was asked for. The default, torch, stands for the artefact's."""
    other = f"engine {engine!r} cannot run {artefact.path}, which is for {artefact.engine}; leave engine out"
    require(engine in ("torch", "auto", artefact.engine), other)
    return artefact.engine


def label_of(given: ModelLike, model: Model | Artefact) -> str:
    """How tables and messages call a model: its name or path or architecture, and how it merges or attends."""
    spec, name = model.spec, name_of(model.spec) if isinstance(given, nn.Module) else str(given)
    merge = f"merge {spec.merge}" if isinstance(spec, ViTSpec) and spec.merge else ""
    pattern = spec.attention if isinstance(spec, ViTSpec) and spec.attention not in ("full", "axial") else ""
    return ", ".join(filter(None, [name, merge, pattern]))


def preprocessing_of(model: Model | Artefact, name: PreprocessingName) -> Preprocessing:
    """The model's own preprocessing, that of another source, or that of the paper's few-shot evaluation.

    The latter stretches images to 256 and crops 224 (section 8), with the model's mean and deviation.
    """
    own = model.spec.conventions.preprocessing
    if name == "own":
        return own
    if name == "few-shot":
        return replace(own, resize="square", fraction=224 / 256)
    return CONVENTIONS[name].preprocessing


def class_names(model: Model | Artefact) -> tuple[tuple[str, ...], str]:
    """The names of the model's classes, and where they come from."""
    if isinstance(model, Artefact):
        return model.class_names, model.card.class_names_from
    return classifier.class_names(model)
