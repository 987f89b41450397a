"""timm's ResNetV2: BiT, and the names of the ResNet in timm's hybrids."""

from dataclasses import replace
from typing import Any

import torch

from vitlab.paper.models import name_of
from vitlab.spec import CONVENTIONS, ResNetSpec, Task
from vitlab.spec.pixels import Preprocessing
from vitlab.weights.files.containers import Container, WeightsError
from vitlab.weights.formats import timm_config
from vitlab.weights.formats.layouts import POINT, Entry, entries, under
from vitlab.weights.formats.preprocessing import stated_preprocessing
from vitlab.weights.formats.sizes import Hints, count_units, find_map_image

KNOWN = ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")  # widths and depths that timm builds
BIT = Preprocessing("shorter", 0.875, "bilinear", True)  # timm's preprocessing for BiT
STATED = ("layers", "channels", "num_classes", "width_factor", "stem_chs", "global_pool")
NEUTRAL = frozenset((*STATED, "zero_init_last", "drop_rate", "drop_path_rate"))
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
    arguments = timm_config.arguments_of(config)
    timm_config.check_pooling(config, arguments, has_class=False)
    timm_config.check_arguments(arguments, NEUTRAL, BUILT)
    stated = stated_preprocessing(container)
    return ResNetSpec(
        stages=count_units(container, r"stages\.(\d)\.blocks\.(\d{1,6})\.", first=0),
        root=root,
        image=find_map_image(container, timm_config.pretrained_of(config).get("input_size"), hints),
        classes=container.shape("head.fc.weight", 4)[0] if "head.fc.weight" in container.shapes else 0,
        conventions=replace(CONVENTIONS["timm"], preprocessing=stated or timm_config.read_preprocessing(config, BIT)),
    )


def table(spec: ResNetSpec, own: dict[str, torch.Size], container: Container | None) -> list[Entry]:
    """Map every tensor of the model to timm's names."""
    return entries(own, NAMES, layouts={"head.logits.weight": POINT})


def refusals(spec: ResNetSpec, *, bare: bool) -> list[str]:
    """Return reasons why timm could not run this model unchanged; the reader of a `bare` file builds the model."""
    own, usual = spec.conventions, CONVENTIONS["timm"]
    is_known = bare or name_of(spec).removeprefix("R") in KNOWN
    reasons = {
        f"timm builds BiT only as {', '.join(KNOWN)}; write one bare .safetensors file": not is_known,
        f"timm runs BiT with {usual.bit}; load it with conventions='timm'": own.bit != usual.bit,
        "timm does not resize by area": own.preprocessing.interpolation == "area",
    }
    return [reason for reason, holds in reasons.items() if holds]


def configs(spec: ResNetSpec, class_names: tuple[str, ...] | None, task: Task) -> dict[str, Any]:
    """Return config.json as timm's `local-dir:` and hub loaders read it."""
    architecture = f"resnetv2_{name_of(spec).removeprefix('R')}_bit"
    return timm_config.config_json(architecture, spec, class_names, "stem.conv", "head.fc")
