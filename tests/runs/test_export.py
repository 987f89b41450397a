"""`vitlab.export` and its command: artefacts agree with the model they come from, and predict and evaluate run them."""

import importlib.util
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import vitlab
from agreement import disagreement, randomised
from families import FAMILIES
from vitlab.artefacts.artefact import ENGINES, missing_packages, open_artefact
from vitlab.cli import main
from vitlab.files.store import write_folder
from vitlab.models.build import build_from_spec
from vitlab.runs import export as exporting
from vitlab.runs.export import Disagrees, drawn_pictures
from vitlab.runs.measure.inputs import ModelOptions, open_copy

TARGETS = ("onnx", "openvino", "torch")
KINDS = ("ViT", "hybrid", "BiT", "Axial-ViT", "AxialResNet", "distilled DeiT", "merging", "Swin")
KINDS += ("windows", "neighbourhoods, mean pooling", "strided", "fixed", "BigBird")
ALL = ("logits", "features", "attention", "tokens")


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """A cache of the graphs of models, which ONNX and OpenVINO share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITLAB_ENGINE_CACHE", str(tmp_path_factory.mktemp("engines")))
        yield


def needs(target):
    if why := missing_packages(target):
        pytest.skip(why)


def model_of(family):
    model = randomised(build_from_spec(FAMILIES[family])).eval()
    model.class_names = ("cat", "dog", "bird, or plane", "ünïcode\n")
    return model


def picture(height, width):
    return np.random.default_rng([height, width]).integers(0, 256, (height, width, 3), np.uint8)


@pytest.fixture(scope="module", params=TARGETS)
def exported(request, tmp_path_factory):
    """A small ViT with timm's conventions, and its artefact with every output."""
    needs(request.param)
    model, folder = model_of("ViT of timm"), tmp_path_factory.mktemp(request.param) / "out"
    return model, vitlab.export(model, folder, request.param, outputs=ALL, quiet=True)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("family", KINDS)
def test_every_family_agrees_from_decoded_pixels_on(family, target, tmp_path):
    needs(target)
    model = model_of(family)
    found = vitlab.export(model, tmp_path / "out", target, outputs=("features", "logits"), quiet=True)
    assert found.is_good
    assert max(found.differences.values()) <= found.bound == 1e-4
    assert found.same == len(found.comparisons) == 20
    assert len({one.size for one in found.comparisons}) == 10


