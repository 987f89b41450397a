"""Weights of BiT, hybrids and distilled DeiT: every spelling, every round trip, and what a format cannot say."""

import json
import re
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from agreement import disagreement, randomised
from vitlab import build_model, load_model, save_model
from vitlab.models.build import build_from_spec
from vitlab.spec import CONVENTIONS, AxialResNetSpec, Backbone, ResNetSpec, ViTSpec
from vitlab.weights.convert import convert
from vitlab.weights.formats.bit import BIG_VISION

VIT = {"patch": 4, "layers": 2, "width": 24, "mlp": 40, "heads": 3, "image": (16, 16), "classes": 5, "head": "linear"}
BIT = {"stages": (2, 1, 1, 1), "root": 32, "image": (33, 40), "classes": 5}
TIMM = {"conventions": CONVENTIONS["timm"]}
SPECS = {
    "BiT": ResNetSpec(**BIT),
    "BiT of big_vision": ResNetSpec(**BIT, conventions=BIG_VISION),
    "BiT of timm": ResNetSpec((3, 4, 6, 3), 64, (33, 40), 5, **TIMM),
    "a small BiT": ResNetSpec((1, 2), 6, (20, 20), 5),
    "BiT without classes": ResNetSpec(**(BIT | {"classes": 0})),
    "BiT of two stages": ResNetSpec((1, 2), 32, (20, 20), 5),
    "hybrid": ViTSpec(**(VIT | {"patch": 1, "backbone": Backbone((2, 1), 32), "image": (32, 32)})),
    "a small hybrid": ViTSpec(**(VIT | {"patch": 1, "backbone": Backbone((2, 1), 8), "image": (32, 32)})),
    "hybrid of timm": ViTSpec(**(VIT | TIMM | {"patch": 1, "backbone": Backbone((2, 2, 2, 2)), "image": (64, 64)})),
    "hybrid of a root alone": ViTSpec(**(VIT | {"patch": 2, "backbone": Backbone((), 32)})),
    "Axial-ViT": ViTSpec(**(VIT | {"attention": "axial", "pool": "mean", "positions": "2d"})),
    "windows": ViTSpec(**(VIT | {"attention": "window:3"})),
    "neighbourhoods": ViTSpec(**(VIT | {"attention": "neighbourhood:3"})),
    "strided": ViTSpec(**(VIT | {"attention": "strided"})),
    "fixed": ViTSpec(**(VIT | {"attention": "fixed:3"})),
    "BigBird": ViTSpec(**(VIT | {"attention": "bigbird:block=2,random=1,seed=5"})),
    "AxialResNet": AxialResNetSpec((1, 1), 8, 2, (16, 16), 5),
    "distilled": ViTSpec(**(VIT | {"distilled": True, "conventions": CONVENTIONS["deit"]})),
    "relative": ViTSpec(**(VIT | {"positions": "relative"})),
    "2d in every layer": ViTSpec(**(VIT | {"positions": "2d", "positions_at": "every-layer"})),
}
CAN = {
    "google-npz": {
        "BiT",
        "BiT of big_vision",
        "BiT without classes",
        "hybrid",
        "hybrid of a root alone",
    },
    "timm": {"BiT of timm", "hybrid of timm", "distilled"},
    "hf": set(),
    "vitlab": set(SPECS),
}


def logits(model):
    with torch.inference_mode():
        return model(torch.randn(2, 3, *model.spec.image, generator=torch.Generator().manual_seed(3)))


LARGE = {"BiT of timm", "hybrid of timm"}


@pytest.mark.parametrize("form", CAN)
@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] if k in LARGE else []) for k in SPECS])
def test_every_family_comes_back_bit_for_bit_or_is_refused(kind, form, tmp_path):
    model = randomised(build_from_spec(SPECS[kind]))
    path = tmp_path / ("m.npz" if form == "google-npz" else "m")
    if kind not in CAN[form]:
        with pytest.raises(ValueError, match=f"{form} cannot hold this model"):
            save_model(model, path, form)
        assert not list(tmp_path.iterdir())
        return
    save_model(model, path, form)
    loaded = load_model(path, image=model.spec.image if form == "google-npz" else None)
    assert loaded.spec == model.spec
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(logits(loaded), logits(model))


