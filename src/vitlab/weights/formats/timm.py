"""timm's VisionTransformer and hybrids, and DeiT, which uses the same names."""

import math
from dataclasses import replace
from typing import Any

import torch

from vitlab.paper.names import SIZES, WORDS
from vitlab.spec import CONVENTIONS, Backbone, Conventions, Task, ViTSpec
from vitlab.weights.files.containers import Container, WeightsError
from vitlab.weights.formats import preprocessing, sizes, timm_config
from vitlab.weights.formats.layouts import WITHOUT_CLASS_ROW, Entry, entries, under
from vitlab.weights.formats.timm_resnet import UNIT

DISTILLED = "dist_token"
STEM = "patch_embed.backbone.stem."  # of a hybrid; one with only a root has no such prefix
BARE_STEM = "patch_embed.backbone."
HYBRIDS: dict[tuple[int, ...], str] = {  # units of each stage of the ResNet: timm's hybrid
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (): "vit_tiny_r_s16_p8_224",
}

# Arguments of timm's constructor: those that follow from the tensors or are read below, those that only matter in
# training, and the supported values of the others.
STATED = ("img_size", "patch_size", "num_classes", "embed_dim", "depth", "num_heads", "mlp_ratio", "act_layer")
POOLED = ("global_pool", "no_embed_class", "pool_include_prefix", "dynamic_img_size", "strict_img_size")
RATES = tuple(f"{part}drop_rate" for part in ("", "pos_", "patch_", "proj_", "attn_"))
NEUTRAL = frozenset((*STATED, *POOLED, *RATES, "drop_path_rate", "weight_init", "fix_init"))
BUILT: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("qkv_bias", "proj_bias", "final_norm"), (True,)),
    **dict.fromkeys(("qk_norm", "scale_attn_norm", "scale_mlp_norm", "pre_norm", "dynamic_img_pad"), (False,)),
    **dict.fromkeys(("init_values", "embed_norm_layer"), (None,)),
    "in_chans": (3,),
    "pos_embed": ("learn",),
    "reg_tokens": (0,),
    "fc_norm": (None, False),
    "norm_layer": (None, "layernorm"),
}
NAMES = {
    "patches": "patch_embed.proj",
    "class_token": "cls_token",
    "distillation_token": DISTILLED,
    "positions.table": "pos_embed",
    "norm": "norm",
    "head.pre_logits": "pre_logits.fc",
    "head.logits": "head",
    "head.distillation": "head_dist",
    **under(
        "blocks.{}.",
        "blocks.{}.",
        {
            "norm1": "norm1",
            "attention.qkv": "attn.qkv",
            "attention.out": "attn.proj",
            "norm2": "norm2",
            "mlp.dense1": "mlp.fc1",
            "mlp.dense2": "mlp.fc2",
        },
    ),
    **under("patches.backbone.stages.{}.{}.", "patch_embed.backbone.stages.{}.blocks.{}.", UNIT),
}


def matches(container: Container) -> bool:
    """Whether the tensors have timm's names."""
    return "patch_embed.proj.weight" in container.shapes


def describe(container: Container, hints: sizes.Hints) -> ViTSpec:
    """Derive the spec from the shapes, and from config.json if there is one."""
    backbone = _backbone(container)
    found = sizes.vit_sizes(container, NAMES, backbone.channels if backbone else 3)
    stride = found["patch"] * (backbone.stride if backbone else 1)
    distilled, has_class = DISTILLED in container.shapes, "cls_token" in container.shapes
    config = container.configs.get("config.json", {})
    arguments = timm_config.arguments_of(config)
    timm_config.check_pooling(config, arguments, has_class=has_class)
    timm_config.check_arguments(arguments, NEUTRAL, BUILT | {"class_token": (has_class,)})
    rows = container.shape("pos_embed", 3)[1]
    if distilled:
        rows -= 2
    elif has_class:
        rows = _patch_rows(container, stride, arguments, hints)
    return ViTSpec(
        **found,
        heads=sizes.find_heads(container, found["width"], arguments.get("num_heads"), hints),
        image=sizes.find_image(container, rows, stride, arguments.get("img_size"), hints),
        pool="class" if has_class else "mean",
        dropout=sizes.rate_of(arguments, "proj_drop_rate"),
        stochastic_depth=sizes.rate_of(arguments, "drop_path_rate"),
        conventions=_conventions(container, config, arguments),
        backbone=backbone,
        distilled=distilled,
    )


def _backbone(container: Container) -> Backbone | None:
    """Return the ResNet of a hybrid, or None."""
    for stem in (STEM, BARE_STEM):
        if f"{stem}conv.weight" in container.shapes:
            stages = sizes.count_units(container, r"patch_embed\.backbone\.stages\.(\d)\.blocks\.(\d{1,6})\.", first=0)
            return Backbone(stages, container.shape(f"{stem}conv.weight", 4)[0])
    return None


def _patch_rows(container: Container, patch: int, arguments: dict[str, Any], hints: sizes.Hints) -> int:
    """Return the number of patch rows in the position table; most models also have one for the class token."""
    rows = container.shape("pos_embed", 3)[1]
    found = (sizes.stated_image(container, arguments.get("img_size")), hints.image)
    if any(size and sizes.rows_of(size, patch) == rows - 1 for size in found):
        return rows - 1
    return rows if rows > 1 and math.isqrt(rows) ** 2 == rows else rows - 1


