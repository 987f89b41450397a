"""Google's .npz files: vision_transformer (before and after Linen), AugReg, and big_vision."""

import math
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from vitlab.spec import CONVENTIONS, LIMITS, Backbone, ViTSpec
from vitlab.weights.files.containers import Container, WeightsError
from vitlab.weights.formats import layouts
from vitlab.weights.formats.layouts import FLAX, SAME, Entry, entries, under
from vitlab.weights.formats.sizes import Hints, count_units, find_image, find_map_image, rows_of, vit_sizes

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
NAMES = {
    "patches": "embedding",
    "class_token": "cls",
    "norm": "Transformer/encoder_norm",
    "head.pre_logits": "pre_logits",
    "head.logits": "head",
    **under(
        "blocks.{}.",
        "Transformer/encoderblock_{}/",
        {
            "norm1": "LayerNorm_0",
            "attention.qkv": "MultiHeadDotProductAttention_1/{qkv}",
            "attention.out": "MultiHeadDotProductAttention_1/out",
            "norm2": "LayerNorm_2",
            "mlp.dense1": "MlpBlock_3/Dense_0",
            "mlp.dense2": "MlpBlock_3/Dense_1",
        },
    ),
}
LAYOUTS = {
    "blocks.{}.attention.qkv.weight": layouts.QKV_KERNELS,
    "blocks.{}.attention.qkv.bias": layouts.QKV_BIASES,
    "blocks.{}.attention.out.weight": layouts.OUT_KERNEL,
}
UNIT = {  # of a ResNet
    **{f"conv{number}": f"conv{number}" for number in (1, 2, 3)},
    **{f"norm{number}": f"gn{number}" for number in (1, 2, 3)},
    "shortcut": "conv_proj",
    "shortcut_norm": "gn_proj",
}
BACKBONE = {
    "patches.backbone.root": "conv_root",
    "patches.backbone.root_norm": "gn_root",
    **under("patches.backbone.stages.{}.{}.", "block{}/unit{}/", UNIT),
}


def matches(container: Container) -> bool:
    """Whether the tensors have the names of Google's files."""
    return any(f"{prefix}embedding/kernel" in container.shapes for prefix in ("", *PREFIXES))


def normalised(container: Container) -> Container:
    """Rename the tensors as in the released files: no prefix, one numbering, layers unstacked."""
    container = without_prefix(container, PREFIXES).renamed(_released_name)
    sources: dict[str, tuple[str, int | None]] = {}
    for name in container.shapes:
        is_stacked = name.startswith("Transformer/encoderblock/")
        for layer in range(_stacked_layers(container, name)) if is_stacked else (None,):
            new = name if layer is None else name.replace("encoderblock", f"encoderblock_{layer}")
            if new in sources:
                raise WeightsError(f"{container.path.name} has both {sources[new][0]!r} and {name!r}")
            sources[new] = (name, layer)
    stacked = lru_cache(maxsize=None)(container.read)  # read a stacked tensor once, not once per layer

    def read(name: str) -> Tensor:
        source, layer = sources[name]
        return container.read(source) if layer is None else stacked(source)[layer]

    shapes = {n: container.shapes[s][0 if i is None else 1 :] for n, (s, i) in sources.items()}
    return replace(container, shapes=shapes, read=read)


def _released_name(name: str) -> str:
    return BARE_POSITIONS if name == OLDER_POSITIONS else "/".join(LINEN.get(part, part) for part in name.split("/"))


def without_prefix(container: Container, prefixes: tuple[str, ...]) -> Container:
    """Strip the first prefix that occurs, leave out optimizer state and counters, and turn norms into plain vectors."""
    prefix = next((p for p in prefixes if any(n.startswith(p) for n in container.shapes)), "")

    def stripped(name: str) -> str | None:
        is_ours = name.startswith(prefix) and (prefix or not name.startswith("opt/"))
        return name.removeprefix(prefix) if is_ours else None

    container = container.renamed(stripped)
    spread = {
        name
        for name, shape in container.shapes.items()
        if len(shape) == 4 and shape[:3] == (1, 1, 1) and name.rpartition("/")[2] in VECTORS
    }
    shapes = {name: shape[3:] if name in spread else shape for name, shape in container.shapes.items()}
    read = container.read
    return replace(container, shapes=shapes, read=lambda name: read(name).flatten() if name in spread else read(name))


