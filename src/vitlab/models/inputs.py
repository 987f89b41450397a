"""What callers hand in, checked in words before torch meets it: a model, and images for it."""

import torch
from torch import Tensor
from torch.fx import Proxy

from vitlab.spec import ModelSpec

MAKES = "vitlab.preprocess(model, files) makes such"


def check_model(model: object) -> None:
    """Raise a ValueError unless it is a model of vitlab, or wraps one and shows its spec, as a compiled one does."""
    if isinstance(getattr(model, "spec", None), ModelSpec):
        return
    given = f"a str, {model!r:.100}" if isinstance(model, str) else f"a {type(model).__name__}"
    raise ValueError(
        f"model is {given}; give a model that vitlab.load_model(path) or vitlab.build_model(name) has returned"
    )


def is_traced(x: object) -> bool:
    """Whether torch.jit.trace or torch.fx records what is done with x, and Python sees no numbers to branch on."""
    return isinstance(x, Proxy) or torch.jit.is_tracing()


def check_images(images: object) -> None:
    """Raise a ValueError unless it is a tensor of floating point. Nothing of its values is looked at."""
    if isinstance(images, Tensor) and images.is_floating_point():
        return
    given = images.dtype if isinstance(images, Tensor) else type(images).__name__
    raise ValueError(f"images must be a tensor of floats in the model's normalisation, not {given}; {MAKES}")
