"""timm's ResNetV2: BiT, and the names of the ResNet in timm's hybrids."""

from dataclasses import replace
from typing import Any

import torch

from vitlab.paper.models import name_of
from vitlab.pixels import Preprocessing
from vitlab.spec import CONVENTIONS, ResNetSpec, Task
from vitlab.weights.files.containers import Container, WeightsError
from vitlab.weights.formats.hints import Hints, check_pooling, count_units, find_map_image, stated_preprocessing
from vitlab.weights.formats.layouts import POINT, Entry, entries, under
from vitlab.weights.formats.timm_config import (
    arguments_of,
    check_arguments,
    config_json,
    pretrained_of,
    read_preprocessing,
)

KNOWN = ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")  # widths and depths that timm builds
BIT = Preprocessing("shorter", 0.875, "bilinear", True)  # timm's preprocessing for BiT
NEUTRAL = frozenset(
    (
        "layers",
        "channels",
        "num_classes",
        "width_factor",
        "stem_chs",
        "global_pool",
        "zero_init_last",
        "drop_rate",
        "drop_path_rate",
    )
)
BUILT: dict[str, tuple[object, ...]] = {  # supported values of arguments of timm's constructor
    "in_chans": (3,),
    "output_stride": (32,),
    "stem_type": ("fixed",),
    "avg_down": (False,),
    "preact": (True,),
    "basic": (False,),
}

UNIT = {  # of a stage, also in hybrids
    **{part: part for part in ("conv1", "norm1", "conv2", "norm2", "conv3", "norm3")},
    "shortcut": "downsample.conv",
    "shortcut_norm": "downsample.norm",
}
NAMES = {
    "root": "stem.conv",
    "norm": "norm",
    "head.logits": "head.fc",
    **under("stages.{}.{}.", "stages.{}.blocks.{}.", UNIT),
}


def matches(container: Container) -> bool:
    """Whether the tensors have the names of timm's ResNetV2."""
    return {"stem.conv.weight", "stages.0.blocks.0.conv1.weight"} <= set(container.shapes)


def describe(container: Container, hints: Hints) -> ResNetSpec:
    """Derive the spec from the shapes, and from config.json if there is one."""
    root, channels, *_ = container.shape("stem.conv.weight", 4)
    if channels != 3:
        raise WeightsError(f"{container.path.name} takes {channels} input channels; only RGB models load")
    if "stem.norm.weight" in container.shapes or "norm.weight" not in container.shapes:
        raise WeightsError(f"{container.path.name} is not a pre-activation ResNet; of timm's ResNets only BiT's load")
    config = container.configs.get("config.json", {})
    arguments = arguments_of(config)
    check_pooling(config, arguments, has_class=False)
    check_arguments(arguments, NEUTRAL, BUILT)
    return ResNetSpec(
        stages=count_units(container, r"stages\.(\d)\.blocks\.(\d{1,6})\.", first=0),
        root=root,
        image=find_map_image(container, pretrained_of(config).get("input_size"), hints),
        classes=container.shape("head.fc.weight", 4)[0] if "head.fc.weight" in container.shapes else 0,
        conventions=replace(
            CONVENTIONS["timm"], preprocessing=stated_preprocessing(container) or read_preprocessing(config, BIT)
        ),
    )


def table(spec: ResNetSpec, own: dict[str, torch.Size], container: Container | None) -> list[Entry]:
    """Map every tensor of the model to timm's names."""
    return entries(own, NAMES, layouts={"head.logits.weight": POINT})


def refusals(spec: ResNetSpec, *, bare: bool) -> list[str]:
    """Return reasons why timm could not run this model unchanged; the reader of a `bare` file builds the model."""
    reasons = []
    known = name_of(spec).removeprefix("R")
    if not bare and known not in KNOWN:
        reasons.append(f"timm builds BiT only as {', '.join(KNOWN)}; write one bare .safetensors file")
    if spec.conventions.bit != CONVENTIONS["timm"].bit:
        reasons.append(f"timm runs BiT with {CONVENTIONS['timm'].bit}; load it with conventions='timm'")
    if spec.conventions.preprocessing.interpolation == "area":
        reasons.append("timm does not resize by area")
    return reasons


def configs(spec: ResNetSpec, class_names: tuple[str, ...] | None, task: Task) -> dict[str, Any]:
    """Return config.json as timm's `local-dir:` and hub loaders read it."""
    architecture = f"resnetv2_{name_of(spec).removeprefix('R')}_bit"
    return config_json(architecture, spec, class_names, "stem.conv", "head.fc")