def _stacked_layers(container: Container, name: str) -> int:
    shape = container.shapes[name]
    if not shape or 0 in shape or shape[0] > LIMITS["layers"]:
        raise WeightsError(f"{container.path.name}: {name!r} stacks {shape} layers; 1 to {LIMITS['layers']} are read")
    return shape[0]


def describe(container: Container, hints: Hints) -> ViTSpec:
    """Derive the spec from the shapes."""
    backbone = None
    if "conv_root/kernel" in container.shapes:
        stages = count_units(container, r"block(\d)/unit(\d{1,6})/", first=1)
        backbone = Backbone(stages, container.shape("conv_root/kernel", 4)[3])
    sizes = vit_sizes(container, NAMES, backbone.channels if backbone else 3, "/kernel")
    has_class = "cls" in container.shapes
    stride = sizes["patch"] * (backbone.stride if backbone else 1)
    return ViTSpec(
        **sizes,
        heads=container.shape("Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel", 3)[1],
        image=_image(container, stride, has_class, hints),
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
            f"{container.path.name} has no position table; give positions='sincos2d', as big_vision computes them, or "
            "positions='none' (on the command line: vitlab convert --positions sincos2d)"
        )
    return find_map_image(container, None, hints)


def _has_class_row(rows: int, stride: int, hints: Hints) -> bool:
    """Whether a big_vision table has a row for the class token: one more than a square grid, or than `image`."""
    if math.isqrt(rows) ** 2 == rows:
        return False
    asked = rows_of(hints.image, stride) if hints.image is not None else -1
    return rows != asked and (math.isqrt(rows - 1) ** 2 == rows - 1 or rows - 1 == asked)


def assumptions(container: Container, *, is_told: bool) -> list[str]:
    """Return assumptions that change the predictions. Only big_vision pools patches in several ways."""
    if "cls" in container.shapes or POSITIONS in container.shapes:
        return []
    return [
        f"{container.path.name} has no class token and does not state how it pools; the mean of the patches is assumed "
        "(big_vision's pool_type='gap'). With pool_type='0', which vitlab does not build, predictions would be wrong"
    ]


def table(spec: ViTSpec, own: dict[str, torch.Size], container: Container | None) -> list[Entry]:
    """Map every tensor of the model; without a container, in the layout of the released files."""
    mapped = entries(own, NAMES, FLAX, LAYOUTS) + entries(own, BACKBONE, FLAX, first=1)
    if spec.positions == "none":
        return mapped
    if container is None or POSITIONS in container.shapes:
        return [*mapped, Entry("positions.table", (POSITIONS,), SAME)]
    if BARE_POSITIONS not in container.shapes:
        computed = sincos_positions(spec)
        return [*mapped, Entry("positions.table", (), layouts.Layout(lambda t: computed, lambda w, h: []))]
    extra = container.shapes[BARE_POSITIONS][1] - math.prod(spec.grid)
    layout = SAME if extra == spec.prefix else layouts.WITHOUT_CLASS_ROW if spec.prefix else layouts.DROPPED_CLASS_ROW
    return [*mapped, Entry("positions.table", (BARE_POSITIONS,), layout)]


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


def refusals(spec: ViTSpec, *, bare: bool) -> list[str]:
    """Return reasons why Google's code would compute something else from the file."""
    own, usual, (rows, columns) = spec.conventions, CONVENTIONS["paper"], spec.grid
    theirs, ours = (f"{run.gelu} GELU and LayerNorm epsilon {run.norm_eps:g}" for run in (usual, own))
    wanted = "load it with conventions='paper' if that change is wanted"
    is_run_otherwise = (own.gelu, own.norm_eps) != (usual.gelu, usual.norm_eps)
    is_other_hybrid = spec.backbone is not None and own.hybrid != usual.hybrid
    is_like_a_square = rows != columns and math.isqrt(rows * columns) ** 2 == rows * columns
    reasons = {
        f"Google's code runs {theirs}, this model {ours}; {wanted}": is_run_otherwise,
        f"Google's code runs hybrids with {usual.hybrid}, this model {own.hybrid}; {wanted}": is_other_hybrid,
        f"its {rows}x{columns} grid would be read as a square": is_like_a_square,
    }
    return [reason for reason, holds in reasons.items() if holds]
