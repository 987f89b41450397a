"""Specs of models by name, and names of specs."""

import operator
import re
from typing import Any, cast

from vitlab.paper.names import (
    AXIAL_RESNET,
    DEIT,
    HYBRIDS,
    RESNET,
    SIZES,
    STAGES,
    SWIN,
    SWINS,
    VIT,
    canonical,
    stated_image,
    stated_window,
)
from vitlab.spec import (
    AttentionLike,
    AxialResNetSpec,
    Backbone,
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
    ViTSpec,
    image_size,
    named_conventions,
)
from vitlab.spec.patterns import OF_SWIN, no_pattern, parse_pattern

AXIAL: dict[str, Any] = {"attention": "axial", "head": "linear", "pool": "mean", "positions": "2d"}  # of an Axial-ViT


def model_spec(
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
) -> ModelSpec:
    """Return the spec of a model by its name; the defaults are those of the paper.

    `image` is 224 unless the name states it, as in timm's vit_base_patch16_384. ViTs and hybrids have the MLP head of
    pre-training, a class token and 1d positions; an Axial-ViT has a linear head, mean pooling and 2d positions; a DeiT
    has a linear head and DeiT's conventions. A Swin has a linear head, windows of 7x7 cells unless `window` or its name
    states another side, and DeiT's conventions, since its authors prepare images as DeiT's do. `merge` is the number of
    tokens that every layer merges, `attention` a pattern such as "window:7"; with "axial" a ViT is the Axial-ViT of its
    size. Options that a family lacks cannot be set.
    """
    known = canonical(name)
    size = image_size((stated_image(name) or 224) if image is None else image)
    pattern = None if attention is None else str(parse_pattern(attention))
    asked: dict[str, str | None] = {"head": head, "pool": pool, "attention": pattern}
    asked |= {"positions": positions, "positions_at": positions_at}
    given = {key: value for key, value in asked.items() if value is not None}
    numbers = {"dropout": dropout, "stochastic_depth": stochastic_depth, "merge": merge}
    rates = {key: value for key, value in numbers.items() if value}
    has_deits = known.startswith("DeiT") or SWIN.fullmatch(known)
    common = {
        "image": size,
        "classes": _whole_classes(classes),
        "conventions": named_conventions(conventions or ("deit" if has_deits else "paper")),
    }
    if match := SWIN.fullmatch(known):
        return _swin_spec(
            match[1], window if window is not None else stated_window(name) or 7, {**common, **given, **rates}
        )
    if window is not None:
        raise ValueError(f"{known} has no windows; window= is for Swins, such as Swin-T")
    if match := RESNET.fullmatch(known) or AXIAL_RESNET.fullmatch(known):
        unknown = sorted(set(given) - {"head"} | set(rates))
        if unknown or given.get("head", "linear") != "linear":
            raise ValueError(f"{known} is a ResNet with a linear head; it has no {', '.join(unknown) or 'mlp head'}")
        if AXIAL_RESNET.fullmatch(known):
            return AxialResNetSpec(STAGES[match[1]], **common)
        return ResNetSpec(STAGES[match[1]], _root(known, match[2]), **common)
    return _vit_spec(known, {**common, **given, **rates})


def _swin_spec(size: str, window: int, options: dict[str, Any]) -> SwinSpec:
    if (pattern := options.pop("attention", "full")) != "full":
        raise ValueError(no_pattern(pattern, OF_SWIN))
    unknown = sorted(set(options) - {"image", "classes", "conventions", "head", "stochastic_depth"})
    if unknown or options.get("head", "linear") != "linear":
        what = ", ".join(unknown) or "mlp head"
        raise ValueError(f"Swin-{size} pools the mean of its last map and has a linear head; it has no {what}")
    stages, root, heads = SWINS[size]
    return SwinSpec(stages, root, heads, window, **options)


def _vit_spec(name: str, options: dict[str, Any]) -> ViTSpec:
    """Return the spec of a ViT, hybrid, Axial-ViT or DeiT by its canonical name; `options` override its fields."""
    if match := DEIT.fullmatch(name):
        axial, size, patch = "", match[1], int(match[2])
        own: dict[str, Any] = {"head": "linear", "distilled": bool(match[3])}
    else:
        hybrid, axial, size, number = cast(re.Match[str], VIT.fullmatch(name)).groups()
        patch, own = int(number), {}
        if hybrid:
            stages, patch = HYBRIDS[hybrid, patch]
            own = {"backbone": Backbone(stages)}
    if axial or options.get("attention") == "axial":
        own |= AXIAL
    layers, width, mlp, heads = SIZES[size]
    return ViTSpec(patch, layers, width, mlp, heads, **{**own, **options})


def name_of(spec: ModelSpec) -> str:
    """Return the paper's name of a spec, or a short description if it has none."""
    if isinstance(spec, SwinSpec):
        return _swin_name(spec)
    if not isinstance(spec, ViTSpec):
        depth = next((depth for depth, stages in STAGES.items() if stages == spec.stages), None)
        kind = "R" if isinstance(spec, ResNetSpec) else "AxialResNet-"
        width = f"x{_factor(spec.root)}" if isinstance(spec, ResNetSpec) or spec.root != 64 else ""
        return f"{kind}{depth or f' (units {list(spec.stages)})'}{width}"
    sizes = (spec.layers, spec.width, spec.mlp, spec.heads)
    size = next((size for size, known in SIZES.items() if sizes == known and size != "b"), None)  # b and S are the same
    if size is None:
        size = f" (L={spec.layers}, D={spec.width}, MLP={spec.mlp}, h={spec.heads})"
    if spec.backbone is not None:
        known = next((key for key, parts in HYBRIDS.items() if parts == (spec.backbone.stages, spec.patch)), None)
        first, number = known or (f"R{list(spec.backbone.stages)}", spec.stride)
        width = f"x{_factor(spec.backbone.root)}" if spec.backbone.root != 64 else ""
        return f"{first}{width}+{_dashed('ViT', size)}/{number}"
    if spec.distilled:
        return f"{_dashed('DeiT', size)}/{spec.patch}-distilled"
    return f"{_dashed('Axial-ViT' if spec.attention == 'axial' else 'ViT', size)}/{spec.patch}"


def _swin_name(spec: SwinSpec) -> str:
    sizes = (spec.stages, spec.root, spec.heads)
    size = next((size for size, known in SWINS.items() if known == sizes), None)
    if size is None:
        size = f" (layers {list(spec.stages)}, C={spec.root}, h={spec.heads})"
    return _dashed("Swin", size) + (f", window {spec.window}" if spec.window != 7 else "")


def _dashed(family: str, size: str) -> str:
    return f"{family}{size}" if size.startswith(" ") else f"{family}-{size}"


def _whole_classes(classes: object) -> int:
    try:
        number = operator.index(cast(Any, classes))
    except TypeError:
        number = None
    if number is None or isinstance(classes, bool):
        raise ValueError(
            f"classes {classes!r} is not a whole number; give 1000, or 0 for a model that only makes features"
        )
    return number


def _factor(root: int) -> str:
    """Return the width factor of a root as in names: 64 channels are 1, 16 are 0.25."""
    return str(root / 64).removesuffix(".0")


def _root(name: str, factor: str) -> int:
    """Return the channels of a root with a width factor."""
    channels = 64 * float(factor)
    if channels != int(channels) or channels < 1:
        raise ValueError(f"{name} would have {channels:g} channels in its root; 64 times its width must be whole")
    return int(channels)
