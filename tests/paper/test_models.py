"""Names as the paper spells them, and as others do."""

import re

import numpy as np
import pytest

from vitlab.counting import count
from vitlab.paper.imagenet import imagenet_classes
from vitlab.paper.models import model_spec, name_of
from vitlab.paper.names import MODELS, SIZES, STAGES, WORDS, canonical
from vitlab.spec import CONVENTIONS, ResNetSpec, ViTSpec


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ("ViT-B/16", "ViT-B/16"),
        ("ViT-B_16", "ViT-B/16"),
        ("B/16", "ViT-B/16"),
        ("ViT-b/32", "ViT-b/32"),
        ("vit_base_patch16_224", "ViT-B/16"),
        ("vit_base_patch32_384.augreg_in21k_ft_in1k", "ViT-B/32"),
        ("vit_tiny_patch16_224", "ViT-Ti/16"),
        ("vit_huge_patch14_224", "ViT-H/14"),
        ("vit_l_16", "ViT-L/16"),
        ("vit_h_14", "ViT-H/14"),
        ("vit-base-16", "ViT-B/16"),
        ("ViT-S/8", "ViT-S/8"),
        ("google/vit-base-patch16-224-in21k", "ViT-B/16"),
        ("deit_tiny_patch16_224", "DeiT-Ti/16"),
        ("deit_base_patch16_384.fb_in1k", "DeiT-B/16"),
        ("facebook/deit-base-patch16-224", "DeiT-B/16"),
        ("deit_base_distilled_patch16_384.fb_in1k", "DeiT-B/16-distilled"),
        ("facebook/deit-small-distilled-patch16-224", "DeiT-S/16-distilled"),
        ("ResNet152x4", "R152x4"),
        ("BiT-M-R50x3", "R50x3"),
        ("resnetv2_101x1_bit.goog_in21k_ft_in1k", "R101x1"),
        ("R50x1+ViT-B/32", "R50+ViT-B/32"),
        ("R50+ViT-B_16", "R50+ViT-B/16"),
        ("R26_S_32", "R26+ViT-S/32"),
        ("vit_large_r50_s32_384", "R50+ViT-L/32"),
        ("vit_tiny_r_s16_p8_224.augreg_in21k", "R+ViT-Ti/16"),
        ("R26x0.25", "R26x0.25"),
        ("R50x01.50", "R50x1.5"),
        ("resnetv2_50x1.0_bit", "R50x1"),
        ("ViT-B/016", "ViT-B/16"),
        ("axialresnet26", "AxialResNet-26"),
        ("swin_tiny_patch4_window7_224", "Swin-T"),
    ],
)
def test_other_spellings_mean_the_same_model(other, name):
    assert canonical(other) == name


WRONG = ("ViT-X/16", "vit", "", "ViT-B/", "ViT-B/16x", "resnet50", "R51x1", "R26+ViT-B/16")
FOREIGN_DIGITS = ("ViT-B/١٦", "R50x١", "vit_base_patch١٦_224")


@pytest.mark.parametrize("wrong", [*WRONG, *FOREIGN_DIGITS, "R50x" + "9" * 400, "ViT-B/" + "1" * 5000, None, 5])
def test_unknown_names_say_what_exists(wrong):
    with pytest.raises(ValueError, match="Ti, S, b, B, L, H, g, G"):
        canonical(wrong)


def test_a_typo_gets_a_proposal():
    with pytest.raises(ValueError, match="did you mean ViT-L/16"):
        canonical("VIT-L/16")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("vit-b/32", "ViT-B/32"),
        ("VITB32", "ViT-B/32"),
        ("ViT_b-32", "ViT-b/32"),
        ("deit-b/16", "DeiT-B/16"),
        ("vit-g/14", "ViT-g/14 or ViT-G/14"),
        ("resnet50", "R50x1"),
        ("ResNet-101", "R101x1"),
        ("resnet_50x2", "R50x2"),
        ("r50", "R50x1"),
    ],
)
def test_a_proposal_respects_case_and_kind(wrong, meant):
    with pytest.raises(ValueError, match=re.escape(f"did you mean {meant}? ")):
        canonical(wrong)