def test_a_bare_timm_file_holds_a_bit_of_any_width(tmp_path):
    model = randomised(build_from_spec(ResNetSpec(**BIT, **TIMM)))
    save_model(model, tmp_path / "bit.safetensors", "timm")
    loaded = load_model(tmp_path / "bit.safetensors")
    assert loaded.spec.image == (33, 40)
    assert torch.equal(logits(loaded), logits(model))


class TestBiT:
    @pytest.fixture
    def model(self):
        return randomised(build_from_spec(SPECS["BiT"]))

    @pytest.fixture
    def arrays(self, model, tmp_path):
        save_model(model, tmp_path / "bit.npz", "google-npz")
        with np.load(tmp_path / "bit.npz") as file:
            return dict(file)

    def test_released_names_and_shapes(self, arrays):
        assert arrays["resnet/root_block/standardized_conv2d/kernel"].shape == (7, 7, 3, 32)
        assert arrays["resnet/block1/unit02/b/standardized_conv2d/kernel"].shape == (3, 3, 32, 32)
        assert arrays["resnet/block4/unit01/a/proj/standardized_conv2d/kernel"].shape == (1, 1, 512, 1024)
        assert arrays["resnet/block1/unit01/a/group_norm/gamma"].shape == (32,)
        assert arrays["resnet/head/conv2d/kernel"].shape == (1, 1, 1024, 5)
        assert arrays["resnet/group_norm/beta"].shape == (1024,)

    def test_numbers_behind_the_convolutions_are_no_obstacle(self, model, arrays, tmp_path):
        numbered = {}
        for number, (name, array) in enumerate(arrays.items()):
            numbered[re.sub("standardized_conv2d", f"standardized_conv2d_{number}", name)] = array
        assert set(numbered) != set(arrays)
        np.savez(tmp_path / "numbered.npz", **numbered)
        assert torch.equal(logits(load_model(tmp_path / "numbered.npz", image=(33, 40))), logits(model))

    def test_two_arrays_for_one_tensor_are_refused(self, arrays, tmp_path):
        name = "resnet/root_block/standardized_conv2d/kernel"
        np.savez(tmp_path / "two.npz", **arrays, **{name.replace("2d/", "2d_1/"): arrays[name]})
        with pytest.raises(ValueError, match="has both"):
            load_model(tmp_path / "two.npz")

    def test_big_vision_names_and_norms_with_empty_sides(self, tmp_path):
        model = randomised(build_from_spec(SPECS["BiT of big_vision"]))
        save_model(model, tmp_path / "bv.npz", "google-npz")
        with np.load(tmp_path / "bv.npz") as file:
            arrays = dict(file)
        assert arrays["block1/unit02/gn1/scale"].shape == (1, 1, 1, 128)
        assert arrays["head/kernel"].shape == (1024, 5)
        np.savez(tmp_path / "prefixed.npz", **{f"params/{name}": array for name, array in arrays.items()})
        loaded = load_model(tmp_path / "prefixed.npz", image=(33, 40))
        assert loaded.spec.conventions.bit.pool_padding == "infinite"
        assert torch.equal(logits(loaded), logits(model))

    def test_conventions_can_be_set_and_move_the_logits(self, model, arrays, tmp_path):
        loaded = load_model(tmp_path / "bit.npz", conventions="timm", image=(33, 40))
        assert loaded.spec.conventions == CONVENTIONS["timm"]
        assert 0 < disagreement(logits(loaded), logits(model)) < 1e-3

    def test_the_image_size_that_npz_cannot_say_is_told(self, model, tmp_path):
        notes = save_model(model, tmp_path / "bit.npz", "google-npz")
        assert any("33x40" in note and "image=(33, 40)" in note for note in notes)
        wide = build_from_spec(ViTSpec(**(VIT | {"image": (16, 32)})))
        assert any("16x32" in note for note in save_model(wide, tmp_path / "wide.npz", "google-npz"))
        square = build_from_spec(ViTSpec(**VIT))
        assert not any("16x16" in note for note in save_model(square, tmp_path / "square.npz", "google-npz"))

    @pytest.mark.parametrize("form", ["google-npz", "timm"])
    @pytest.mark.parametrize("kind", ["a small BiT", "BiT of two stages", "a small hybrid"])
    def test_what_others_cannot_run_is_refused_with_the_format_that_can(self, kind, form, tmp_path):
        """GroupNorm of 32 groups is in everybody's ResNet, and four stages in everybody's BiT."""
        spec = replace(SPECS[kind], conventions=CONVENTIONS["paper" if form == "google-npz" else "timm"])
        path = tmp_path / ("m.npz" if form == "google-npz" else "m.safetensors")
        with pytest.raises(ValueError, match=r"(multiple of 32|has four).*; write vitlab"):
            save_model(build_from_spec(spec), path, form)

    def test_any_image_size_and_another_number_of_classes(self, arrays, tmp_path):
        assert load_model(tmp_path / "bit.npz").spec.image == (224, 224)
        loaded = load_model(tmp_path / "bit.npz", image=64, classes=9)
        assert torch.equal(logits(loaded), torch.zeros(2, 9))


