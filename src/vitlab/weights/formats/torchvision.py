"""torchvision's VisionTransformer; only read, because its files contain no description."""

import re
from dataclasses import replace

from vitlab.spec import CONVENTIONS, ViTSpec
from vitlab.weights.files.containers import Container
from vitlab.weights.formats.hints import Hints, find_heads, find_image
from vitlab.weights.formats.layouts import SAME, Entry, norm_and_dense

LAYER = "encoder.layers.encoder_layer_"
OLD_NAMES = {"mlp.linear_1.": "mlp.0.", "mlp.linear_2.": "mlp.3."}


def matches(container: Container) -> bool:
    """Whether the tensors have torchvision's names."""
    return "conv_proj.weight" in container.shapes and "class_token" in container.shapes


def normalised(container: Container) -> Container:
    """Rename the tensors of the MLP as in current versions."""
    names: dict[str, str] = {}
    for name in container.shapes:
        canonical = name
        for old, new in OLD_NAMES.items():
            canonical = canonical.replace(old, new)
        names[canonical] = name
    shapes = {canonical: container.shapes[name] for canonical, name in names.items()}
    return replace(container, shapes=shapes, read=lambda canonical: container.read(names[canonical]))


def describe(container: Container, hints: Hints) -> ViTSpec:
    """Derive the spec from the shapes."""
    width, _, patch, _ = container.shape("conv_proj.weight", 4)
    rows = container.shape("encoder.pos_embedding", 3)[1] - 1
    layers = {int(m[1]) for n in container.shapes if (m := re.match(re.escape(LAYER) + r"(\d{1,6})\.", n))}
    return ViTSpec(
        patch=patch,
        layers=len(layers),
        width=width,
        mlp=container.shape(f"{LAYER}0.mlp.0.weight", 2)[0],
        heads=find_heads(container, width, None, hints),
        image=find_image(container, rows, patch, None, hints),
        classes=container.shape("heads.head.weight", 2)[0] if "heads.head.weight" in container.shapes else 0,
        head="mlp" if "heads.pre_logits.weight" in container.shapes else "linear",
        conventions=CONVENTIONS["torchvision"],
    )


def table(spec: ViTSpec, container: Container | None) -> list[Entry]:
    """Map every tensor of the model to torchvision's names."""
    entries = [
        *norm_and_dense("patches", "conv_proj"),
        Entry("class_token", ("class_token",), SAME),
        Entry("positions.table", ("encoder.pos_embedding",), SAME),
    ]
    for layer in range(spec.layers):
        ours, theirs = f"blocks.{layer}", f"{LAYER}{layer}"
        for own, name in BLOCK.items():
            entries += norm_and_dense(f"{ours}.{own}", f"{theirs}.{name}")
        for part in ("weight", "bias"):
            entries.append(Entry(f"{ours}.attention.qkv.{part}", (f"{theirs}.self_attention.in_proj_{part}",), SAME))
    entries += norm_and_dense("norm", "encoder.ln")
    if spec.head == "mlp":
        entries += norm_and_dense("head.pre_logits", "heads.pre_logits")
    return entries + (norm_and_dense("head.logits", "heads.head") if spec.classes else [])


BLOCK = {
    "norm1": "ln_1",
    "attention.out": "self_attention.out_proj",
    "norm2": "ln_2",
    "mlp.dense1": "mlp.0",
    "mlp.dense2": "mlp.3",
}
