"""What is saved comes back bit for bit, and other libraries read it as we meant it."""

import copy
import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from agreement import disagreement, randomised
from vitlab import build_model, load_model, save_model
from vitlab.errors import WeightsWarning
from vitlab.models.build import build_from_spec
from vitlab.spec import CONVENTIONS, ViTSpec
from vitlab.spec.pixels import Preprocessing

TINY = {"patch": 4, "layers": 2, "width": 24, "mlp": 40, "heads": 3, "image": (16, 16), "classes": 5}
FORMATS = ["vitlab", "google-npz", "timm", "hf"]
SPECS = {
    "linear head": {"head": "linear"},
    "mlp head": {"head": "mlp"},
    "mean pooling": {"head": "linear", "pool": "mean"},
    "no classes": {"head": "linear", "classes": 0},
    "not square": {"head": "linear", "image": (16, 24)},
    "exact GELU": {"head": "linear", "conventions": CONVENTIONS["timm"]},
    "Hugging Face": {"head": "linear", "conventions": CONVENTIONS["hf"]},
    "merging": {"head": "linear", "merge": 3},
}
CANNOT = {  # what a format cannot say is an error on saving
    ("mlp head", "timm"): "pre-logits",
    ("mlp head", "hf"): "pre-logits",
    ("mean pooling", "hf"): "class token",
    ("exact GELU", "google-npz"): "tanh GELU",
    ("Hugging Face", "google-npz"): "tanh GELU",
    ("Hugging Face", "timm"): "epsilon",
    ("merging", "google-npz"): r"it merges 3 tokens per layer; turn that off with model.set_merge\(0\)",
    ("merging", "timm"): "it merges 3 tokens per layer",
    ("merging", "hf"): "it merges 3 tokens per layer",
}


def saved(model, tmp_path, form):
    path = tmp_path / ("model.npz" if form == "google-npz" else "model")
    save_model(model, path, form)
    return path


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", SPECS)
def test_every_round_trip_is_bit_exact(kind, form, tmp_path):
    model = randomised(build_from_spec(ViTSpec(**(TINY | SPECS[kind]))))
    if (kind, form) in CANNOT:
        with pytest.raises(ValueError, match=CANNOT[kind, form]):
            saved(model, tmp_path, form)
        assert not list(tmp_path.iterdir())
        return
    image = model.spec.image if form == "google-npz" else None
    loaded = load_model(saved(model, tmp_path, form), image=image)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    functional = ("patch", "layers", "width", "mlp", "heads", "image", "classes", "head", "pool")
    assert all(getattr(loaded.spec, f) == getattr(model.spec, f) for f in functional)
    assert loaded.spec.conventions.gelu == model.spec.conventions.gelu
    assert loaded.spec.conventions.norm_eps == model.spec.conventions.norm_eps


@pytest.mark.parametrize("form", ["timm", "hf"])
def test_bare_files_round_trip_too(form, tmp_path):
    conventions = CONVENTIONS["timm" if form == "timm" else "hf"]
    model = randomised(build_from_spec(ViTSpec(**(TINY | {"head": "linear", "conventions": conventions}))))
    notes = save_model(model, tmp_path / "bare.safetensors", form)
    assert any("preprocessing" in note for note in notes)
    assert load_model(tmp_path / "bare.safetensors").spec == model.spec


