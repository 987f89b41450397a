"""Build a model from a name or a spec, with new or copied weights."""

import re
import warnings
from typing import TypeVar

import torch

from vitlab.errors import WeightsWarning
from vitlab.models.axial import AxialResNet
from vitlab.models.resnet import ResNet
from vitlab.models.swin import Swin
from vitlab.models.transformer import allocate
from vitlab.models.vit import ViT
from vitlab.paper.models import model_spec
from vitlab.spec import (
    AttentionLike,
    AxialResNetSpec,
    ConventionName,
    Conventions,
    HeadKind,
    Image,
    ModelSpec,
    Pool,
    PositionKind,
    PositionPlace,
    ResNetSpec,
    SwinSpec,
)

Model = ViT | ResNet | AxialResNet | Swin
Empty = TypeVar("Empty", bound=Model)
# Names that say how the weights were trained: of a hub, of BiT, or with one of timm's tags, as in .augreg_in21k.
RELEASED = re.compile(r"(google|facebook|microsoft|timm)/|BiT-[SML]-|(vit|deit|resnetv2|swin)_.*\.[a-z]")


def build_model(
    name: str,
    *,
    image: Image | None = None,
    classes: int = 1000,
    head: HeadKind | None = None,
    pool: Pool | None = None,
    positions: PositionKind | None = None,
    positions_at: PositionPlace | None = None,
    dropout: float = 0.0,
    stochastic_depth: float = 0.0,
    conventions: ConventionName | Conventions | None = None,
    merge: int = 0,
    attention: AttentionLike | None = None,
    window: int | None = None,
    head_bias: float = 0.0,
    seed: int = 0,
) -> Model:
    """Build a model by its name, with weights drawn as in the paper from `seed`.

    `head_bias` is the initial bias of the logits: -10 is the paper's value for pre-training with a sigmoid loss.
    None stands for the default of the model family: see `model_spec`. The weights are the same on every device; under
    `torch.device("meta")` nothing is allocated. A name of released weights, such as google/vit-base-patch16-224, gives
    a WeightsWarning, because the weights are random all the same.
    """
    options = dict(locals())
    del options["head_bias"], options["seed"]
    spec = model_spec(**options)
    if RELEASED.match(name):
        advice = "fetch the released ones with vitlab download, and give their name to vitlab.load_model"
        warnings.warn(f"build_model draws random weights for {name}; {advice}", WeightsWarning, stacklevel=2)
    return build_from_spec(spec, head_bias=head_bias, seed=seed)


def build_from_spec(spec: ModelSpec, *, head_bias: float = 0.0, seed: int = 0) -> Model:
    """Build a model of any spec, with weights drawn as in the paper."""
    return initialised(empty_model(spec), head_bias=head_bias, seed=seed)


def initialised(model: Empty, *, head_bias: float = 0.0, seed: int = 0) -> Empty:
    """Give an empty model new weights, the same on every device; under the meta device it stays empty."""
    device = torch.get_default_device()
    if device.type == "meta":
        return model
    allocate(model, "cpu")
    with torch.device("cpu"):
        model.initialise(torch.Generator().manual_seed(seed), head_bias)
    return model.to(device)


def copied_model(spec: ModelSpec, source: Model) -> Model:
    """Build a model of `spec` with the weights of `source`, cast to the default dtype; nothing is drawn at random.

    The two specs may differ in what has no weights, such as dropout. `source` keeps its own tensors, so that training
    the copy does not change it. Class names, task and provenance are not copied.
    """
    model = allocate(empty_model(spec), "cpu")
    model.load_state_dict(source.state_dict())
    return model


def empty_model(spec: ModelSpec) -> Model:
    """Build a model on the meta device: names and shapes without storage."""
    with torch.device("meta"):
        if isinstance(spec, ResNetSpec):
            return ResNet(spec)
        if isinstance(spec, SwinSpec):
            return Swin(spec)
        return AxialResNet(spec) if isinstance(spec, AxialResNetSpec) else ViT(spec)
