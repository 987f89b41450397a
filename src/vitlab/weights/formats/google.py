"""Google's .npz files: vision_transformer (before and after Linen), AugReg, and big_vision."""

import math
import re
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from vitlab.spec import CONVENTIONS, LIMITS, Backbone, ViTSpec, image_size
from vitlab.weights.files.containers import Container, WeightsError
from vitlab.weights.formats.hints import Hints, find_image, find_map_image, rows_of
from vitlab.weights.formats.layouts import (
    CONVOLUTION,
    DROPPED_CLASS_ROW,
    KERNEL,
    OUT_KERNEL,
    QKV_BIASES,
    QKV_KERNELS,
    SAME,
    WITHOUT_CLASS_ROW,
    Entry,
    Layout,
)

PREFIXES = ("opt/target/params/", "opt/target/", "params/")
VECTORS = ("scale", "bias", "gamma", "beta")  # of GroupNorms; older files add three sides of 1
POSITIONS = "Transformer/posembed_input/pos_embedding"
BARE_POSITIONS = "pos_embedding"  # big_vision: without a row for the class token, or, in older files, with one
OLDER_POSITIONS = "Transformer/pos_embedding"  # the same before 2022
# Linen numbers modules per kind, the released files per layer; the names below are those of the released files.
LINEN = {
    "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1",
    "LayerNorm_1": "LayerNorm_2",
    "MlpBlock_0": "MlpBlock_3",
}


def matches(container: Container) -> bool:
    """Whether the tensors have the names of Google's files."""
    return any(f"{prefix}embedding/kernel" in container.shapes for prefix in ("", *PREFIXES))


def normalised(container: Container) -> Container:
    """Rename the tensors as in the released files: no prefix, one numbering, layers unstacked."""
    container = without_prefix(container, PREFIXES)
    sources: dict[str, tuple[str, int | None]] = {}
    for name in container.shapes:
        canonical = "/".join(LINEN.get(part, part) for part in name.split("/"))
        canonical = BARE_POSITIONS if canonical == OLDER_POSITIONS else canonical
        if canonical in sources:
            raise WeightsError(f"{container.path.name} has both {sources[canonical][0]!r} and {name!r}")
        if canonical.startswith("Transformer/encoderblock/"):
            for layer in range(_stacked_layers(container, name)):
                sources[canonical.replace("encoderblock", f"encoderblock_{layer}")] = (name, layer)
        else:
            sources[canonical] = (name, None)
    stacked = lru_cache(maxsize=None)(container.read)  # read a stacked tensor once, not once per layer

    def read(name: str) -> Tensor:
        source, layer = sources[name]
        return container.read(source) if layer is None else stacked(source)[layer]

    shapes = {n: container.shapes[s][0 if i is None else 1 :] for n, (s, i) in sources.items()}
    return replace(container, shapes=shapes, read=read)


def without_prefix(container: Container, prefixes: tuple[str, ...]) -> Container:
    """Strip the first prefix that occurs, and turn norms into plain vectors.

    The optimizer's moments and the step counters of a training checkpoint are left out.
    """
    prefix = next((p for p in prefixes if any(n.startswith(p) for n in container.shapes)), "")
    shapes, spread = {}, set()
    for name, shape in container.shapes.items():
        if not name.startswith(prefix) or (not prefix and name.startswith("opt/")):
            continue
        if len(shape) == 4 and shape[:3] == (1, 1, 1) and name.rpartition("/")[2] in VECTORS:
            spread.add(name.removeprefix(prefix))
            shape = shape[3:]
        shapes[name.removeprefix(prefix)] = shape

    def read(name: str) -> Tensor:
        tensor = container.read(prefix + name)
        return tensor.flatten() if name in spread else tensor

    return replace(container, shapes=shapes, read=read)


def _stacked_layers(container: Container, name: str) -> int:
    shape = container.shapes[name]
    if not shape or 0 in shape or shape[0] > LIMITS["layers"]:
        raise WeightsError(
            f"{container.path.name}: {name!r} stacks layers in shape {shape}; 1 to {LIMITS['layers']} are read"
        )
    return shape[0]


