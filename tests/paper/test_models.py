"""Names as the paper spells them, and as others do."""

import pytest

from vitlab.paper.imagenet import imagenet_classes
from vitlab.paper.models import MODELS, SIZES, canonical, name_of, slug, vit_spec
from vitlab.spec import ViTSpec


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
        ("deit_tiny_patch16_224", "ViT-Ti/16"),
    ],
)
def test_other_spellings_mean_the_same_model(other, name):
    assert canonical(other) == name


@pytest.mark.parametrize("wrong", ["ViT-X/16", "vit", "", "ViT-B/", "ViT-B/16x", "resnet50"])
def test_unknown_names_say_what_exists(wrong):
    with pytest.raises(ValueError, match="Ti, S, b, B, L, H, g, G"):
        canonical(wrong)


def test_a_typo_gets_a_proposal():
    with pytest.raises(ValueError, match="did you mean ViT-L/16"):
        canonical("VIT-L/16")


def test_a_name_that_states_its_resolution_is_built_at_it():
    assert vit_spec("vit_base_patch16_384").image == (384, 384)
    assert vit_spec("vit_base_patch16_384", image=224).image == (224, 224)
    assert vit_spec("ViT-B/16").image == (224, 224)


@pytest.mark.parametrize("options", [{"image": "384"}, {"image": (224,)}, {"image": (224.5, 224)}, {"image": 224.0}])
def test_sizes_that_are_none_are_refused(options):
    with pytest.raises(ValueError, match="is no size"):
        vit_spec("ViT-B/16", **options)


@pytest.mark.parametrize(
    "options", [{"patch": 16.0}, {"layers": "12"}, {"heads": True}, {"dropout": "0"}, {"image": 224}]
)
def test_a_spec_holds_values_of_its_types_or_is_not_made(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ViTSpec(**({"patch": 16, "layers": 1, "width": 8, "mlp": 8, "heads": 2} | options))


def test_slugs_stay_apart_without_letter_case_and_lead_back():
    names = [f"ViT-{size}/16" for size in SIZES]
    slugs = [slug(name).lower() for name in names]
    assert len(set(slugs)) == len(names)
    assert [canonical(s) for s in slugs] == names


def test_every_listed_name_builds_a_spec_that_knows_its_name():
    for name in MODELS:
        assert name_of(vit_spec(name)) == ("ViT-S/32" if name == "ViT-b/32" else name)


def test_imagenet_has_a_thousand_distinct_classes_in_wordnet_order():
    ids, names = zip(*imagenet_classes(), strict=True)
    assert len(ids) == 1000
    assert list(ids) == sorted(ids)
    assert len(set(names)) == 1000
    assert names[0] == "tench"
    assert names[207] == "golden retriever"
    assert names[999] == "toilet tissue"
