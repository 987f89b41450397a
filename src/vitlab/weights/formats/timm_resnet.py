"""timm's ResNetV2: BiT, and the names of the ResNet in timm's hybrids."""

from dataclasses import replace
from typing import Any

from vitlab.paper.models import name_of
from vitlab.pixels import Preprocessing
from vitlab.spec import CONVENTIONS, ResNetSpec
from vitlab.weights.files.containers import Container, WeightsError
from vitlab.weights.formats.google import count_units
from vitlab.weights.formats.hints import Hints, find_map_image, stated_preprocessing
from vitlab.weights.formats.layouts import POINT, SAME, Entry, norm_and_dense
from vitlab.weights.formats.timm_config import (
    arguments_of,
    check_arguments,
    pretrained_config,
    pretrained_of,
    read_preprocessing,
)
from vitlab.weights.formats.unbuilt import check_pooling

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


def table(spec: ResNetSpec, container: Container | None) -> list[Entry]:
    """Map every tensor of the model to timm's names."""
    entries = [Entry("root.weight", ("stem.conv.weight",), SAME)]
    entries += unit_entries(spec.stages, "", "", shortcut_norm=False)
    entries += norm_and_dense("norm", "norm")
    if not spec.classes:
        return entries
    return [
        *entries,
        Entry("head.logits.weight", ("head.fc.weight",), POINT),
        Entry("head.logits.bias", ("head.fc.bias",), SAME),
    ]


def unit_entries(stages: tuple[int, ...], ours: str, theirs: str, *, shortcut_norm: bool) -> list[Entry]:
    """Map the units of every stage; in a hybrid the shortcut also has a norm."""
    entries = []
    for stage, units in enumerate(stages):
        for unit in range(units):
            own, other = f"{ours}stages.{stage}.{unit}", f"{theirs}stages.{stage}.blocks.{unit}"
            for number in (1, 2, 3):
                entries.append(Entry(f"{own}.conv{number}.weight", (f"{other}.conv{number}.weight",), SAME))
                entries += norm_and_dense(f"{own}.norm{number}", f"{other}.norm{number}")
            if unit == 0:
                entries.append(Entry(f"{own}.shortcut.weight", (f"{other}.downsample.conv.weight",), SAME))
            if unit == 0 and shortcut_norm:
                entries += norm_and_dense(f"{own}.shortcut_norm", f"{other}.downsample.norm")
    return entries


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


def config(spec: ResNetSpec, class_names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return config.json as timm's `local-dir:` and hub loaders read it."""
    names = {"label_names": list(class_names)} if class_names else {}
    return {
        "architecture": f"resnetv2_{name_of(spec).removeprefix('R')}_bit",
        "num_classes": spec.classes,
        "num_features": spec.width,
        "global_pool": "avg",
        "pretrained_cfg": pretrained_config(spec, "stem.conv", "head.fc"),
        **names,
    }


KNOWN = ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")