def test_a_proposal_for_a_resnet_is_never_another_kind():
    with pytest.raises(ValueError) as told:
        canonical("wide_resnet50_2")
    proposed = str(told.value).partition("did you mean ")[2].partition("?")[0].split(" or ")
    assert all(name.startswith("R50x") for name in proposed)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("R50x1", {"head": "mlp"}, "mlp head"),
        ("R50x1", {"positions": "2d"}, "no positions"),
        ("AxialResNet-50", {"dropout": 0.1}, "no dropout"),
        ("R50x0.01", {}, "must be whole"),
        ("R14x0.015625", {}, "one weight"),
        ("R14x0.25", {"image": 8}, "one number"),
        ("Axial-ViT-B/16", {"pool": "class"}, "no class token"),
        ("Axial-ViT-B/16", {"positions": "relative"}, "no relative positions"),
        ("DeiT-B/16-distilled", {"head": "mlp"}, "two linear heads"),
        ("DeiT-B/16-distilled", {"pool": "mean"}, "classifies from its class tokens"),
        ("ViT-B/16", {"positions": "relative", "positions_at": "shared"}, "needs positions"),
        ("ViT-B/16", {"positions": "none", "positions_at": "every-layer"}, "needs positions"),
        ("R50+ViT-B/16", {"image": 200}, "16x16 patches"),
        ("AxialResNet-50", {"image": 200}, "32x32 patches"),
    ],
)
def test_what_a_family_does_not_have_cannot_be_set(name, options, reason):
    with pytest.raises(ValueError, match=reason):
        model_spec(name, **options)


def test_a_name_that_states_its_resolution_is_built_at_it():
    assert model_spec("vit_base_patch16_384").image == (384, 384)
    assert model_spec("vit_base_patch16_384", image=224).image == (224, 224)
    assert model_spec("ViT-B/16").image == (224, 224)


@pytest.mark.parametrize("options", [{"image": "384"}, {"image": (224,)}, {"image": (224.5, 224)}, {"image": 224.0}])
def test_sizes_that_are_none_are_refused(options):
    with pytest.raises(ValueError, match="is not a size"):
        model_spec("ViT-B/16", **options)


@pytest.mark.parametrize(
    "options", [{"patch": 16.0}, {"layers": "12"}, {"heads": True}, {"dropout": "0"}, {"image": 224}]
)
def test_a_spec_holds_values_of_its_types_or_is_not_made(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ViTSpec(**({"patch": 16, "layers": 1, "width": 8, "mlp": 8, "heads": 2} | options))


def test_words_for_sizes_stay_apart_without_letter_case_and_lead_back():
    assert len({word.lower() for word in WORDS.values()}) == len(SIZES)
    for size, word in WORDS.items():
        assert canonical(f"vit-{word}-16") == f"ViT-{size}/16"
        assert canonical(f"axial-vit-{word}-16") == f"Axial-ViT-{size}/16"
        assert canonical(f"deit-{word}-16-distilled") == f"DeiT-{size}/16-distilled"
    assert canonical("r50-vit-base-32") == "R50+ViT-B/32"
    assert [canonical(f"axialresnet-{depth}") for depth in STAGES] == [f"AxialResNet-{depth}" for depth in STAGES]
    assert canonical("resnet-50x1") == "R50x1"


def test_every_listed_name_builds_a_spec_that_knows_its_name():
    for name in MODELS:
        same = {"ViT-b/32": "ViT-S/32", "DeiT-Ti/16": "ViT-Ti/16", "DeiT-S/16": "ViT-S/16", "DeiT-B/16": "ViT-B/16"}
        assert name_of(model_spec(name)) == same.get(name, name)


def test_every_width_of_a_resnet_has_a_name_that_leads_back():
    for root in range(2, 1025):
        name = name_of(ResNetSpec(STAGES["14"], root))
        assert model_spec(name) == ResNetSpec(STAGES["14"], root), name


@pytest.mark.parametrize("plain", ["deit_base_patch16_224", "DeiT-B/16"])
def test_a_plain_deit_is_deits_architecture(plain):
    """Touvron et al.: one linear head, no distillation token, and the ViT's sizes."""
    spec = model_spec(plain)
    assert (spec.head, spec.distilled, spec.pool, spec.tokens) == ("linear", False, "class", 197)
    assert spec.conventions == CONVENTIONS["deit"]
    assert model_spec("deit_base_distilled_patch16_224").tokens == 198


@pytest.mark.parametrize("classes", ["10", 1.5, True, None])
def test_a_number_of_classes_that_is_none_is_refused(classes):
    for make in (model_spec, count):
        with pytest.raises(ValueError, match=re.escape(f"classes {classes!r} is not a whole number")):
            make("ViT-B/16", classes=classes)
    assert model_spec("ViT-B/16", classes=np.int64(10)).classes == 10


def test_imagenet_has_a_thousand_distinct_classes_in_wordnet_order():
    ids, names = zip(*imagenet_classes(), strict=True)
    assert len(ids) == 1000
    assert list(ids) == sorted(ids)
    assert len(set(names)) == 1000
    assert names[0] == "tench"
    assert names[207] == "golden retriever"
    assert names[999] == "toilet tissue"
