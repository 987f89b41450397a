"""timm's VisionTransformer, and DeiT, which uses the same names."""

import math
import re
from typing import Any

from vitlab.paper.models import WORDS, name_of
from vitlab.spec import CONVENTIONS, Conventions, Preprocessing, ViTSpec, image_size
from vitlab.weights.containers import Container, WeightsError
from vitlab.weights.hints import Hints, find_heads, find_image, rows_of, stated_image, triple
from vitlab.weights.layouts import SAME, WITHOUT_CLASS_ROW, Entry, norm_and_dense

DISTILLED = "dist_token"


def matches(container: Container) -> bool:
    """Whether the tensors are named as timm names them."""
    return "patch_embed.proj.weight" in container.shapes


def describe(container: Container, hints: Hints) -> ViTSpec:
    """The model the shapes, and config.json where there is one, speak of."""
    if DISTILLED in container.shapes:
        raise WeightsError(f"{container.path.name} is a distilled DeiT with a second class token; only plain ones load")
    width, channels, patch, _ = container.shape("patch_embed.proj.weight", 4)
    if channels != 3:
        raise WeightsError(f"{container.path.name} takes {channels} input channels; only RGB models load")
    layers = {int(m[1]) for n in container.shapes if (m := re.match(r"blocks\.(\d{1,6})\.", n))}
    config = container.configs.get("config.json", {})
    arguments = config.get("model_args") if isinstance(config.get("model_args"), dict) else {}
    has_class = "cls_token" in container.shapes
    _check_pooling(config.get("global_pool", arguments.get("global_pool")), has_class)
    rows = _patch_rows(container, patch, arguments, hints) if has_class else container.shape("pos_embed", 3)[1]
    return ViTSpec(
        patch=patch,
        layers=len(layers),
        width=width,
        mlp=container.shape("blocks.0.mlp.fc1.weight", 2)[0],
        heads=find_heads(container, width, arguments.get("num_heads"), hints),
        image=find_image(container, rows, patch, arguments.get("img_size"), hints),
        classes=container.shape("head.weight", 2)[0] if "head.weight" in container.shapes else 0,
        head="mlp" if "pre_logits.fc.weight" in container.shapes else "linear",
        pool="class" if has_class else "mean",
        dropout=_rate(arguments, "proj_drop_rate"),
        stochastic_depth=_rate(arguments, "drop_path_rate"),
        conventions=_conventions(config, arguments),
    )


def _patch_rows(container: Container, patch: int, arguments: dict[str, Any], hints: Hints) -> int:
    """Rows of the position table that belong to patches: all but a few models give the class token one too."""
    rows = container.shape("pos_embed", 3)[1]
    sizes = (stated_image(container, arguments.get("img_size")), hints.image and image_size(hints.image))
    if any(size and rows_of(size, patch) == rows - 1 for size in sizes):
        return rows - 1
    return rows if rows > 1 and math.isqrt(rows) ** 2 == rows else rows - 1


def table(spec: ViTSpec, container: Container | None) -> list[Entry]:
    """Every tensor of the model under timm's names."""
    entries = norm_and_dense("patches", "patch_embed.proj")
    if spec.pool == "class":
        entries.append(Entry("class_token", ("cls_token",), SAME))
    bare = container is not None and container.shapes["pos_embed"][1] == spec.tokens - 1
    entries.append(Entry("positions.table", ("pos_embed",), WITHOUT_CLASS_ROW if bare else SAME))
    for layer in range(spec.layers):
        ours, theirs = f"blocks.{layer}", f"blocks.{layer}"
        for own, name in BLOCK.items():
            entries += norm_and_dense(f"{ours}.{own}", f"{theirs}.{name}")
    entries += norm_and_dense("norm", "norm")
    if spec.head == "mlp":
        entries += norm_and_dense("head.pre_logits", "pre_logits.fc")
    return entries + (norm_and_dense("head.logits", "head") if spec.classes else [])


