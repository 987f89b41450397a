"""Open an engine by its name, or the fastest one."""

from typing import cast

from torch import nn

from vitlab.engines.choice import fastest
from vitlab.engines.engine import Engine, EngineName
from vitlab.engines.making import make_engine
from vitlab.models.build import Model
from vitlab.models.classifier import check_model
from vitlab.require import check_arguments, require


def open_engine(
    model: nn.Module, engine: EngineName = "torch", *, batch: int = 32, images: int | None = None
) -> Engine:
    """Prepare a model for inference; returns what computes its logits and features.

    `torch` prepares the weights once and computes a batch on one core per chunk of images; `plain` calls the model as
    it is. `compiled`, `onnxruntime` and `openvino` convert the model first, `onnxruntime-int8` also rounds its weights
    to 8 bits. `auto` is the fastest installed one for batches of `batch` images: measured once per model and machine.
    With `images`, the number of all images to come, it counts the time to open an engine too.
    All but `plain` have copies of the weights: open the engine again after you have changed them. A converted model
    that disagrees with the plain one raises.
    """
    check_arguments(open_engine, locals())
    check_model(model)
    require(batch >= 1, f"batch {batch} must be at least 1")
    require(images is None or images >= 0, f"images {images} must not be negative")
    own = cast(Model, model)
    return fastest(own, batch, images) if engine == "auto" else make_engine(own, engine)
