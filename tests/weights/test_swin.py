"""Weights of Swins: Microsoft's, timm's and transformers' names, every round trip, and what a format cannot say."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from agreement import disagreement, randomised
from vitlab import build_model, load_model, save_model
from vitlab.models.build import build_from_spec, empty_model
from vitlab.spec import CONVENTIONS, SwinSpec
from vitlab.weights.convert import convert
from vitlab.weights.files.containers import Container, fitting
from vitlab.weights.foreign import FORMATS
from vitlab.weights.formats.sizes import Hints, heads_of

TIMM = {"conventions": CONVENTIONS["timm"]}
DEIT = {"conventions": CONVENTIONS["deit"]}  # as of a Swin by name
SMALL = {"stages": (2, 1), "root": 12, "heads": 3, "window": 4, "image": (64, 64), "classes": 5} | DEIT
SPECS = {
    "whole windows": SMALL,
    "no classes": SMALL | {"classes": 0},
    "three stages": SMALL | {"stages": (1, 2, 1), "root": 6},
    "not square": SMALL | {"image": (64, 128), "conventions": CONVENTIONS["hf"]},
    "in training": SMALL | {"stochastic_depth": 0.2},
    "padded": SMALL | {"image": (60, 60)},
    "padded by timm": SMALL | TIMM | {"image": (60, 60)},
    "no whole patches": SMALL | {"image": (63, 63)},
    "a small map": SMALL | {"stages": (2, 1, 1), "image": (32, 32)},
    "small on one side of timm": SMALL | TIMM | {"image": (24, 64)},
}
CAN = {
    "vitlab": set(SPECS),
    "microsoft": {"whole windows", "no classes", "three stages", "not square", "in training", "a small map"},
    "timm": {"whole windows", "no classes", "three stages", "not square", "in training"}
    | {"padded by timm", "a small map", "small on one side of timm"},
    "hf": {"whole windows", "no classes", "three stages", "not square", "in training", "padded", "no whole patches"},
    "google-npz": set(),
}
CANNOT = {
    "microsoft": "pads nothing|other windows",
    "timm": "other windows|whole patches",
    "hf": "no smaller windows|other windows",
    "google-npz": "no models of kind swin; write vitlab, microsoft, timm, hf",
}


def logits(model):
    with torch.inference_mode():
        return model.eval()(torch.randn(2, 3, *model.spec.image, generator=torch.Generator().manual_seed(3)))


def target(tmp_path, form):
    return tmp_path / {"microsoft": "m.safetensors", "google-npz": "m.npz"}.get(form, "m")


@pytest.mark.parametrize("form", CAN)
@pytest.mark.parametrize("kind", SPECS)
def test_every_round_trip_is_bit_exact_or_refused(kind, form, tmp_path):
    model = randomised(build_from_spec(SwinSpec(**SPECS[kind])))
    path = target(tmp_path, form)
    if kind not in CAN[form]:
        with pytest.raises(ValueError, match=CANNOT[form]):
            save_model(model, path, form)
        assert not list(tmp_path.iterdir())
        return
    save_model(model, path, form)
    loaded = load_model(path)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(logits(loaded), logits(model))
    known = loaded.spec if form == "vitlab" else replace(loaded.spec, conventions=model.spec.conventions)
    assert known == (replace(model.spec, stochastic_depth=0.0) if form == "microsoft" else model.spec)
    found, stated = (one.spec.conventions.preprocessing for one in (loaded, model))
    assert replace(found, fraction=stated.fraction) == stated
    sides = {
        int(model.spec.image[0] / how.fraction + 1e-6) for how in (found, stated)
    }  # files may state this side instead
    assert len(sides) == 1


@pytest.mark.parametrize("form", ["timm", "hf"])
def test_bare_files_round_trip_too(form, tmp_path):
    model = randomised(build_from_spec(SwinSpec(**(SMALL | {"conventions": CONVENTIONS[form]}))))
    save_model(model, tmp_path / "bare.safetensors", form)
    assert load_model(tmp_path / "bare.safetensors").spec == model.spec


def test_microsofts_names_are_one_bare_file(tmp_path):
    model = randomised(build_from_spec(SwinSpec(**SMALL)))
    with pytest.raises(ValueError, match=r"ends in \.safetensors"):
        save_model(model, tmp_path / "m", "microsoft")
    vit = build_model("ViT-Ti/16", image=32, classes=2)
    with pytest.raises(ValueError, match="no models of kind vit; write vitlab, google-npz, timm, hf"):
        save_model(vit, tmp_path / "m.safetensors", "microsoft")


def test_buffers_of_microsofts_files_are_left_out_and_their_pickles_convert(tmp_path):
    model = randomised(build_from_spec(SwinSpec(**SMALL)))
    save_model(model, tmp_path / "bare.safetensors", "microsoft")
    tensors = load_file(tmp_path / "bare.safetensors")
    assert "layers.0.downsample.reduction.weight" in tensors
    assert tensors["head.weight"].shape == (5, 24)
    assert tensors["layers.1.blocks.0.attn.relative_position_bias_table"].shape == (49, 6)
    tensors["layers.0.blocks.1.attn_mask"] = torch.zeros(16, 16, 16)
    for stage, layers in enumerate(model.spec.stages):
        for layer in range(layers):
            index = torch.zeros(16, 16, dtype=torch.long)
            tensors[f"layers.{stage}.blocks.{layer}.attn.relative_position_index"] = index
    torch.save({"model": tensors}, tmp_path / "swin.pth")
    converted = convert(tmp_path / "swin.pth", tmp_path / "ours")
    assert not converted.notes
    loaded = load_model(tmp_path / "ours")
    assert loaded.spec == replace(model.spec, image=(32, 32))  # of a last map of one window: the file states no other
    loaded.resize(64)
    assert torch.equal(logits(loaded), logits(model))


@pytest.mark.parametrize("form", ["microsoft", "timm", "hf"])
def test_a_file_without_a_header_is_loaded_at_any_size(form, tmp_path):
    model = randomised(build_from_spec(SwinSpec(**SMALL)))
    save_model(model, tmp_path / "bare.safetensors", form)
    save_file(load_file(tmp_path / "bare.safetensors"), tmp_path / "plain.safetensors")
    assert load_model(tmp_path / "plain.safetensors").spec.image == (32, 32)
    assert torch.equal(logits(load_model(tmp_path / "plain.safetensors", image=64)), logits(model))
    tuned = load_model(tmp_path / "plain.safetensors", image=(50, 71), classes=3)
    assert (tuned.spec.image, tuned.spec.classes) == ((50, 71), 3)


def test_a_size_that_no_last_map_implies_must_be_given(tmp_path):
    model = randomised(build_from_spec(SwinSpec(**(SMALL | TIMM | {"image": (16, 24)}))))
    save_model(model, tmp_path / "bare.safetensors", "timm")
    save_file(load_file(tmp_path / "bare.safetensors"), tmp_path / "plain.safetensors")
    with pytest.raises(ValueError, match=r"does not state the image size of its windows; give it, image=\(H, W\)"):
        load_model(tmp_path / "plain.safetensors")
    assert torch.equal(logits(load_model(tmp_path / "plain.safetensors", image=(16, 24))), logits(model))


def test_the_conventions_of_a_file_can_be_replaced(tmp_path):
    model = randomised(build_from_spec(SwinSpec(**(SMALL | TIMM))))
    save_model(model, tmp_path / "m", "timm")
    loaded = load_model(tmp_path / "m", conventions="deit", image=60)
    assert loaded.spec.order == "pad-roll"
    timms = load_model(tmp_path / "m", image=60)
    assert disagreement(logits(loaded), logits(timms)) > 1e-3


SWIN_V2 = {"layers.0.blocks.0.attn.logit_scale": torch.zeros(3, 1, 1)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers.0.blocks.0.attn.relative_position_bias_table": torch.zeros(50, 3)}, "50 biases per head"),
        ({"layers.0.blocks.1.attn.relative_position_bias_table": torch.zeros(25, 3)}, "1 mis-shaped"),
        ({"layers.1.blocks.0.attn.relative_position_bias_table": torch.zeros(49, 3)}, "1 mis-shaped"),
        ({"absolute_pos_embed": torch.zeros(1, 256, 12)}, "1 unexpected: 'absolute_pos_embed'"),
        (SWIN_V2, r"computes its position bias \(Swin V2\)"),
        ({"patch_embed.proj.weight": torch.zeros(12, 1, 4, 4)}, "takes 1 input channels"),
    ],
)
def test_files_of_other_models_are_refused(change, message, tmp_path):
    save_model(randomised(build_from_spec(SwinSpec(**SMALL))), tmp_path / "bare.safetensors", "microsoft")
    save_file(load_file(tmp_path / "bare.safetensors") | change, tmp_path / "changed.safetensors")
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path / "changed.safetensors")


# -- Other libraries -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def peers():
    return pytest.importorskip("peers", reason="the peer libraries are not installed", exc_type=ImportError)


RELEASED = {  # timm's name: ours, window, side
    "swin_tiny_patch4_window7_224": ("Swin-T", 7, 224),
    "swin_small_patch4_window7_224": ("Swin-S", 7, 224),
    "swin_base_patch4_window7_224": ("Swin-B", 7, 224),
    "swin_base_patch4_window12_384": ("Swin-B", 12, 384),
    "swin_large_patch4_window7_224": ("Swin-L", 7, 224),
    "swin_large_patch4_window12_384": ("Swin-L", 12, 384),
}


def recognised(shapes, configs=None):
    """The format and spec of a file with these shapes; all of them fit. Nothing is read."""
    container = Container(Path("model.safetensors"), shapes, lambda name: pytest.fail("read"), configs or {})
    name = next(name for name, form in FORMATS.items() if form.matches(container))
    container = FORMATS[name].normalised(container)
    spec = FORMATS[name].describe(container, Hints())
    own = {key: tensor.shape for key, tensor in empty_model(spec).state_dict().items()}
    expected = {}
    for entry in FORMATS[name].table(spec, own, container):
        expected |= entry.shapes(own[entry.ours], heads_of(spec))
    unmapped = set(own) - {entry.ours for entry in FORMATS[name].table(spec, own, container)}
    assert fitting(container, expected, unmapped, allow_partial=False) == set(container.shapes)
    return name, spec


@pytest.mark.slow
@pytest.mark.parametrize("name", RELEASED)
def test_released_models_are_recognised_from_their_shapes(name, peers):
    ours, window, side = RELEASED[name]
    expected = build_meta(ours, window, side)
    with torch.device("meta"):
        theirs = peers.timm.create_model(name)
    shapes = {key: tuple(tensor.shape) for key, tensor in theirs.state_dict().items()}
    form, spec = recognised(shapes)
    assert (form, without_conventions(spec)) == ("timm-swin", expected)
    # Microsoft's files, which timm's releases were made from: other names, and buffers.
    older = {}
    for key, shape in shapes.items():
        stage = key.partition("downsample")[0].removeprefix("layers.").removesuffix(".")
        key = key.replace(f"layers.{stage}.downsample", f"layers.{int(stage) - 1}.downsample") if "down" in key else key
        older[key.replace("head.fc.", "head.")] = shape
    buffers = {
        f"{key[:-10]}relative_position_index": (window**2, window**2) for key in older if key.endswith("bias_table")
    }
    masks = {"layers.0.blocks.1.attn_mask": ((side // 4 // window) ** 2, window**2, window**2)}
    form, spec = recognised(older | buffers | masks)
    assert (form, without_conventions(spec)) == ("microsoft", expected)
    stages = expected.stages
    config = {
        "depths": list(stages),
        "num_heads": [expected.heads * 2**s for s in range(4)],
        "embed_dim": expected.root,
    }
    with torch.device("meta"):
        model = peers.SwinForImageClassification(
            peers.SwinConfig(image_size=side, window_size=window, num_labels=1000, **config)
        )
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    form, spec = recognised(shapes, {"config.json": {"model_type": "swin", "image_size": side}})
    assert (form, without_conventions(spec)) == ("hf-swin", expected)


def build_meta(name, window, side):
    with torch.device("meta"):
        return without_conventions(build_model(name, window=window, image=side).spec)


def without_conventions(spec):
    return replace(spec, conventions=CONVENTIONS["paper"])


@pytest.mark.slow
class TestPeersReadOurFiles:
    @pytest.fixture
    def model(self):
        return randomised(build_from_spec(SwinSpec(**(SMALL | {"stages": (2, 2, 2), "image": (128, 128)}))))

    @pytest.fixture
    def images(self):
        return torch.randn(2, 3, 128, 128, generator=torch.Generator().manual_seed(0))

    def test_timm_opens_our_folder(self, peers, model, images, tmp_path):
        save_model(model, tmp_path / "m", "timm")
        theirs = peers.timm.create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True).eval()
        with torch.inference_mode():
            assert disagreement(theirs(images), model(images)) <= 5e-6

    def test_timms_own_filter_reads_microsofts_names(self, peers, model, images, tmp_path):
        from timm.models.swin_transformer import checkpoint_filter_fn

        save_model(model, tmp_path / "m.safetensors", "microsoft")
        theirs = peers.TimmSwin(
            img_size=128, window_size=4, embed_dim=12, depths=(2, 2, 2), num_heads=(3, 6, 12), num_classes=5
        )
        theirs.load_state_dict(checkpoint_filter_fn(load_file(tmp_path / "m.safetensors"), theirs), strict=True)
        with torch.inference_mode():
            assert disagreement(theirs.eval()(images), model(images)) <= 5e-6

    def test_transformers_opens_our_folder(self, peers, model, images, tmp_path):
        model.class_names = tuple("abcde")
        save_model(model, tmp_path / "m", "hf")
        theirs = peers.SwinForImageClassification.from_pretrained(tmp_path / "m").eval()
        with torch.inference_mode():
            assert disagreement(theirs(images).logits, model(images)) <= 5e-6
        assert theirs.config.id2label[2] == "c"

    def test_what_transformers_saves_loads_here(self, peers, images, tmp_path):
        config = peers.SwinConfig(image_size=128, embed_dim=12, depths=[2, 2], num_heads=[3, 6], window_size=4)
        theirs = randomised(peers.SwinForImageClassification(config))
        theirs.save_pretrained(tmp_path / "m")
        ours = load_model(tmp_path / "m")
        assert ours.spec.stochastic_depth == 0.1
        with torch.inference_mode():
            assert disagreement(ours(images), theirs(images).logits) <= 5e-6

    @pytest.mark.parametrize(("key", "value"), [("layer_norm_eps", 1e-6), ("hidden_act", "relu"), ("mlp_ratio", 2)])
    def test_configs_of_other_models_are_refused(self, key, value, model, tmp_path):
        import json

        save_model(model, tmp_path / "m", "hf")
        file = tmp_path / "m" / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
        with pytest.raises(ValueError, match=f"config.json has {key}"):
            load_model(tmp_path / "m")