@pytest.mark.slow
class TestAnArtefact:
    def test_has_the_outputs_of_the_model(self, exported):
        model, found = exported
        artefact = open_artefact(found.path)
        pixels = torch.from_numpy(np.stack([picture(50, 33)] * 3))
        made = artefact(pixels)
        assert {name: tuple(one.shape) for name, one in made.items()} == {
            "logits": (3, 4),
            "features": (3, 24),
            "attention": (3, 2, 3, 21, 21),
            "tokens": (3, 21, 24),
        }
        inputs = vitlab.preprocess(model, [picture(50, 33)])
        with torch.inference_mode():
            expected = {
                "logits": model(inputs),
                "features": model.features(inputs),
                "attention": torch.stack(list(model.layer_attention(inputs)), dim=1),
                "tokens": list(model.layer_features(inputs))[-1],
            }
        for name, one in expected.items():
            assert disagreement(made[name][1:2], one) <= 1e-5, name

    def test_takes_any_size_and_any_batch(self, exported):
        model, found = exported
        artefact = open_artefact(found.path)
        for batch, height, width in ((1, 1, 1), (2, 1, 90), (5, 32, 40), (1, 500, 90)):
            pixels = picture(height, width)
            logits = artefact(torch.from_numpy(np.stack([pixels] * batch)))["logits"]
            with torch.inference_mode():
                assert disagreement(logits[-1:], model(vitlab.preprocess(model, [pixels]))) <= 1e-5
        with pytest.raises(ValueError, match=r"pictures are \(B, H, W, 3\) of uint8, not \(1, 3, 8, 8\)"):
            artefact(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))

    def test_says_what_it_is(self, exported):
        model, found = exported
        card = json.loads((found.path / "artefact.json").read_text())
        assert card["class_names"] == list(model.class_names)
        assert card["preprocessing"].startswith("shorter side, crop 0.9, bicubic antialiased")
        assert (card["task"], card["outputs"], card["target"]) == ("single-label", list(ALL), found.card.target)
        assert {"vitlab", "torch", "pillow"} <= set(card["versions"])
        report = json.loads((found.path / "report.json").read_text())
        assert report["is_good"]
        assert report["pictures"] == report["same_top1"] == 20
        assert all(value <= report["bound"] == 1e-4 for value in report["differences"].values())
        assert "vitlab predict" in (found.path / "README.md").read_text()

    def test_names_no_file_of_the_machine_that_wrote_it(self, exported):
        for file in exported[1].path.iterdir():
            content = file.read_bytes()
            assert b"stack_trace" not in content, file
            assert b"site-packages" not in content, file
            assert b"/vitlab/" not in content, file

    def test_predicts_and_evaluates_as_the_model_does(self, exported, tmp_path):
        model, found = exported
        for number in range(6):
            folder = tmp_path / "photos" / ("cat" if number % 2 else "dog")
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture(40 + number // 4, 60)).save(folder / f"{number}.png")
        (tmp_path / "photos" / "cat" / "broken.png").write_bytes(b"no picture")
        theirs = vitlab.predict(model, tmp_path / "photos", quiet=True)
        ours = vitlab.predict(found.path, tmp_path / "photos", quiet=True)
        assert ours.engine == ENGINES[found.card.target]
        assert [one.image for one in ours] == [one.image for one in theirs]
        assert [one.reason for one in ours] == [one.reason for one in theirs]
        for mine, other in zip(ours, theirs, strict=True):
            assert [guess.name for guess in mine.guesses] == [guess.name for guess in other.guesses]
            for one, two in zip(mine.guesses, other.guesses, strict=True):
                assert one.probability == pytest.approx(two.probability, rel=1e-5)
        data = f"folder:{tmp_path / 'photos'}"
        rows = [
            vitlab.evaluate(one, data, tmp_path / name, max_bad=0.5, batch=4, workers=0, quiet=True).rows[0]
            for name, one in (("model", model), ("artefact", found.path))
        ]
        assert rows[1].engine == ENGINES[found.card.target]
        assert rows[1].scores.count == rows[0].scores.count == 6
        assert rows[1].scores.top1 == rows[0].scores.top1
        assert rows[1].scores.loss == pytest.approx(rows[0].scores.loss, rel=1e-5)
        again = vitlab.evaluate(found.path, data, tmp_path / "artefact", max_bad=0.5, workers=0, quiet=True)
        assert again.rows[0].scores.count == 6

    def test_is_given_by_its_file_too(self, exported, capsys):
        _, found = exported
        Image.fromarray(picture(40, 60)).save(found.path.parent / "cat.png")
        file = next(file for file in found.path.iterdir() if file.suffix in (".onnx", ".xml", ".pt2"))
        assert main(["predict", str(file), str(found.path.parent / "cat.png"), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["engine"] == ENGINES[found.card.target]
        assert len(answer["answers"][0]["guesses"]) == 4

    def test_is_fixed(self, exported, tmp_path):
        _, found = exported
        with pytest.raises(ValueError, match=r"artefact runs .* as it was exported; leave .*image"):
            vitlab.predict(found.path, [picture(9, 9)], image=64, quiet=True)
        with pytest.raises(ValueError, match=r"engine 'plain' cannot run .*; leave engine out"):
            vitlab.predict(found.path, [picture(9, 9)], engine="plain", quiet=True)
        with pytest.raises(ValueError, match=r"an artefact takes pictures, not preprocessed tensors"):
            vitlab.predict(found.path, torch.zeros(1, 3, 32, 40), quiet=True)
        with pytest.raises(ValueError, match=r"is for another runtime, which vitlab predict and vitlab evaluate run"):
            vitlab.load_model(found.path)
        with pytest.raises(FileExistsError, match=r"exists already"):
            vitlab.export(model_of("ViT"), found.path)

    def test_is_checked_before_it_runs(self, exported, tmp_path):
        _, found = exported
        folder = shutil.copytree(found.path, tmp_path / "damaged")
        file = next(file for file in folder.iterdir() if file.suffix in (".onnx", ".bin", ".pt2"))
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"does not match its SHA-256"):
            open_artefact(folder)


@pytest.mark.slow
def test_the_fingerprint_is_also_that_of_weights_in_a_file_of_their_own(tmp_path):
    needs("openvino")
    found = vitlab.export(model_of("BiT"), tmp_path / "one", "openvino", check=[picture(30, 20)], quiet=True)
    files = {file.name: file.read_bytes() for file in found.path.iterdir() if file.name != "manifest.json"}
    weights = bytearray(files["model.bin"])
    weights[-4] ^= 1
    other = files | {"model.bin": bytes(weights)}
    write_folder(tmp_path / "two", {name: partial(Path.write_bytes, data=data) for name, data in other.items()})
    assert len({open_artefact(tmp_path / name).fingerprint for name in ("one", "two")}) == 2


@pytest.mark.slow
def test_an_onnx_file_needs_no_folder(tmp_path):
    needs("onnx")
    model = model_of("BiT")
    found = vitlab.export(model, tmp_path / "out", check=[picture(30, 20), picture(90, 80)], quiet=True)
    shutil.copy(found.path / "model.onnx", tmp_path / "alone.onnx")
    answers = vitlab.predict(tmp_path / "alone.onnx", [picture(30, 20)], quiet=True)
    assert {guess.name for guess in answers[0].guesses} == set(model.class_names)
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "alone.onnx")
    (pictures,) = session.get_inputs()
    assert (pictures.name, pictures.type, pictures.shape) == (
        "pictures",
        "tensor(uint8)",
        ["batch", "height", "width", 3],
    )
    said = session.get_modelmeta().custom_metadata_map
    assert json.loads(said["class_names"]) == list(model.class_names)
    assert said["task"] == "single-label"


@pytest.mark.slow
def test_another_resolution_is_that_of_a_resized_model(tmp_path):
    model = model_of("ViT of timm")
    found = vitlab.export(model, tmp_path / "out", "torch", image=(48, 64), quiet=True)
    assert found.card.model.image == (48, 64)
    assert model.spec.image == (32, 40)  # the caller's model stays as it was
    model.resize((48, 64))
    logits = open_artefact(found.path)(torch.from_numpy(picture(77, 50))[None])["logits"]
    with torch.inference_mode():
        assert disagreement(logits, model(vitlab.preprocess(model, [picture(77, 50)]))) <= 1e-5


@pytest.mark.parametrize("to", ["torch", "web"])
@pytest.mark.parametrize("given", [{"conventions": "deit"}, {"heads": 3}, {"allow_partial": True}])
def test_options_for_weights_are_refused_for_a_module(given, to, tmp_path):
    with pytest.raises(ValueError, match=r"apply to weights; give a name or a path instead of a module"):
        vitlab.export(model_of("ViT"), tmp_path / "out", to, **given, quiet=True)


def test_merge_is_for_weights(tmp_path):
    with pytest.raises(ValueError, match=r"attention and heads apply to weights"):
        vitlab.export(model_of("ViT"), tmp_path / "out", "torch", merge=2, quiet=True)


def test_an_export_works_on_a_copy_of_a_module():
    model = model_of("ViT of timm").double().train()
    own = open_copy(model, ModelOptions(image=(48, 64), device="cpu"), Console(quiet=True))
    assert (own.spec.image, own.training, next(own.parameters()).dtype) == ((48, 64), False, torch.float32)
    assert own.class_names == model.class_names
    assert (model.spec.image, model.training, next(model.parameters()).dtype) == ((32, 40), True, torch.float64)


@pytest.mark.parametrize("given", [{}, {"int8": True}])
def test_a_comparison_needs_pictures(given, tmp_path):
    needs("onnx")
    with pytest.raises(ValueError, match=r"check has no pictures; give some, or leave check out"):
        vitlab.export(model_of("ViT"), tmp_path / "out", "onnx", check=iter(()), **given, quiet=True)


def test_a_comparison_with_what_is_no_number_fails():
    finite, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, torch.nan])
    assert exporting._difference(finite, finite) == 0
    assert exporting._difference(finite, other) == exporting._difference(other, finite) == float("inf")
    infinite = torch.tensor([1.0, torch.inf])
    assert exporting._difference(finite, infinite) == float("inf")


