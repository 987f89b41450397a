"""Swin Transformers: Microsoft's original files, timm's, and those of Hugging Face transformers.

timm puts the merging of patches at the start of a stage, as vitlab does, the others at the end of the one before.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

import torch

from vitlab.paper.names import SWINS
from vitlab.spec import CONVENTIONS, Conventions, SwinSpec, Task, WindowOrder
from vitlab.spec.pixels import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from vitlab.weights.files.containers import Container, WeightsError
from vitlab.weights.formats import huggingface, sizes, timm_config
from vitlab.weights.formats.layouts import STACKED, Entry, entries, under
from vitlab.weights.formats.preprocessing import stated_preprocessing

TIMM_IMAGES = Preprocessing("shorter", 0.9, "bicubic", True, IMAGENET_MEAN, IMAGENET_STD)
HF_IMAGES = Preprocessing("square", 1.0, "bicubic", True, IMAGENET_MEAN, IMAGENET_STD)
BUFFERS = re.compile(
    r"relative_position_index$|(^|\.)attn_mask$|embeddings\.mask_token$"
)  # not parameters of the model
WORDS = {"T": "tiny", "S": "small", "B": "base", "L": "large"}

LAYER = {
    "norm1": "norm1",
    "attention.qkv": "attn.qkv",
    "attention.table": "attn.relative_position_bias_table",
    "attention.out": "attn.proj",
    "norm2": "norm2",
    "mlp.dense1": "mlp.fc1",
    "mlp.dense2": "mlp.fc2",
}
NAMES = {
    "patches": "patch_embed.proj",
    "patch_norm": "patch_embed.norm",
    "norm": "norm",
    "head.logits": "head",
    **under("stages.{}.blocks.{}.", "layers.{}.blocks.{}.", LAYER),
}
TIMM_NAMES = NAMES | {"head.logits": "head.fc"}
MERGING = under("stages.{}.merging.", "layers.{}.downsample.", {"norm": "norm", "dense": "reduction"})
HF_NAMES = {
    "patches": "embeddings.patch_embeddings.projection",
    "patch_norm": "embeddings.norm",
    "norm": "layernorm",
    "head.logits": "classifier",
    **under(
        "stages.{}.blocks.{}.",
        "encoder.layers.{}.blocks.{}.",
        {
            "norm1": "layernorm_before",
            "attention.qkv": "attention.self.{qkv}",
            "attention.table": "attention.self.relative_position_bias_table",
            "attention.out": "attention.output.dense",
            "norm2": "layernorm_after",
            "mlp.dense1": "intermediate.dense",
            "mlp.dense2": "output.dense",
        },
    ),
}
HF_MERGING = under("", "encoder.", MERGING)
HF_LAYOUTS = {f"stages.{{}}.blocks.{{}}.attention.qkv.{part}": STACKED for part in ("weight", "bias")}

# 5.x renamed the parts of a layer; files on the hub keep the names of 4.x, which are used here.
HF_NAMES_5 = (
    (re.compile(r"\.attention\.relative_position_bias\.relative"), ".attention.self.relative"),
    (re.compile(r"\.attention\.q_proj\."), ".attention.self.query."),
    (re.compile(r"\.attention\.k_proj\."), ".attention.self.key."),
    (re.compile(r"\.attention\.v_proj\."), ".attention.self.value."),
    (re.compile(r"\.attention\.o_proj\."), ".attention.output.dense."),
    (re.compile(r"\.mlp\.fc1\."), ".intermediate.dense."),
    (re.compile(r"\.mlp\.fc2\."), ".output.dense."),
)

# Arguments of timm's constructor: those that follow from the tensors or are read below, or only matter in training, and
# the supported values of the others.
STATED = ("img_size", "patch_size", "num_classes", "embed_dim", "depths", "num_heads", "window_size", "global_pool")
RATES = ("drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "weight_init", "strict_img_size")
NEUTRAL = frozenset((*STATED, *RATES))
BUILT: dict[str, tuple[object, ...]] = {
    "in_chans": (3,),
    "head_dim": (None,),
    "always_partition": (False,),
    "mlp_ratio": (4,),
    "qkv_bias": (True,),
    "norm_layer": (None, "layernorm"),
}
HF_BUILT: dict[str, tuple[object, ...]] = {  # of config.json
    "model_type": ("swin",),
    "num_channels": (3,),
    "mlp_ratio": (4,),
    "qkv_bias": (True,),
    "hidden_act": ("gelu",),
    "use_absolute_embeddings": (False,),
    "layer_norm_eps": (1e-5,),
}


# -- Recognised ----------------------------------------------------------------------------------


def matches_timm(container: Container) -> bool:
    """Whether the tensors have the names of timm's Swin: a stage begins with its merging."""
    has_head = f"{TIMM_NAMES['head.logits']}.weight" in container.shapes
    first, second = (any(name.startswith(f"layers.{n}.downsample.") for name in container.shapes) for n in (0, 1))
    return _is_swin(container) and (has_head or (second and not first))