def describe(container: Container, hints: Hints) -> ViTSpec:
    """Derive the spec from the shapes."""
    patch, _, channels, width = container.shape("embedding/kernel", 4)
    backbone = None
    if "conv_root/kernel" in container.shapes:
        stages = count_units(container, r"block(\d)/unit(\d{1,6})/", first=1)
        backbone = Backbone(stages, container.shape("conv_root/kernel", 4)[3])
    expected = backbone.channels if backbone else 3
    if channels != expected:
        raise WeightsError(f"{container.path.name} embeds patches of {channels} channels instead of {expected}")
    first = "Transformer/encoderblock_0"
    heads = container.shape(f"{first}/MultiHeadDotProductAttention_1/query/kernel", 3)[1]
    if hints.heads not in (None, heads):
        raise WeightsError(f"{container.path.name} has {heads} attention heads, not {hints.heads}; leave heads out")
    mlp = container.shape(f"{first}/MlpBlock_3/Dense_0/kernel", 2)[1]
    layers = {int(m[1]) for n in container.shapes if (m := re.match(r"Transformer/encoderblock_(\d{1,6})/", n))}
    has_class = "cls" in container.shapes
    stride = patch * (backbone.stride if backbone else 1)
    return ViTSpec(
        patch=patch,
        layers=len(layers),
        width=width,
        mlp=mlp,
        heads=heads,
        image=_image(container, stride, has_class, hints),
        classes=container.shape("head/kernel", 2)[1] if "head/kernel" in container.shapes else 0,
        head="mlp" if "pre_logits/kernel" in container.shapes else "linear",
        pool="class" if has_class else "mean",
        conventions=CONVENTIONS["paper"],
        positions="none" if hints.positions == "none" else "1d",
        backbone=backbone,
    )


def _image(container: Container, stride: int, has_class: bool, hints: Hints) -> tuple[int, int]:
    """Return the image size of the position table; without a table any size fits."""
    tables = [name for name in (POSITIONS, BARE_POSITIONS) if name in container.shapes]
    if len(tables) > 1:
        raise WeightsError(f"{container.path.name} has two position tables, {' and '.join(map(repr, tables))}")
    if tables and hints.positions is not None:
        raise WeightsError(f"{container.path.name} has a position table, {tables[0]!r}; leave positions out")
    if tables:
        rows = container.shape(tables[0], 3)[1]
        rows -= has_class if tables == [POSITIONS] else _has_class_row(rows, stride, hints)
        return find_image(container, rows, stride, None, hints)
    if hints.positions is None:
        raise WeightsError(
            f"{container.path.name} has no position table: either big_vision computes its positions "
            "(posemb='sincos2d'), or the model has none. Give positions='sincos2d' or positions='none' (on the command "
            "line: vitlab convert --positions sincos2d)"
        )
    return find_map_image(container, None, hints)


def _has_class_row(rows: int, stride: int, hints: Hints) -> bool:
    """Whether a big_vision table has a row for the class token: one more than a square grid, or than `image`."""
    if math.isqrt(rows) ** 2 == rows:
        return False
    asked = rows_of(image_size(hints.image), stride) if hints.image is not None else -1
    return rows != asked and (math.isqrt(rows - 1) ** 2 == rows - 1 or rows - 1 == asked)


def assumptions(container: Container, *, is_told: bool) -> list[str]:
    """Return assumptions that change the predictions. Only big_vision pools patches in several ways."""
    if "cls" in container.shapes or POSITIONS in container.shapes:
        return []
    return [
        f"{container.path.name} has no class token and does not state how it pools; the mean of the patches is assumed "
        "(big_vision's pool_type='gap'). With pool_type='0', which vitlab does not build, predictions would be wrong"
    ]


def count_units(container: Container, pattern: str, *, first: int) -> tuple[int, ...]:
    """Count the units of each stage of a ResNet; `pattern` finds the numbers of stage and unit in a name."""
    found = {(int(m[1]), int(m[2])) for name in container.shapes if (m := re.match(pattern, name))}
    last = max((stage for stage, _ in found), default=first - 1)
    return tuple(sum(stage == other for other, _ in found) for stage in range(first, last + 1))


def table(spec: ViTSpec, container: Container | None) -> list[Entry]:
    """Map every tensor of the model; without a container, in the layout of the released files."""
    entries = [
        Entry("patches.weight", ("embedding/kernel",), CONVOLUTION),
        Entry("patches.bias", ("embedding/bias",), SAME),
        *(_backbone(spec.backbone) if spec.backbone else []),
    ]
    if spec.pool == "class":
        entries.append(Entry("class_token", ("cls",), SAME))
    entries += _positions(spec, container)
    for layer in range(spec.layers):
        entries += _block(f"blocks.{layer}", f"Transformer/encoderblock_{layer}")
    entries += _norm("norm", "Transformer/encoder_norm")
    if spec.head == "mlp":
        entries += _dense("head.pre_logits", "pre_logits")
    return entries + (_dense("head.logits", "head") if spec.classes else [])


