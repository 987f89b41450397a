"""The same weights give the same numbers in timm, Hugging Face and torchvision: logits and every block."""

from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import save_file

from agreement import disagreement, randomised
from vitlab import load_model
from vitlab.paper.names import SIZES

peers = pytest.importorskip("peers", reason="the peer libraries are not installed", exc_type=ImportError)
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Shape:
    name: str
    layers: int

    @property
    def sizes(self):
        size, _, patch = self.name.removeprefix("ViT-").partition("/")
        _, width, mlp, heads = SIZES[size]
        return width, mlp, heads, int(patch)


SHAPES = [
    Shape("ViT-Ti/16", 12),
    Shape("ViT-S/16", 12),
    Shape("ViT-B/16", 12),
    Shape("ViT-B/32", 12),
    Shape("ViT-L/16", 2),
    Shape("ViT-H/14", 2),
]


def timm_model(shape):
    width, mlp, heads, patch = shape.sizes
    model = peers.TimmViT(patch_size=patch, embed_dim=width, depth=shape.layers, num_heads=heads, mlp_ratio=mlp / width)
    return model, list(model.blocks)


def huggingface_model(shape):
    width, mlp, heads, patch = shape.sizes
    config = peers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=shape.layers,
        num_attention_heads=heads,
        intermediate_size=mlp,
        patch_size=patch,
        num_labels=1000,
    )
    model = peers.ViTForImageClassification(config)
    return model, list(model.vit.layers)


def torchvision_model(shape):
    width, mlp, heads, patch = shape.sizes
    model = peers.TorchvisionViT(224, patch, shape.layers, heads, width, mlp)
    return model, list(model.encoder.layers)


@torch.inference_mode()
def compare(ours, theirs, their_blocks, images):
    """The worst disagreement over logits and every block's output."""
    outputs = []
    hooks = [
        b.register_forward_hook(lambda m, i, o: outputs.append(o[0] if isinstance(o, tuple) else o))
        for b in their_blocks
    ]
    logits = theirs(images)
    for hook in hooks:
        hook.remove()
    own = list(ours.layer_features(images))[:-1]
    assert len(own) == len(outputs) == ours.spec.layers
    worst = max(disagreement(a, b) for a, b in zip(own, outputs, strict=True))
    return max(worst, disagreement(ours(images), getattr(logits, "logits", logits)))


@pytest.mark.filterwarnings("ignore::vitlab.errors.WeightsWarning")  # no images here
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
@pytest.mark.parametrize("library", [timm_model, huggingface_model, torchvision_model], ids=lambda f: f.__name__)
def test_same_weights_give_the_same_numbers(library, shape, tmp_path):
    theirs, blocks = library(shape)
    randomised(theirs)
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    ours = load_model(tmp_path / "weights.safetensors")
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))

    assert compare(ours, theirs, blocks, images) <= 5e-6
    assert compare(ours.double(), theirs.double(), blocks, images.double()) <= 1e-12