def matches_microsoft(container: Container) -> bool:
    """Whether the tensors have the names of Microsoft's code, which timm's older files have too."""
    return _is_swin(container) and not matches_timm(container)


def matches_hf(container: Container) -> bool:
    """Whether the tensors have the names of transformers' Swin."""
    first = "encoder.layers.0.blocks.0.layernorm_before.weight"
    return first in container.shapes or f"swin.{first}" in container.shapes


def _is_swin(container: Container) -> bool:
    return {"patch_embed.proj.weight", "layers.0.blocks.0.attn.qkv.weight"} <= set(container.shapes)


def normalised(container: Container) -> Container:
    """Leave out buffers, which follow from the sizes."""
    return container.renamed(lambda name: None if BUFFERS.search(name) else name)


def normalised_hf(container: Container) -> Container:
    """Rename the tensors as in 4.x, without the `swin.` prefix and without buffers."""

    def name_4(name: str) -> str | None:
        name = name.removeprefix("swin.")
        for pattern, new in HF_NAMES_5:
            name = pattern.sub(new, name)
        return None if BUFFERS.search(name) else name

    return container.renamed(name_4)


# -- Described -----------------------------------------------------------------------------------


def describe_microsoft(container: Container, hints: sizes.Hints) -> SwinSpec:
    """Derive the spec from the shapes."""
    usual = CONVENTIONS["deit"]
    conventions = replace(usual, preprocessing=stated_preprocessing(container) or usual.preprocessing)
    return _described(container, NAMES, conventions, 0.0, None, hints)


def describe_timm(container: Container, hints: sizes.Hints) -> SwinSpec:
    """Derive the spec from the shapes, and from config.json if there is one."""
    config = container.configs.get("config.json", {})
    arguments = timm_config.arguments_of(config)
    timm_config.check_pooling(config, arguments, has_class=False)
    timm_config.check_arguments(arguments, NEUTRAL, BUILT)
    stated = stated_preprocessing(container) or timm_config.read_preprocessing(config, TIMM_IMAGES)
    conventions = replace(CONVENTIONS["timm"], preprocessing=stated)
    size = arguments.get("img_size")
    if size is None and isinstance(shape := timm_config.pretrained_of(config).get("input_size"), list):
        size = shape[1:]  # after the channels
    return _described(container, TIMM_NAMES, conventions, sizes.rate_of(arguments, "drop_path_rate"), size, hints)


