"""BiT, hybrids and distilled DeiT give timm's numbers with timm's weights and conventions: logits and every block."""

import pytest
import torch
from safetensors.torch import save_file

from agreement import disagreement, randomised
from vitlab import load_model

peers = pytest.importorskip("peers", reason="the peer libraries are not installed", exc_type=ImportError)
pytestmark = pytest.mark.slow

NAMES = {
    "R50x1": "resnetv2_50x1_bit",
    "R101x1": "resnetv2_101x1_bit",
    "R26+ViT-S/32": "vit_small_r26_s32_224",
    "R50+ViT-B/16": "vit_base_r50_s16_224",
    "R+ViT-Ti/16": "vit_tiny_r_s16_p8_224",
    "DeiT-Ti/16-distilled": "deit_tiny_distilled_patch16_224",
}


def blocks_of(model):
    """What both sides compute one after another: units of a ResNet, then layers of a Transformer."""
    stages = getattr(model, "stages", None)
    if stages is not None:
        return [unit for stage in stages for unit in getattr(stage, "blocks", stage)]
    embedding = getattr(model, "patch_embed", None) or model.patches
    backbone = getattr(embedding, "backbone", None)
    units = blocks_of(backbone) if getattr(backbone, "stages", None) is not None else []
    return [*units, *model.blocks]


@torch.inference_mode()
def outputs(model, images):
    seen = []
    hooks = [block.register_forward_hook(lambda m, i, o: seen.append(o)) for block in blocks_of(model)]
    logits = model(images)
    for hook in hooks:
        hook.remove()
    return [*seen, logits]


@pytest.mark.parametrize("name", NAMES)
def test_same_weights_give_the_same_numbers(name, tmp_path):
    theirs = peers.timm.create_model(NAMES[name], num_classes=1000)
    randomised(theirs)
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    ours = load_model(tmp_path / "weights.safetensors")
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))

    def worst(images):
        pairs = list(zip(outputs(ours, images), outputs(theirs, images), strict=True))
        assert len(pairs) > 12
        return max(disagreement(a, b) for a, b in pairs)

    assert worst(images) <= 5e-6
    ours, theirs = ours.double(), theirs.double()
    assert worst(images.double()) <= 1e-12
