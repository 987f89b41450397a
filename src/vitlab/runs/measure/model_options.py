"""The model of a measurement, as a user gives it: a name, a path or a module, with options for loading it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from rich.console import Console
from rich.text import Text
from torch import nn

from vitlab.data.class_names import are_whole, matched, numbers_of
from vitlab.deploy.predict import class_names
from vitlab.models.build import Model
from vitlab.models.classifier import check_model
from vitlab.paper.imagenet import imagenet_classes
from vitlab.paper.models import name_of
from vitlab.pixels import Preprocessing
from vitlab.report.tables import printable
from vitlab.require import require
from vitlab.runs.progress import announced
from vitlab.spec import CONVENTIONS, ConventionName
from vitlab.weights.load import load_model
from vitlab.world.device import pick_device

ModelLike = str | Path | nn.Module  # a name of released weights, a file or folder of weights, or a vitlab model
ImageSize = int | tuple[int, int]
PreprocessingName = Literal["own", "few-shot", "paper", "timm", "hf", "torchvision", "deit"]


@dataclass(frozen=True)
class ModelOptions:
    """How weights are loaded and images are preprocessed.

    `conventions` are whose GELU, epsilon and preprocessing to use (default: the file's own), `image` is the resolution
    (default: the model's own), `heads` the attention heads of a file that does not state them. `device` "auto" is a GPU
    if there is one. All but `preprocessing` and `device` are for weights; a module is used as it is, and stays on its
    device unless `device` names another.
    """

    conventions: ConventionName | None = None
    image: ImageSize | None = None
    preprocessing: PreprocessingName = "own"
    device: str = "auto"
    heads: int | None = None
    allow_partial: bool = False
    allow_nonfinite: bool = False


def open_model(given: ModelLike, options: ModelOptions, console: Console) -> Model:
    """Return a module as it is, or load the weights of a name or path, on the device of the options."""
    device = pick_device(options.device)  # raises before the weights take their time
    if not isinstance(given, nn.Module):
        with announced(console, f"loading {printable(str(given))} ...", is_brief=True):
            loaded = load_model(
                given,
                conventions=options.conventions,
                image=options.image,
                heads=options.heads,
                allow_partial=options.allow_partial,
                allow_nonfinite=options.allow_nonfinite,
            )
        return loaded.to(device)
    check_model(given)
    blank = replace(options, preprocessing="own", device="auto") == ModelOptions()
    require(
        blank, "conventions, image and heads are options for loading weights; give a name or a path instead of a module"
    )
    model = cast(Model, given)
    return model if options.device == "auto" else model.to(device)


def load(given: ModelLike, options: ModelOptions, console: Console) -> tuple[Model, Preprocessing]:
    """Open a model, and print what it is and how its images are preprocessed."""
    model = open_model(given, options, console)
    how = preprocessing_of(model, options.preprocessing)
    names = dict.fromkeys((printable(label_of(given)), name_of(model.spec)))  # the same for a module
    console.print(Text(f"{': '.join(names)}, preprocessing: {how}", style="dim"), soft_wrap=True)
    return model, how


def label_of(given: ModelLike) -> str:
    """How tables and messages call a model: by its name or path, or a module by its architecture."""
    return name_of(cast(Model, given).spec) if isinstance(given, nn.Module) else str(given)


def preprocessing_of(model: Model, name: PreprocessingName) -> Preprocessing:
    """The model's own preprocessing, that of another source, or that of the paper's few-shot evaluation.

    The latter stretches images to 256 and crops 224 (section 8), with the model's mean and deviation.
    """
    own = model.spec.conventions.preprocessing
    if name == "own":
        return own
    if name == "few-shot":
        return replace(own, resize="square", fraction=224 / 256)
    return CONVENTIONS[name].preprocessing


def match_classes(model: Model, data_names: tuple[str, ...], *, by_number: bool) -> tuple[tuple[int, ...], str]:
    """Return the model's class number of each class of the data, and a note on how they were matched.

    Classes are matched by name; the data may lack some of the model's. With `by_number`, the data's class numbers are
    taken for the model's, where a name that is a whole number stands for that number.
    """
    require(model.spec.classes > 0, "this model has no classification head, only features; use vitlab fewshot")
    names, origin = class_names(model)
    if by_number:
        return _by_number(names, data_names), "classes matched by number, as requested, without comparing names"
    wordnet_ids, imagenet = zip(*imagenet_classes(), strict=True)
    if names == imagenet and data_names and set(data_names) <= set(wordnet_ids):
        note = f"classes: ImageNet's, matched by WordNet id; class names: {origin}"
        return matched(wordnet_ids, data_names), note
    try:
        numbers = matched(names, data_names)
    except ValueError as error:
        raise ValueError(
            f"{error}; or give --label-map FILE from the data's classes to the model's, or --by-number if the numbers "
            f"agree (class names: {origin})"
        ) from None
    note = f"class names: {origin}"
    if numbers != tuple(range(len(names))):
        note += f"; the data has {len(numbers):,} of {len(names):,} classes or another order: matched by name"
    return numbers, note


def _by_number(names: tuple[str, ...], data_names: tuple[str, ...]) -> tuple[int, ...]:
    """The model's output for each class number of the data."""
    theirs = numbers_of(data_names)
    own = numbers_of(names) if are_whole(data_names) else range(len(names))
    place = {number: output for output, number in enumerate(own)}
    outside = [number for number in theirs if number not in place]
    counts = f"the data has {len(data_names)} classes, the model {len(names)}"
    missing = f"the model has no class number {outside[0] if outside else 0}"
    require(not outside, f"{missing} ({counts}), so the data's numbers cannot be the model's; give a label map")
    return tuple(place[number] for number in theirs)