def test_a_page_takes_the_default_outputs_as_a_list(tmp_path):
    """The runtime is looked for, so that the outputs were accepted."""
    needs("onnx")
    with pytest.raises((ValueError, OSError), match=r"nowhere"):
        vitlab.export(model_of("ViT"), tmp_path / "out", "web", outputs=["logits"], runtime="nowhere", quiet=True)


@pytest.mark.slow
def test_a_model_without_classes_exports_its_features(tmp_path):
    model = model_of("ViT")
    model.reset_head(0)
    found = vitlab.export(model, tmp_path / "out", "torch", outputs=("features",), quiet=True)
    assert found.differences["features"] <= 1e-5
    with pytest.raises(ValueError, match=r"no classes, only features"):
        vitlab.predict(found.path, [picture(9, 9)], quiet=True)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["weights", "mean"])
def test_an_artefact_that_disagrees_is_refused_and_leaves_nothing(damage, tmp_path, monkeypatch, capsys):
    model, plain = model_of("ViT of timm"), exporting.write_artefact
    vitlab.save_model(model, tmp_path / "model")

    def write_another(model, card, folder):
        """What a faulty converter would write."""
        with torch.no_grad():
            before = model.head.logits.bias.clone()
            model.head.logits.bias += torch.tensor([0.001, 0, 0, 0])
            plain(model, card, folder)
            model.head.logits.bias.copy_(before)

    def write_other_colours(model, card, folder):
        other = build_from_spec(replace(model.spec, conventions=FAMILIES["ViT"].conventions))
        other.load_state_dict(model.state_dict())
        plain(other.eval(), card, folder)

    if damage == "weights":
        monkeypatch.setattr(exporting, "write_artefact", write_another)
    else:
        monkeypatch.setattr(exporting, "write_artefact", write_other_colours)
    with pytest.raises(Disagrees, match=r"the torch artefact disagrees with the model: .*nothing was written"):
        vitlab.export(tmp_path / "model", tmp_path / "out", "torch", quiet=True)
    assert main(["export", str(tmp_path / "model"), "--to", "torch", "--out", str(tmp_path / "out")]) == 3
    assert "disagrees with the model" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.slow