def _positions(spec: ViTSpec, container: Container | None) -> list[Entry]:
    """Map the position table: as in the file, or computed if the file has none."""
    if spec.positions == "none":
        return []
    if container is None or POSITIONS in container.shapes:
        return [Entry("positions.table", (POSITIONS,), SAME)]
    if BARE_POSITIONS not in container.shapes:
        return [Entry("positions.table", (), _computed(sincos_positions(spec)))]
    extra = container.shapes[BARE_POSITIONS][1] - math.prod(spec.grid)
    layout = SAME if extra == spec.prefix else WITHOUT_CLASS_ROW if spec.prefix else DROPPED_CLASS_ROW
    return [Entry("positions.table", (BARE_POSITIONS,), layout)]


def sincos_positions(spec: ViTSpec) -> Tensor:
    """Compute big_vision's fixed positions, (1, n, D): sines and cosines of column and row; 0 for the class token.

    Frequencies fall geometrically from 1 to 1/10,000. The table is loaded as a learned one, which training changes.
    """
    if spec.width % 4:
        raise WeightsError(f"sincos2d positions need a width that is a multiple of 4, not {spec.width}")
    frequencies = torch.logspace(0, -4, spec.width // 4, dtype=torch.float64)  # (D/4,)
    row, column = (torch.arange(side, dtype=torch.float64)[:, None] * frequencies for side in spec.grid)
    shape = (*spec.grid, -1)
    parts = [
        *(wave(column)[None].expand(shape) for wave in (torch.sin, torch.cos)),
        *(wave(row)[:, None].expand(shape) for wave in (torch.sin, torch.cos)),
    ]
    patches = torch.cat(parts, dim=-1).flatten(0, 1)[None].float()  # (1, N, D)
    return torch.cat([patches.new_zeros(1, spec.prefix, spec.width), patches], dim=1)


def _computed(table: Tensor) -> Layout:
    """The layout of a tensor that is computed, not read."""
    return Layout(lambda t: table, lambda w, h: [])


def _backbone(backbone: Backbone) -> list[Entry]:
    """Map the ResNet in front of a hybrid's Transformer."""
    own = "patches.backbone"
    entries = [Entry(f"{own}.root.weight", ("conv_root/kernel",), CONVOLUTION), *_norm(f"{own}.root_norm", "gn_root")]
    for stage, units in enumerate(backbone.stages):
        for unit in range(units):
            ours, theirs = f"{own}.stages.{stage}.{unit}", f"block{stage + 1}/unit{unit + 1}"
            for number in (1, 2, 3):
                entries.append(Entry(f"{ours}.conv{number}.weight", (f"{theirs}/conv{number}/kernel",), CONVOLUTION))
                entries += _norm(f"{ours}.norm{number}", f"{theirs}/gn{number}")
            if unit == 0:
                entries.append(Entry(f"{ours}.shortcut.weight", (f"{theirs}/conv_proj/kernel",), CONVOLUTION))
                entries += _norm(f"{ours}.shortcut_norm", f"{theirs}/gn_proj")
    return entries


def _block(ours: str, theirs: str) -> list[Entry]:
    attention = f"{theirs}/MultiHeadDotProductAttention_1"
    kinds = ("query", "key", "value")
    return [
        *_norm(f"{ours}.norm1", f"{theirs}/LayerNorm_0"),
        Entry(f"{ours}.attention.qkv.weight", tuple(f"{attention}/{k}/kernel" for k in kinds), QKV_KERNELS),
        Entry(f"{ours}.attention.qkv.bias", tuple(f"{attention}/{k}/bias" for k in kinds), QKV_BIASES),
        Entry(f"{ours}.attention.out.weight", (f"{attention}/out/kernel",), OUT_KERNEL),
        Entry(f"{ours}.attention.out.bias", (f"{attention}/out/bias",), SAME),
        *_norm(f"{ours}.norm2", f"{theirs}/LayerNorm_2"),
        *_dense(f"{ours}.mlp.dense1", f"{theirs}/MlpBlock_3/Dense_0"),
        *_dense(f"{ours}.mlp.dense2", f"{theirs}/MlpBlock_3/Dense_1"),
    ]


def _norm(ours: str, theirs: str) -> list[Entry]:
    return [Entry(f"{ours}.weight", (f"{theirs}/scale",), SAME), Entry(f"{ours}.bias", (f"{theirs}/bias",), SAME)]


def _dense(ours: str, theirs: str) -> list[Entry]:
    return [Entry(f"{ours}.weight", (f"{theirs}/kernel",), KERNEL), Entry(f"{ours}.bias", (f"{theirs}/bias",), SAME)]