def test_a_hybrids_norms_with_empty_sides_as_old_files_have_them(tmp_path):
    model = randomised(build_from_spec(SPECS["hybrid"]))
    save_model(model, tmp_path / "new.npz", "google-npz")
    with np.load(tmp_path / "new.npz") as file:
        arrays = {name: array[None, None, None] if "/gn" in name or name.startswith("gn") else array
                  for name, array in file.items()}  # fmt: skip
    assert arrays["gn_root/scale"].shape == (1, 1, 1, 32)
    assert arrays["block1/unit2/gn3/bias"].shape == (1, 1, 1, 128)
    np.savez(tmp_path / "old.npz", **arrays)
    assert torch.equal(logits(load_model(tmp_path / "old.npz")), logits(model))


def test_a_distilled_bare_file_is_known_by_its_token_and_has_deits_conventions(tmp_path):
    model = randomised(build_from_spec(SPECS["distilled"]))
    save_model(model, tmp_path / "d.safetensors", "timm")
    assert {"dist_token", "head_dist.weight"} <= set(load_file(tmp_path / "d.safetensors"))
    loaded = load_model(tmp_path / "d.safetensors")
    assert loaded.spec == model.spec


def test_a_hybrid_can_be_fine_tuned_larger(tmp_path):
    model = randomised(build_from_spec(SPECS["hybrid"]))
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m", image=(48, 32), classes=3)
    assert loaded.spec.grid == (6, 4)
    assert torch.equal(logits(loaded), torch.zeros(2, 3))


def test_a_card_of_an_unknown_family_is_refused(tmp_path):
    save_model(build_from_spec(SPECS["a small BiT"]), tmp_path / "m")
    card = json.loads((tmp_path / "m" / "vitlab.json").read_text())
    card["model"]["kind"] = "efficientnet"
    from vitlab.files.strict_json import _decode
    from vitlab.spec import ModelSpec

    with pytest.raises(ValueError, match="of kind 'efficientnet'; allowed are 'vit', 'bit', 'axial-resnet'"):
        _decode(ModelSpec, card["model"], "model")


def test_the_card_of_a_plain_vit_needs_none_of_the_newer_fields(tmp_path):
    from vitlab.files.strict_json import _decode
    from vitlab.spec import ModelSpec

    old = {"patch": 4, "layers": 2, "width": 24, "mlp": 40, "heads": 3, "image": [16, 16], "classes": 5}
    assert _decode(ModelSpec, old, "model") == ViTSpec(4, 2, 24, 40, 3, (16, 16), 5)


