"""torchvision's VisionTransformer; only read, because its files contain no description."""

import torch

from vitlab.spec import CONVENTIONS, ViTSpec
from vitlab.weights.files.containers import Container
from vitlab.weights.formats.layouts import Entry, entries, under
from vitlab.weights.formats.sizes import Hints, find_heads, find_image, vit_sizes

NAMES = {
    "patches": "conv_proj",
    "class_token": "class_token",
    "positions.table": "encoder.pos_embedding",
    "norm": "encoder.ln",
    "head.pre_logits": "heads.pre_logits",
    "head.logits": "heads.head",
    **under(
        "blocks.{}.",
        "encoder.layers.encoder_layer_{}.",
        {
            "norm1": "ln_1",
            "attention.qkv.weight": "self_attention.in_proj_weight",
            "attention.qkv.bias": "self_attention.in_proj_bias",
            "attention.out": "self_attention.out_proj",
            "norm2": "ln_2",
            "mlp.dense1": "mlp.0",
            "mlp.dense2": "mlp.3",
        },
    ),
}


def matches(container: Container) -> bool:
    """Whether the tensors have torchvision's names."""
    return "conv_proj.weight" in container.shapes and "class_token" in container.shapes


def normalised(container: Container) -> Container:
    """Rename the tensors of the MLP as in current versions."""
    return container.renamed(lambda name: name.replace("mlp.linear_1.", "mlp.0.").replace("mlp.linear_2.", "mlp.3."))


def describe(container: Container, hints: Hints) -> ViTSpec:
    """Derive the spec from the shapes."""
    sizes = vit_sizes(container, NAMES)
    rows = container.shape("encoder.pos_embedding", 3)[1] - 1
    return ViTSpec(
        **sizes,
        heads=find_heads(container, sizes["width"], None, hints),
        image=find_image(container, rows, sizes["patch"], None, hints),
        conventions=CONVENTIONS["torchvision"],
    )


def table(spec: ViTSpec, own: dict[str, torch.Size], container: Container | None) -> list[Entry]:
    """Map every tensor of the model to torchvision's names."""
    return entries(own, NAMES)
