"""What evaluation, features and few-shot need before they start: a model on its device, and how it sees pictures."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from vitlab.data.class_names import are_whole, matched, numbers_of
from vitlab.deploy.predict import class_names
from vitlab.models.build import Model
from vitlab.paper.imagenet import imagenet_classes
from vitlab.pixels import Preprocessing
from vitlab.require import require
from vitlab.spec import CONVENTIONS, ConventionName
from vitlab.weights.load import load_model
from vitlab.world.device import pick_device

PreprocessingName = Literal["own", "few-shot", "paper", "timm", "hf", "torchvision", "deit"]


@dataclass(frozen=True)
class ModelOptions:
    """How a model is loaded and what it is shown; see the commands for what each means."""

    conventions: ConventionName | None = None
    image: tuple[int, int] | None = None
    preprocessing: PreprocessingName = "own"
    device: str = "auto"


def load(path: Path, options: ModelOptions) -> tuple[Model, Preprocessing]:
    """The model on its device, ready to be asked, and the preprocessing it gets."""
    model = load_model(path, conventions=options.conventions, image=options.image)
    return model.to(pick_device(options.device)), preprocessing_of(model, options.preprocessing)


def preprocessing_of(model: Model, name: PreprocessingName) -> Preprocessing:
    """The model's own, that of another source, or the few-shot evaluation's: stretch to 256, crop 224 (section 8).

    The mean and deviation of `few-shot` are the model's.
    """
    own = model.spec.conventions.preprocessing
    if name == "own":
        return own
    if name == "few-shot":
        return replace(own, resize="square", fraction=224 / 256)
    return CONVENTIONS[name].preprocessing


def match_classes(model: Model, data_names: tuple[str, ...], *, by_number: bool) -> tuple[tuple[int, ...], str]:
    """The model's class number of each of the data's classes, and a note on how they were matched.

    They are matched by name; the data need not have all of the model's. `by_number` compares no names: the data's class
    numbers are the model's, where a name that is a whole number stands for it.
    """
    require(model.spec.classes > 0, "this model has no classes, it only makes features; use vitlab fewshot")
    names, origin = class_names(model)
    if by_number:
        return _by_number(names, data_names), "classes: by number, as asked; names were not compared"
    wordnet_ids, imagenet = zip(*imagenet_classes(), strict=True)
    if names == imagenet and data_names and set(data_names) <= set(wordnet_ids):
        note = f"classes: ImageNet's by WordNet id; class names from {origin}"
        return matched(wordnet_ids, data_names), note
    try:
        numbers = matched(names, data_names)
    except ValueError as error:
        raise ValueError(
            f"{error}; or give --label-map FILE from the data's classes to the model's, or --by-number if the numbers "
            f"are known to agree (class names come from {origin})"
        ) from None
    note = f"class names: {origin}"
    if numbers != tuple(range(len(names))):
        note += f"; the data has {len(numbers):,} of {len(names):,} classes or another order: matched by name"
    return numbers, note


def _by_number(names: tuple[str, ...], data_names: tuple[str, ...]) -> tuple[int, ...]:
    """Where the model has the class of each of the data's numbers."""
    theirs = numbers_of(data_names)
    own = numbers_of(names) if are_whole(data_names) else range(len(names))
    place = {number: output for output, number in enumerate(own)}
    outside = [number for number in theirs if number not in place]
    count = f"the data has {len(data_names)} classes, the model {len(names)}"
    require(
        not outside,
        f"{count}, and none of number {outside[0] if outside else 0}: the data's numbers cannot be the model's; give "
        f"a label map",
    )
    return tuple(place[number] for number in theirs)