@pytest.mark.slow
class TestPeersReadOurFiles:
    @pytest.fixture
    def peers(self):
        return pytest.importorskip("peers", reason="the peer libraries are not installed", exc_type=ImportError)

    @pytest.mark.parametrize(
        ("name", "image"),
        [
            ("R50x1", 64),
            ("R26+ViT-S/32", 64),
            ("R+ViT-Ti/16", 64),
            ("DeiT-Ti/16-distilled", 64),
        ],
    )
    def test_timm_opens_our_folder(self, peers, tmp_path, name, image):
        model = randomised(build_model(name, image=image, classes=7, head="linear", conventions="timm"))
        save_model(model, tmp_path / "m", "timm")
        theirs = peers.timm.create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True).eval()
        images = torch.randn(2, 3, image, image, generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            assert disagreement(theirs(images), model(images)) <= 5e-6

    def test_timms_npz_loader_reads_our_bit(self, peers, tmp_path):
        model = randomised(build_model("R50x1", image=64, classes=7))
        save_model(model, tmp_path / "ours.npz", "google-npz")
        theirs = peers.timm.create_model("resnetv2_50x1_bit", num_classes=7)
        theirs.load_pretrained(str(tmp_path / "ours.npz"))
        ours = load_model(tmp_path / "ours.npz", conventions="timm", image=64)
        images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            assert disagreement(theirs.eval()(images), ours(images)) <= 5e-6

    def test_timms_npz_loader_reads_our_hybrid(self, peers, tmp_path):
        model = randomised(build_model("R26+ViT-S/32", image=64, classes=7, head="linear"))
        save_model(model, tmp_path / "ours.npz", "google-npz")
        theirs = peers.timm.create_model("vit_small_r26_s32_224", img_size=64, num_classes=7)
        theirs.load_pretrained(str(tmp_path / "ours.npz"))
        ours = load_model(tmp_path / "ours.npz", conventions="timm")
        images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            assert disagreement(theirs.eval()(images), ours(images)) <= 5e-6


class TestRequests:
    """What is asked of a file and cannot be had is told, not ignored."""

    def test_heads_that_a_file_does_not_have(self, tmp_path):
        save_model(build_from_spec(SPECS["BiT"]), tmp_path / "bit.npz", "google-npz")
        save_model(build_from_spec(ViTSpec(**VIT)), tmp_path / "vit")
        for path in ("bit.npz", "vit"):
            with pytest.raises(ValueError, match=r"attention heads, not 4; leave heads out"):
                load_model(tmp_path / path, heads=4)
        assert load_model(tmp_path / "vit", heads=3).spec.heads == 3

    def test_wrong_requests_are_refused_before_a_tensor_is_read(self, tmp_path):
        path = tmp_path / "bit.npz"
        save_model(build_from_spec(SPECS["BiT"]), path, "google-npz")
        with zipfile.ZipFile(path) as archive:
            member = max(archive.infolist(), key=lambda member: member.file_size)
        data = bytearray(path.read_bytes())
        data[member.header_offset + member.file_size // 2] ^= 255
        path.write_bytes(data)
        with pytest.raises(ValueError, match="is damaged"):
            load_model(path)
        with pytest.raises(ValueError, match="leave heads out"):
            load_model(path, heads=4)
        with pytest.raises(ValueError, match="of format bit-npz, which states its positions; leave positions out"):
            load_model(path, positions="none")

    def test_own_class_names_are_kept_whatever_their_length(self, tmp_path):
        model = build_from_spec(ViTSpec(**VIT))
        model.class_names = tuple(f"{number:01001d}" for number in range(model.spec.classes))
        save_model(model, tmp_path / "vit")
        assert load_model(tmp_path / "vit").class_names == model.class_names

    def test_a_size_that_is_none_is_not_the_files_fault(self, tmp_path):
        save_model(build_from_spec(SPECS["BiT"]), tmp_path / "bit.npz", "google-npz")
        with pytest.raises(ValueError, match=r"^image '64' is not a size"):
            load_model(tmp_path / "bit.npz", image="64")

    def test_a_name_of_the_catalogue_is_to_be_fetched_first(self):
        with pytest.raises(ValueError, match=r"fetch the 23 MB: vitlab download timm/deit_tiny_patch16_224\.fb_in1k"):
            load_model("timm/deit_tiny_patch16_224.fb_in1k")


class TestStrangers:
    @pytest.fixture
    def arrays(self, tmp_path):
        save_model(randomised(build_from_spec(ResNetSpec((1, 2, 1, 1), 32, (20, 20), 5))), tmp_path / "bit.npz",
                   "google-npz")  # fmt: skip
        with np.load(tmp_path / "bit.npz") as file:
            return dict(file)

    def refused(self, arrays, tmp_path, match):
        np.savez(tmp_path / "odd.npz", **arrays)
        with pytest.raises(ValueError, match=match) as error:
            load_model(tmp_path / "odd.npz")
        assert "\n" not in str(error.value)

    def test_a_unit_that_is_missing_in_the_middle_is_named(self, arrays, tmp_path):
        renamed = {name.replace("block2/unit02", "block2/unit03"): array for name, array in arrays.items()}
        self.refused(renamed, tmp_path, r"missing: 'block2/unit02/a/.*unexpected: 'block2/unit03/a")

    def test_a_stage_that_is_missing_or_far_away_is_refused(self, arrays, tmp_path):
        for stage in ("block4", "block9"):
            renamed = {name.replace("block4", stage): array for name, array in arrays.items() if "block3" not in name}
            self.refused(renamed, tmp_path, "stages")

    def test_no_stage_at_all_is_refused(self, arrays, tmp_path):
        self.refused({n: a for n, a in arrays.items() if "/block" not in n}, tmp_path, "0 stages are outside 1..5")

    def test_a_root_of_another_rank_is_refused(self, arrays, tmp_path):
        arrays["resnet/root_block/standardized_conv2d/kernel"] = np.zeros((7, 6), np.float32)
        self.refused(arrays, tmp_path, "expected 4 non-empty sides")

    def test_a_hybrid_whose_embedding_does_not_fit_its_resnet_is_refused(self, tmp_path):
        save_model(randomised(build_from_spec(SPECS["hybrid"])), tmp_path / "h.npz", "google-npz")
        with np.load(tmp_path / "h.npz") as file:
            arrays = dict(file)
        arrays["embedding/kernel"] = arrays["embedding/kernel"][:, :, :-1]
        self.refused(arrays, tmp_path, "embeds patches of 255 channels instead of 256")

    def test_a_post_activation_resnet_of_timm_is_refused(self, tmp_path):
        save_model(randomised(build_from_spec(ResNetSpec(**BIT, **TIMM))), tmp_path / "b.safetensors", "timm")
        tensors = load_file(tmp_path / "b.safetensors")
        save_file(tensors | {"stem.norm.weight": torch.ones(32)}, tmp_path / "v1.safetensors")
        with pytest.raises(ValueError, match="not a pre-activation ResNet"):
            load_model(tmp_path / "v1.safetensors")


@pytest.mark.slow
def test_a_distilled_pickle_is_converted_with_deits_conventions(tmp_path):
    model = randomised(build_from_spec(SPECS["distilled"]))
    save_model(model, tmp_path / "d.safetensors", "timm")
    torch.save({"model": load_file(tmp_path / "d.safetensors")}, tmp_path / "deit.pth")
    converted, notes = convert(tmp_path / "deit.pth", tmp_path / "out", heads=3)
    assert converted.spec == model.spec
    assert any("DeiT" in note for note in notes)
    assert torch.equal(logits(load_model(tmp_path / "out")), logits(model))
