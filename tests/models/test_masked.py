"""A model that predicts corrupted patches: what it sees, and that it is the ViT it claims to be."""

from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck

from agreement import randomised
from vitlab.data.transforms.corruption import HIDDEN
from vitlab.models.build import build_from_spec
from vitlab.models.embedding import patchify
from vitlab.models.masked import build_masked_model, empty_masked_model
from vitlab.paper.models import model_spec
from vitlab.spec import Backbone, ViTSpec

SPEC = ViTSpec(patch=4, layers=2, width=24, mlp=40, heads=3, image=(12, 8), classes=0, head="linear")
VARIANTS = {
    "class": {},
    "mean": {"pool": "mean"},
    "distilled": {"distilled": True},
    "axial": {"attention": "axial", "pool": "mean"},
    "windows": {"attention": "window:2"},
    "BigBird": {"attention": "bigbird:1"},
    "relative": {"positions": "relative"},
    "every layer": {"positions": "2d", "positions_at": "every-layer"},
}
PLAN = torch.tensor([[[0, 2, 5], [HIDDEN, 4, 5]], [[1, 3, 4], [0, HIDDEN, HIDDEN]]])  # masked, swapped, kept; ...


def masked_model(dtype=torch.float64, **variant):
    return randomised(build_masked_model(replace(SPEC, **variant), 7)).to(dtype)


def images(count=2, dtype=torch.float64):
    return torch.randn(count, 3, 12, 8, generator=torch.Generator().manual_seed(5), dtype=dtype)


def with_patch(image, place, patch):
    """An image (3, H, W) with other pixels in a patch."""
    changed = image.clone()
    row, column = divmod(place, 2)
    changed[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = patch
    return changed


def patch_of(image, place):
    row, column = divmod(place, 2)
    return image[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]


@torch.no_grad()
def expected_of(model, picture, places):
    """The head's line on the last features of a plain ViT at some places; its own encoder has tests of its own."""
    *_, z = model.without_mask().layer_features(picture[None])
    z = z[0, model.spec.prefix :][places]
    return z @ model.head.logits.weight.mT + model.head.logits.bias


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_corrupting_embeddings_is_showing_other_pixels_in_those_patches(variant):
    """The embedding is linear in a patch alone: swapping embeddings before the positions is swapping pixels. The [mask]
    vector is set to the embedding of a certain patch, so that masking is painting that patch."""
    model, pictures = masked_model(**VARIANTS[variant]), images()
    paint = torch.randn(3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    model.mask_token.copy_(model.patches.weight.flatten(1) @ paint.flatten() + model.patches.bias)
    found = model(pictures, PLAN)
    for number, (places, sources) in enumerate(PLAN.tolist()):
        picture = pictures[number]
        for place, source in zip(places, sources, strict=True):
            other = paint if source == HIDDEN else patch_of(pictures[number], source)
            picture = with_patch(picture, place, other)
        torch.testing.assert_close(found[number], expected_of(model, picture, places), rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_a_hybrid_masks_the_tokens_of_its_feature_map():
    spec = replace(SPEC, patch=1, backbone=Backbone((1,), root=8), image=(16, 24))
    model = randomised(build_masked_model(spec, 5)).double()
    pictures = torch.randn(1, 3, 16, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    kept = torch.tensor([[[3, 20], [3, 20]]])
    torch.testing.assert_close(model(pictures, kept)[0], expected_of(model, pictures[0], [3, 20]))
    hidden = model.corrupted(model.patches(pictures), torch.tensor([[[3, 20], [HIDDEN, 0]]]))
    whole = model.patches(pictures)
    assert torch.equal(hidden[0, 3], model.mask_token)
    assert torch.equal(hidden[0, 20], whole[0, 0])
    others = [place for place in range(24) if place not in (3, 20)]
    assert torch.equal(hidden[0, others], whole[0, others])


def test_the_gradient_of_the_mask_and_of_the_embedding_is_that_of_differences():
    model, pictures = masked_model(), images()
    weights = [model.mask_token, model.patches.weight, model.head.logits.weight]

    def answer(mask, embedding, head):
        new = {"mask_token": mask, "patches.weight": embedding, "head.logits.weight": head}
        return torch.func.functional_call(model, new, (pictures, PLAN)).square().mean(dim=2)

    assert gradcheck(answer, [w.detach().clone().requires_grad_() for w in weights], fast_mode=True)
    answer(*weights).sum().backward()
    assert model.mask_token.grad.abs().max() > 0
    alone = masked_model()
    alone(pictures, PLAN.clamp(min=0)).square().sum().backward()  # nothing is hidden: the mask is not asked
    assert alone.mask_token.grad is None or not alone.mask_token.grad.any()


@pytest.mark.parametrize("name", ["class_token", "head.logits.bias"])
def test_only_corrupted_places_have_a_loss_and_the_class_token_takes_part(name):
    model = masked_model()
    answer = model(images(), PLAN)
    assert answer.shape == (2, 3, 7)
    answer.square().sum().backward()
    assert dict(model.named_parameters())[name].grad.any()


def test_fresh_weights_are_those_of_the_plain_model_and_a_lecun_head():
    spec = replace(SPEC, width=192, heads=3)
    model, plain = build_masked_model(spec, 512, seed=9), build_from_spec(spec, seed=9)
    own = model.state_dict()
    for name, tensor in plain.state_dict().items():
        if not name.startswith("head."):
            assert torch.equal(own[name], tensor), name
    assert set(own) - set(plain.state_dict()) == {"mask_token"}
    assert not own["head.logits.bias"].any()
    assert own["head.logits.weight"].std() == pytest.approx(192**-0.5, rel=0.02)
    assert own["mask_token"].std() == pytest.approx(0.02, rel=0.2)


def test_what_remains_is_the_vit_with_no_classes():
    model = masked_model(torch.float32)
    plain = model.without_mask()
    assert type(plain).__name__ == "ViT"
    assert (plain.spec.classes, plain.spec.head, plain.spec) == (0, "linear", SPEC)
    assert "mask_token" not in plain.state_dict()
    plain.reset_head(4)
    assert plain(images(dtype=torch.float32)).shape == (2, 4)


@pytest.mark.parametrize(("name", "kind"), [("R50x1", "bit"), ("AxialResNet-50", "axial-resnet"), ("Swin-T", "swin")])
def test_a_resnet_has_no_patches_to_mask(name, kind):
    with pytest.raises(ValueError, match=rf"masking needs patch embeddings, which '{kind}' models lack; use a ViT"):
        empty_masked_model(model_spec(name, classes=0), 512)


def test_half_precision_keeps_one_type():
    model = masked_model(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(images(dtype=torch.float32), PLAN).dtype == torch.bfloat16


def test_a_patch_is_where_patchify_has_it():
    picture = images(1)
    torch.testing.assert_close(patchify(picture, 4)[0, 3], patch_of(picture[0], 3).flatten())