def test_int8_states_its_agreement_and_is_refused_below_the_bound(tmp_path, capsys, monkeypatch):
    needs("onnx")
    model = model_of("ViT")
    vitlab.save_model(model, tmp_path / "model")
    out = tmp_path / "out"
    assert main(["export", str(tmp_path / "model"), "--out", str(out), "--int8", "--agreement", "0.5"]) == 0
    assert "where 50.0% are required" in capsys.readouterr().out
    found = open_artefact(out)
    assert found.engine == "onnxruntime-int8"
    assert b"MatMulIntegerToFloat" in (out / "model.onnx").read_bytes()
    report = json.loads((out / "report.json").read_text())
    assert 1e-6 < report["differences"]["logits"] < 0.1
    same = exporting.Exported.same
    monkeypatch.setattr(exporting.Exported, "same", property(lambda self: min(same.fget(self), 17)))
    with pytest.raises(Disagrees, match=r"the same top-1 for 17 of 20 pictures \(85.0%\), where 90.0% are required"):
        vitlab.export(model, tmp_path / "again", int8=True, quiet=True)


@pytest.mark.parametrize(
    ("family", "given", "said"),
    [
        ("BiT", {"outputs": ("logits", "attention")}, r"a ResNet has no attention; leave attention out"),
        ("AxialResNet", {"outputs": ("tokens",)}, r"a ResNet has no tokens; leave tokens out of outputs"),
        ("Swin", {"outputs": ("attention",)}, r"a Swin has no such attention; leave attention out"),
        ("ViT", {"outputs": ("logit",)}, r"outputs has 'logit'; choose some of logits, features, attention, tokens"),
        ("ViT", {"outputs": ()}, r"outputs is empty"),
        ("ViT", {"outputs": ("logits", "logits")}, r"names one twice"),
        ("ViT", {"to": "tflite"}, r"to is 'tflite'; expected 'onnx', 'openvino', 'torch' or 'web'"),
        ("ViT", {"to": "torch", "int8": True}, r"int8 is for onnx, not for torch"),
        ("ViT", {"to": "torch", "image": 30}, r"not a whole number of 8x8 patches"),
        ("ViT", {"to": "torch", "agreement": 0.0}, r"agreement 0.0 is a share"),
        ("ViT", {"to": "torch", "check": ["nowhere.jpg"]}, r"nowhere.jpg.*does not exist"),
    ],
)
def test_what_cannot_be_exported_is_explained(family, given, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        vitlab.export(model_of(family), tmp_path / "out", **({"to": "torch"} | given), quiet=True)
    assert not (tmp_path / "out").exists()


def test_a_model_without_classes_has_no_logits(tmp_path):
    model = model_of("ViT")
    model.reset_head(0)
    with pytest.raises(ValueError, match=r"no classes, only features; give outputs=features"):
        vitlab.export(model, tmp_path / "out", "torch", quiet=True)


def test_hooks_would_be_lost(tmp_path):
    model = model_of("ViT")
    model.blocks[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"hooks, replaced parts, .* which an export would leave out"):
        vitlab.export(model, tmp_path / "out", "torch", quiet=True)


@pytest.mark.parametrize(("target", "extra"), [("onnx", "onnxruntime"), ("openvino", "openvino")])
def test_a_missing_runtime_names_the_extra(target, extra, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=rf"{target} needs .*pip install 'vitlab\[{extra}\]'"):
        vitlab.export(model_of("ViT"), tmp_path / "out", target, quiet=True)


def test_drawn_pictures_are_the_same_every_time_and_of_many_sizes():
    first, second = list(drawn_pictures()), list(drawn_pictures())
    assert all(np.array_equal(one.picture, two.picture) for one, two in zip(first, second, strict=True))
    sizes = {one.picture.shape[:2] for one in first}
    assert len(sizes) == 10
    assert any(height > 2 * width for height, width in sizes)


VIT, DEIT = "ViT-Ti_16-augreg-in1k-224.npz", "DeiT-Ti_16-224.timm.safetensors"
WEIGHTS = {VIT: "timm", DEIT: "deit"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "number", "weights"),
    [("onnx", 200, VIT), ("openvino", 20, VIT), ("onnx", 200, DEIT), ("torch", 20, DEIT)],
)
def test_real_weights_agree_on_photographs(target, number, weights, reference, tmp_path):
    needs(target)
    photographs = sorted((reference / "imagenet_val_200").glob("*.JPEG"))[:number]
    path, conventions = reference / "weights" / weights, WEIGHTS[weights]
    found = vitlab.export(path, tmp_path / "out", target, check=photographs, conventions=conventions, quiet=True)
    assert (found.same, len(found.comparisons)) == (number, number)
    assert found.differences["logits"] <= 1e-4