def table(spec: ViTSpec, own: dict[str, torch.Size], container: Container | None) -> list[Entry]:
    """Map every tensor of the model to timm's names."""
    bare = container is not None and container.shapes["pos_embed"][1] == spec.tokens - 1
    stem = under("patches.backbone.", _stem(spec), {"root": "conv", "root_norm": "norm"})
    return entries(own, NAMES | stem, layouts={"positions.table": WITHOUT_CLASS_ROW} if bare else None)


def _stem(spec: ViTSpec) -> str:
    return STEM if spec.backbone is not None and spec.backbone.stages else BARE_STEM


def refusals(spec: ViTSpec, *, bare: bool) -> list[str]:
    """Return reasons why timm could not run this model unchanged."""
    own, usual, hybrid = spec.conventions, CONVENTIONS["timm"], spec.backbone
    epsilons = f"timm's LayerNorm epsilon is {usual.norm_eps:g}, this model's {own.norm_eps:g}"
    reasons = {
        "timm dropped the pre-logits layer; in Python, call reset_head or build with head='linear'": spec.head == "mlp",
        f"{epsilons}; load it with conventions='timm'": own.norm_eps != usual.norm_eps,
        "timm does not resize by area": own.preprocessing.interpolation == "area",
        f"timm runs hybrids with {usual.hybrid}; load it with conventions='timm'": hybrid
        and own.hybrid != usual.hybrid,
        f"timm has no hybrid with {hybrid}": hybrid and (hybrid.root != 64 or hybrid.stages not in HYBRIDS),
    }
    return [reason for reason, holds in reasons.items() if holds]


def configs(spec: ViTSpec, class_names: tuple[str, ...] | None, task: Task) -> dict[str, Any]:
    """Return config.json as timm's `local-dir:` and hub loaders read it."""
    found = (spec.layers, spec.width, spec.mlp, spec.heads)
    size = next((s for s in ("Ti", "S", "B", "L", "H") if SIZES[s] == found), "B")
    height, width = spec.image
    ratio = spec.mlp / spec.width
    arguments = {
        "img_size": [height, width],
        "patch_size": spec.patch,
        "embed_dim": spec.width,
        "depth": spec.layers,
        "num_heads": spec.heads,
        "mlp_ratio": ratio if int(spec.width * ratio) == spec.mlp else (spec.mlp + 0.5) / spec.width,
        "class_token": spec.pool == "class",
        "global_pool": "token" if spec.pool == "class" else "avg",
        "fc_norm": False,
        "pos_drop_rate": spec.dropout,
        "proj_drop_rate": spec.dropout,
        "drop_path_rate": spec.stochastic_depth,
        "act_layer": "gelu_tanh" if spec.conventions.gelu == "tanh" else "gelu",
    }
    first = "patch_embed.proj" if spec.backbone is None else f"{_stem(spec)}conv"
    classifier = ["head", "head_dist"] if spec.distilled else "head"
    return timm_config.config_json(_architecture(spec, size), spec, class_names, first, classifier, arguments)


def _architecture(spec: ViTSpec, size: str) -> str:
    """Return an architecture of timm whose arguments can describe this model."""
    if spec.distilled:
        return f"deit_{WORDS[size] if size in ('Ti', 'S') else 'base'}_distilled_patch16_224"
    if spec.backbone is not None:
        return HYBRIDS[spec.backbone.stages]
    return f"vit_{WORDS[size]}_patch{14 if size == 'H' else 16}_224"


def _is_deit(container: Container, config: dict[str, Any]) -> bool:
    """Whether a model is certainly a DeiT: it is distilled, or timm's architecture says so."""
    return DISTILLED in container.shapes or str(config.get("architecture", "")).startswith("deit_")


def assumptions(container: Container, *, is_told: bool) -> list[str]:
    """Return assumptions that change the predictions; none if `is_told`: the caller has given the conventions."""
    config = container.configs.get("config.json", {})
    is_known = _is_deit(container, config) or _backbone(container) is not None  # all of timm's hybrids are Google's
    is_stated = is_told or is_known or _says_normalisation(container)
    return [] if is_stated else [preprocessing.normalisation_doubt(container)]


def may_be_deit(container: Container) -> bool:
    """Whether the tensors have timm's names, which DeiT shares, and nothing states the normalisation."""
    return matches(container) and "pos_embed" in container.shapes and not _says_normalisation(container)


def _says_normalisation(container: Container) -> bool:
    """Whether config.json, or the header of a bare file, states the normalisation."""
    stated = timm_config.pretrained_of(container.configs.get("config.json", {}))
    return "mean" in stated or preprocessing.stated_preprocessing(container) is not None


def _conventions(container: Container, config: dict[str, Any], arguments: dict[str, Any]) -> Conventions:
    """Return timm's or DeiT's conventions with the normalisation and activation that the files state."""
    own = CONVENTIONS["deit" if _is_deit(container, config) or preprocessing.is_named_deit(container) else "timm"]
    activation = arguments.get("act_layer", "gelu")
    if activation not in ("gelu", "gelu_tanh"):
        raise WeightsError(f"config.json asks for the activation {activation!r:.40}; gelu and gelu_tanh are known")
    stated = preprocessing.stated_preprocessing(container) or timm_config.read_preprocessing(config, own.preprocessing)
    return replace(own, gelu="tanh" if activation == "gelu_tanh" else "exact", preprocessing=stated)