BLOCK = {
    "norm1": "norm1",
    "attention.qkv": "attn.qkv",
    "attention.out": "attn.proj",
    "norm2": "norm2",
    "mlp.dense1": "mlp.fc1",
    "mlp.dense2": "mlp.fc2",
}


def refusals(spec: ViTSpec) -> list[str]:
    """Why timm could not run this model as it is."""
    reasons = []
    if spec.head == "mlp":
        reasons.append("timm dropped the pre-logits layer; call reset_head, or build with head='linear'")
    if spec.conventions.norm_eps != 1e-6:
        epsilon = f"{spec.conventions.norm_eps:g}"
        reasons.append(f"timm's LayerNorm epsilon is 1e-06, this model's {epsilon}; load it with conventions='timm'")
    if spec.conventions.preprocessing.interpolation == "area":
        reasons.append("timm does not resize by area")
    return reasons


def config(spec: ViTSpec, class_names: tuple[str, ...] | None) -> dict[str, Any]:
    """config.json as timm's `local-dir:` and hub loaders read it."""
    size = next((s for s in WORDS if name_of(spec) == f"ViT-{s}/{spec.patch}" and s in ("Ti", "S", "B", "L", "H")), "B")
    height, width = spec.image
    preprocessing = spec.conventions.preprocessing
    pretrained = {
        "input_size": [3, height, width],
        "num_classes": spec.classes,
        "interpolation": preprocessing.interpolation,
        "crop_pct": preprocessing.fraction,
        "crop_mode": "center" if preprocessing.resize == "shorter" else "squash",
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }
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
    names = {"label_names": list(class_names)} if class_names else {}
    return {
        "architecture": f"vit_{WORDS[size]}_patch{14 if size == 'H' else 16}_224",
        "num_classes": spec.classes,
        "num_features": spec.width,
        "global_pool": arguments["global_pool"],
        "model_args": arguments,
        "pretrained_cfg": pretrained,
        **names,
    }


def class_names(container: Container) -> object:
    """The label names of a config.json, unchecked."""
    return container.configs.get("config.json", {}).get("label_names")


def _check_pooling(stated: object, has_class: bool) -> None:
    """A class token is read alone, without one the patches are averaged; timm can do more, which is not built here."""
    expected = "token" if has_class else "avg"
    if stated not in (None, expected):
        given = "with" if has_class else "without"
        raise WeightsError(f"config.json pools by {stated!r:.40} {given} a class token; only {expected!r} loads")


def _rate(arguments: dict[str, Any], key: str) -> float:
    rate = arguments.get(key, 0.0)
    if not isinstance(rate, int | float):
        raise WeightsError(f"config.json has {key} {rate!r:.40}; a number is expected")
    return rate


def _conventions(config: dict[str, Any], arguments: dict[str, Any]) -> Conventions:
    """timm's own, with the normalisation and the activation that config.json states."""
    own = CONVENTIONS["timm"]
    activation = arguments.get("act_layer", "gelu")
    if activation not in ("gelu", "gelu_tanh"):
        raise WeightsError(f"config.json asks for the activation {activation!r:.40}; gelu and gelu_tanh are known")
    stated = config.get("pretrained_cfg") if isinstance(config.get("pretrained_cfg"), dict) else {}
    preprocessing = own.preprocessing
    try:
        squash = stated.get("crop_mode") == "squash"
        preprocessing = Preprocessing(
            resize="square" if squash else "shorter",
            fraction=float(stated.get("crop_pct", preprocessing.fraction)),
            interpolation=stated.get("interpolation", preprocessing.interpolation),
            antialias=True,
            mean=triple(stated.get("mean", preprocessing.mean)),
            std=triple(stated.get("std", preprocessing.std)),
        )
    except (TypeError, ValueError, ArithmeticError) as error:
        raise WeightsError(f"config.json has an unusable pretrained_cfg: {error}") from None
    return Conventions(
        "tanh" if activation == "gelu_tanh" else "exact", own.norm_eps, own.position_resize, preprocessing
    )
