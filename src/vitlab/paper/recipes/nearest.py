"""Which of the paper's rows is nearest to your model and data, and why."""

import math

from vitlab.paper import finetuning
from vitlab.paper.models import canonical, model_spec
from vitlab.paper.pretraining import DATA, TABLE_3
from vitlab.paper.recipes import deit
from vitlab.paper.recipes.pretraining import DATA_SLUGS, pretraining_model, rows_by_name
from vitlab.spec import ResNetSpec, ViTSpec


def pretraining_row_for(model: str, images: int) -> tuple[str, str]:
    """(recipe, why): the row of the model whose data is of the size nearest to yours, or that of ViT-B/16.

    ResNets have rows for JFT-300M only: one gets its own whatever the data, or that of the ResNet of the nearest size.
    A DeiT has one of its own paper.
    """
    known = canonical(model)
    if not isinstance(model_spec(known), ViTSpec):
        return _resnet_row_for(known)
    if known in deit.MODELS:
        return f"{known}@imagenet", "a DeiT is trained as its own paper says"
    by_size = min(DATA_SLUGS, key=lambda slug: abs(_digits(DATA[DATA_SLUGS[slug]].images) - _digits(images)))
    own = [name for name in rows_by_name() if pretraining_model(name) == known]
    fitting = [name for name in own if name.partition("@")[2].split("-")[0] == by_size]
    data = DATA_SLUGS[by_size]
    if fitting:
        return fitting[0], f"table 3 has {known}, and of its data, {data} is nearest in size to your {images:,} images"
    why = (
        f"table 3 does not have {known} on {data}, nearest in size to your {images:,} images; ViT-B/16's row stands in"
    )
    return f"ViT-B/16@{by_size}", why


def _resnet_row_for(model: str) -> tuple[str, str]:
    why = "the paper pre-trains ResNets on JFT-300M only"
    if own := [name for name in rows_by_name() if pretraining_model(name) == model]:
        return own[0], why
    printed = [name for row in TABLE_3 for name in row.models if isinstance(model_spec(name), ResNetSpec)]
    nearest = min(printed, key=lambda name: abs(_log_size(name) - _log_size(model)))
    why += f"; table 3 has no {model}, and of its ResNets {nearest} is nearest in size"
    return f"{nearest}@jft300m", why


def _log_size(model: str) -> float:
    """Logarithm of the weights in a ResNet's units: convolutions 1x1, 3x3, 1x1, and a shortcut in each first unit.

    In squares of a stage's inner width these are 4 + 9 + 4, and 2 + 9 + 4 + 8 in a first unit (1 + 9 + 4 + 4 at first).
    """
    spec = model_spec(model)
    assert not isinstance(spec, ViTSpec), "only ResNets are compared"
    stages = enumerate(spec.stages)
    return math.log(sum((spec.root * 2**n) ** 2 * (17 * (units - 1) + (23 if n else 18)) for n, units in stages))


def finetuning_row_for(images: int) -> tuple[str, str]:
    """(recipe, why): the row of table 4 for a set of about this size, split where BiT-HyperRule splits."""
    small, medium, _ = finetuning.HYPER_RULES
    if images < small.below:
        return "pets", f"{images:,} images are fewer than {small.below:,}, as in Pets and Flowers"
    if images < medium.below:
        return "cifar10", f"{images:,} images are between {small.below:,} and {medium.below:,}, as in CIFAR"
    return "imagenet", f"{images:,} images are {medium.below:,} or more, as in ImageNet"


def _digits(images: int) -> int:
    return len(str(images))