def test_our_folder_carries_everything(tmp_path):
    model = randomised(build_from_spec(ViTSpec(**(TINY | {"dropout": 0.1, "stochastic_depth": 0.2}))))
    model.class_names = ("ant", "bee", "cat", "dog", "naïve ‮ name")
    model.provenance = {"trained_by": "a test"}
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert (loaded.spec, loaded.class_names, loaded.provenance) == (model.spec, model.class_names, model.provenance)
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["manifest.json", "vitlab.json", "weights.safetensors"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_our_folder_keeps_the_precision(dtype, tmp_path, tiny):
    save_model(tiny.to(dtype), tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert all(torch.equal(loaded.state_dict()[n], t) and t.dtype == dtype for n, t in tiny.state_dict().items())


def test_the_same_model_makes_the_same_bytes(tiny, tmp_path):
    for form, name in (("vitlab", "weights.safetensors"), ("google-npz", None)):
        digests = set()
        for n in (1, 2):
            path = tmp_path / f"{n}{'' if name else '.npz'}"
            save_model(tiny, path, form)
            digests.add(hashlib.sha256((path / name if name else path).read_bytes()).hexdigest())
        assert len(digests) == 1


def test_saving_never_writes_over_what_is_there(tiny, tmp_path):
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(FileExistsError, match="exists already"):
        save_model(tiny, tmp_path / "precious")
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("form", ["timm", "hf"])
def test_bare_files_refuse_what_they_cannot_say(form, tmp_path):
    model = randomised(build_from_spec(ViTSpec(**(TINY | {"head": "linear"}))))  # tanh GELU
    with pytest.raises(ValueError, match="bare file is run with exact GELU"):
        save_model(model, tmp_path / "bare.safetensors", form)


@pytest.mark.parametrize("form", ["vitlab", "timm", "hf"])
@pytest.mark.parametrize("name", ["timm", "hf", "deit", "torchvision", "few-shot"])
def test_preprocessing_and_dropout_come_back(form, name, tmp_path):
    few_shot = Preprocessing("square", 224 / 256, "bilinear", antialias=True)
    preprocessing = few_shot if name == "few-shot" else CONVENTIONS[name].preprocessing
    conventions = replace(CONVENTIONS["timm"], preprocessing=preprocessing)
    options = {"head": "linear", "conventions": conventions, "dropout": 0.1, "image": (224, 224), "patch": 16}
    model = randomised(build_from_spec(ViTSpec(**(TINY | options))))
    loaded = load_model(saved(model, tmp_path, form))
    found = loaded.spec.conventions.preprocessing
    assert replace(found, fraction=preprocessing.fraction) == preprocessing
    sides = [int(224 / how.fraction + 1e-6) for how in (found, preprocessing)]  # files may state this side instead
    assert sides[0] == sides[1]
    assert loaded.spec.dropout == 0.1


def test_timm_keeps_stochastic_depth_and_hf_says_that_it_does_not(tmp_path):
    model = randomised(build_from_spec(ViTSpec(**(TINY | {"head": "linear", "stochastic_depth": 0.2}))))
    save_model(model, tmp_path / "t", "timm")
    assert load_model(tmp_path / "t").spec.stochastic_depth == 0.2
    assert any("stochastic depth" in note for note in save_model(model, tmp_path / "h", "hf"))


def test_a_crop_that_is_not_square_is_refused_for_hugging_face(tmp_path):
    spec = ViTSpec(**(TINY | {"head": "linear", "image": (24, 16), "conventions": CONVENTIONS["timm"]}))
    with pytest.raises(ValueError, match="crop only squares"):
        save_model(build_from_spec(spec), tmp_path / "m", "hf")


@pytest.mark.parametrize(("form", "name"), [("vitlab", "m.safetensors"), ("google-npz", "m"), ("timm", "m.npz")])
def test_a_name_that_promises_another_format_is_refused(form, name, tiny, tmp_path):
    with pytest.raises(ValueError, match=r"\.npz|folder"):
        save_model(tiny, tmp_path / name, form)


def test_saved_files_have_ordinary_permissions(tiny, tmp_path):
    save_model(tiny, tmp_path / "m")
    (tmp_path / "plain").touch()
    assert {p.stat().st_mode for p in (tmp_path / "m").iterdir()} == {(tmp_path / "plain").stat().st_mode}


def test_bfloat16_is_written_to_npz_as_float32(tiny, tmp_path):
    save_model(tiny.bfloat16(), tmp_path / "m.npz", "google-npz")
    assert torch.equal(load_model(tmp_path / "m.npz").patches.weight, tiny.patches.weight.float())


@pytest.mark.parametrize("name", ["vitlab", "hf"])
def test_the_task_comes_along_where_the_format_has_a_place_for_it(tiny, tmp_path, name):
    tiny.reset_head(5)
    assert save_model(tiny, tmp_path / "single", name) == save_model(multi_label(tiny), tmp_path / "multi", name)
    assert load_model(tmp_path / "single").task == "single-label"
    loaded = load_model(tmp_path / "multi")
    assert loaded.task == "multi-label"
    loaded.reset_head(3)
    assert loaded.task == "single-label", "a new head has learnt nothing yet"


@pytest.mark.parametrize(("name", "file"), [("google-npz", "m.npz"), ("timm", "m"), ("hf", "m.safetensors")])
def test_a_format_without_a_place_for_the_task_says_so(tiny, tmp_path, name, file):
    tiny.reset_head(5)
    if name == "hf":
        tiny.spec = replace(tiny.spec, conventions=CONVENTIONS["hf"])
    notes = save_model(multi_label(tiny), tmp_path / file, name)
    assert any("does not state that the model is multi-label" in note for note in notes)


def test_a_single_label_folder_is_what_it_was_before_there_were_tasks(tiny, tmp_path):
    save_model(tiny, tmp_path / "model")
    assert "task" not in json.loads((tmp_path / "model" / "vitlab.json").read_text())


def multi_label(model):
    made = copy.deepcopy(model)
    made.task = "multi-label"
    return made


def test_class_names_must_be_as_many_as_classes(tiny, tmp_path):
    tiny.class_names = ("one", "two")
    with pytest.raises(ValueError, match="2 class names for 5 classes"):
        save_model(tiny, tmp_path / "m")


def test_a_loaded_model_does_not_depend_on_its_file_any_more(tiny, tmp_path):
    save_model(tiny, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    weights = tmp_path / "m" / "weights.safetensors"
    weights.write_bytes(b"\0" * weights.stat().st_size)
    assert torch.equal(loaded.patches.weight, tiny.patches.weight)


def test_a_loaded_model_can_be_trained(tiny, tmp_path):
    save_model(tiny, tmp_path / "m")
    loaded = load_model(tmp_path / "m").train()
    loaded(torch.randn(2, 3, 16, 16)).sum().backward()
    assert all(parameter.grad is not None for parameter in loaded.parameters())


@pytest.mark.slow
class TestPeersReadOurFiles:
    @pytest.fixture
    def peers(self):
        return pytest.importorskip("peers", reason="the peer libraries are not installed", exc_type=ImportError)

    @pytest.fixture
    def images(self):
        return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))

    def model(self, conventions, **options):
        return randomised(
            build_model("ViT-Ti/16", image=64, classes=7, head="linear", conventions=conventions, **options)
        )

    def test_timms_npz_loader_gets_identical_tensors(self, peers, tmp_path):
        model = self.model("paper")
        save_model(model, tmp_path / "ours.npz", "google-npz")
        theirs = peers.TimmViT(img_size=64, patch_size=16, embed_dim=192, depth=12, num_heads=3, num_classes=7)
        theirs.load_pretrained(str(tmp_path / "ours.npz"))
        save_model(load_model(tmp_path / "ours.npz", conventions="timm"), tmp_path / "t.safetensors", "timm")
        from safetensors.torch import load_file

        expected = load_file(tmp_path / "t.safetensors")
        assert theirs.state_dict().keys() == expected.keys()
        assert all(torch.equal(theirs.state_dict()[name], tensor) for name, tensor in expected.items())

    @pytest.mark.parametrize("conventions", ["timm", "paper"])
    @pytest.mark.parametrize("pool", ["class", "mean"])
    def test_timm_opens_our_folder(self, peers, images, tmp_path, conventions, pool):
        model = self.model(conventions, pool=pool)
        save_model(model, tmp_path / "m", "timm")
        theirs = peers.timm.create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True).eval()
        with torch.inference_mode():
            assert disagreement(theirs(images), model(images)) <= 5e-6
        assert tuple(theirs.pretrained_cfg["mean"]) == (0.5, 0.5, 0.5)

    @pytest.mark.parametrize("conventions", ["hf", "paper"])
    def test_transformers_opens_our_folder(self, peers, images, tmp_path, conventions):
        model = self.model(conventions)
        model.class_names = tuple("abcdefg")
        save_model(model, tmp_path / "m", "hf")
        theirs = peers.ViTForImageClassification.from_pretrained(tmp_path / "m").eval()
        with torch.inference_mode():
            assert disagreement(theirs(images).logits, model(images)) <= 5e-6
        assert theirs.config.id2label[2] == "c"

    def test_what_transformers_saves_loads_here(self, peers, images, tmp_path):
        config = peers.ViTConfig(
            hidden_size=24, num_attention_heads=3, num_hidden_layers=2, intermediate_size=40, image_size=64
        )
        theirs = randomised(peers.ViTForImageClassification(config))
        theirs.save_pretrained(tmp_path / "m")
        with pytest.warns(WeightsWarning, match="normalised"):  # the processor is saved by itself
            ours = load_model(tmp_path / "m")
        with torch.inference_mode():
            assert disagreement(ours(images), theirs(images).logits) <= 5e-6

    def test_numpy_reads_our_npz(self, tiny, tmp_path):
        save_model(tiny, tmp_path / "m.npz", "google-npz")
        with np.load(tmp_path / "m.npz", allow_pickle=False) as arrays:
            assert arrays["embedding/kernel"].shape == (4, 4, 3, 24)