def describe_hf(container: Container, hints: sizes.Hints) -> SwinSpec:
    """Derive the spec from the shapes, and from config.json if there is one."""
    config = container.configs.get("config.json", {})
    for key, known in HF_BUILT.items():
        if config.get(key, known[0]) not in known:
            raise WeightsError(f"config.json has {key} {config[key]!r:.40}; only {known[0]!r} loads")
    processor = container.configs.get("preprocessor_config.json", {})
    try:
        stated = stated_preprocessing(container) or huggingface.read_preprocessing(processor, HF_IMAGES)
    except (TypeError, ValueError, ArithmeticError, KeyError) as error:
        raise WeightsError(f"preprocessor_config.json is unusable: {error}") from None
    conventions = replace(CONVENTIONS["hf"], preprocessing=stated)
    rate = sizes.rate_of(config, "drop_path_rate")
    return _described(container, HF_NAMES, conventions, rate, config.get("image_size"), hints)


def _described(
    container: Container,
    names: Mapping[str, str],
    conventions: Conventions,
    rate: float,
    size: object,
    hints: sizes.Hints,
) -> SwinSpec:
    """Return the spec of the shapes; the image size is stated, asked for, or that of a last map of one window."""
    root, channels, patch, _ = container.shape(f"{names['patches']}.weight", 4)
    if channels != 3:
        raise WeightsError(f"{container.path.name} takes {channels} input channels; only RGB models load")
    layer = re.escape(names["stages.{}.blocks.{}.norm1"]).replace(r"\{\}", r"(\d{1,6})")
    stages = sizes.count_units(container, layer, first=0)
    tables = [container.shape(names["stages.{}.blocks.{}.attention.table"].format(s, 0), 2) for s in range(len(stages))]
    classes = f"{names['head.logits']}.weight"
    spec = SwinSpec(
        stages=stages,
        root=root,
        heads=tables[0][1],
        window=_side(container, tables[0][0]),
        patch=patch,
        classes=container.shape(classes, 2)[0] if classes in container.shapes else 0,
        stochastic_depth=rate,
        conventions=conventions,
    )
    last = isqrt(tables[-1][0]) // 2 + 1
    square = last * patch * 2 ** (len(stages) - 1)
    for image in (sizes.stated_image(container, size), (square, square), hints.image):
        if image is not None and [w.offsets for w in replace(spec, image=image).windows] == [t[0] for t in tables]:
            return replace(spec, image=image)
    raise WeightsError(f"{container.path.name} does not state the image size of its windows; give it, image=(H, W)")


def _side(container: Container, offsets: int) -> int:
    """Return the side of square windows with so many different offsets."""
    side = (isqrt(offsets) + 1) // 2
    if (2 * side - 1) ** 2 != offsets:
        raise WeightsError(f"{container.path.name} has {offsets} biases per head in its first stage; expected (2M-1)^2")
    return side


# -- Named ---------------------------------------------------------------------------------------


def table_microsoft(spec: SwinSpec, own: dict[str, torch.Size], container: Container | None) -> list[Entry]:
    """Map every tensor of the model to Microsoft's names."""
    return entries(own, NAMES) + entries(own, MERGING, first=-1)


def table_timm(spec: SwinSpec, own: dict[str, torch.Size], container: Container | None) -> list[Entry]:
    """Map every tensor of the model to timm's names."""
    return entries(own, TIMM_NAMES | MERGING)


def table_hf(spec: SwinSpec, own: dict[str, torch.Size], container: Container | None) -> list[Entry]:
    """Map every tensor of the model to transformers' names; written files of a classifier have the prefix `swin.`."""
    names, merging = HF_NAMES, HF_MERGING
    if container is None and spec.classes:
        names = under("", "swin.", HF_NAMES) | {"head.logits": "classifier"}
        merging = under("", "swin.", HF_MERGING)
    return entries(own, names, layouts=HF_LAYOUTS) + entries(own, merging, first=-1)


# -- Written -------------------------------------------------------------------------------------


