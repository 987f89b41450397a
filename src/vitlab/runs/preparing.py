"""What evaluation, features and few-shot need before they start: a model on its device, and how it sees pictures."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from vitlab.data.card import check_class_names
from vitlab.deploy.predict import class_names
from vitlab.models.build import Model
from vitlab.paper.imagenet import imagenet_classes
from vitlab.pixels import Preprocessing
from vitlab.spec import CONVENTIONS, ConventionName
from vitlab.strict_json import require
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


def check_classes(model: Model, data_names: tuple[str, ...], *, by_number: bool) -> str:
    """Raise unless the data's classes are the model's in the same order; return a note on what was taken for granted.

    `by_number` takes the data's class numbers for the model's, whatever the names.
    """
    require(model.spec.classes > 0, "this model has no classes, it only makes features; use vitlab fewshot")
    names, origin = class_names(model)
    if by_number:
        count = f"the data has {len(data_names)} classes, the model {len(names)}"
        require(len(data_names) <= len(names), f"{count}: its numbers cannot be the model's; give a label map")
        return "classes: by number, as asked; names were not compared"
    wordnet_ids, imagenet = zip(*imagenet_classes(), strict=True)
    if data_names == wordnet_ids and names == imagenet:
        return f"classes: ImageNet's by WordNet id; class names from {origin}"
    try:
        check_class_names(names, data_names)
    except ValueError as error:
        raise ValueError(
            f"{error}; or give --label-map FILE from the data's classes to the model's, or --by-number if the numbers "
            f"are known to agree (class names come from {origin})"
        ) from None
    return f"class names: {origin}"