def refusals_microsoft(spec: SwinSpec, *, bare: bool) -> list[str]:
    """Return reasons why Microsoft's code for classification could not run this model unchanged."""
    is_padded = _has_partial_patches(spec) or any(any(windows.padding) for windows in spec.windows)
    reasons = {
        "Microsoft's code for classification pads nothing; write timm, hf or vitlab": is_padded,
        "its files have no description; name one file that ends in .safetensors": not bare,
        **_order_refusals(spec, "pad-roll", "Microsoft's"),
    }
    return [reason for reason, holds in reasons.items() if holds]


def refusals_timm(spec: SwinSpec, *, bare: bool) -> list[str]:
    """Return reasons why timm could not run this model unchanged."""
    reasons = {
        f"timm takes only whole patches of {spec.patch} pixels": _has_partial_patches(spec),
        "timm does not resize by area": spec.conventions.preprocessing.interpolation == "area",
        **_order_refusals(spec, "roll-pad", "timm's"),
    }
    return [reason for reason, holds in reasons.items() if holds]


def refusals_hf(spec: SwinSpec, *, bare: bool) -> list[str]:
    """Return reasons why transformers could not run this model unchanged."""
    is_small = any(windows.sides != (spec.window, spec.window) for windows in spec.windows)
    reasons = {
        f"transformers has no smaller windows for maps of less than {spec.window} cells": is_small,
        **_order_refusals(spec, "pad-roll", "transformers'"),
        **dict.fromkeys(huggingface.preprocessing_refusals(spec), True),
    }
    return [reason for reason, holds in reasons.items() if holds]


def _has_partial_patches(spec: SwinSpec) -> bool:
    return any(side % spec.patch for side in spec.image)


def _order_refusals(spec: SwinSpec, order: WindowOrder, whose: str) -> dict[str, bool]:
    """Whether another library would cut the maps of this model into other windows."""
    resize = "timm" if order == "roll-pad" else "deit"
    theirs = replace(spec, conventions=replace(spec.conventions, position_resize=resize))
    is_moved = any(any(windows.padding) and any(windows.shift) for windows in spec.windows)
    differs = spec.order != order and (is_moved or theirs.windows != spec.windows)
    size = f"{spec.image[0]}x{spec.image[1]}"
    return {f"maps of {size} images are cut into other windows than {whose}; load it with its conventions": differs}


def configs_timm(spec: SwinSpec, class_names: tuple[str, ...] | None, task: Task) -> dict[str, Any]:
    """Return config.json as timm's `local-dir:` and hub loaders read it."""
    known = (size for size, sizes in SWINS.items() if sizes == (spec.stages, spec.root, spec.heads))
    architecture = f"swin_{WORDS[next(known, 'T')]}_patch4_window7_224"
    arguments = {
        "img_size": list(spec.image),
        "patch_size": spec.patch,
        "window_size": spec.window,
        "embed_dim": spec.root,
        "depths": list(spec.stages),
        "num_heads": _heads(spec),
        "drop_path_rate": spec.stochastic_depth,
        "global_pool": "avg",
    }
    return timm_config.config_json(architecture, spec, class_names, "patch_embed.proj", "head.fc", arguments)


def configs_hf(spec: SwinSpec, class_names: tuple[str, ...] | None, task: Task) -> dict[str, Any]:
    """Return config.json and preprocessor_config.json as `from_pretrained` reads them."""
    height, width = spec.image
    model = {
        "architectures": ["SwinForImageClassification" if spec.classes else "SwinModel"],
        **{key: known[0] for key, known in HF_BUILT.items()},
        "image_size": height if height == width else [height, width],
        "patch_size": spec.patch,
        "embed_dim": spec.root,
        "depths": list(spec.stages),
        "num_heads": _heads(spec),
        "window_size": spec.window,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": spec.stochastic_depth,
        **huggingface.labels(spec, class_names, task),
    }
    return {"config.json": model, "preprocessor_config.json": huggingface.preprocessor(spec)}


def _heads(spec: SwinSpec) -> list[int]:
    return [spec.heads * 2**stage for stage in range(len(spec.stages))]
