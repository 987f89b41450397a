"""A student learns from a teacher as a user types it: interrupted and resumed bit for bit, and only from that one."""

import json
import shutil

import pytest
import torch
from PIL import Image

from vitlab import load_model, save_model
from vitlab.cli import main
from vitlab.data.fingerprint import DataCard, describe
from vitlab.data.sources.catalogue import open_source
from vitlab.files.store import MANIFEST
from vitlab.paper.recipes.length import Length
from vitlab.paper.recipes.pretraining import pretraining_recipe
from vitlab.run_dir import RunDir, RunSpec
from vitlab.runs.training.objective import open_teacher
from vitlab.spec.recipe import Execution
from vitlab.train.update import Update
from vitlab.weights.load import weights_sha256

pytest.importorskip("sklearn", reason="the digits need scikit-learn")

DIGITS = ("--data", "digits?split=test", "--schedule.warmup", "1")
TEACHER = [
    *("pretrain", "ViT-Ti/4", *DIGITS, "--image", "8", "--batch", "16", "--schedule.total", "4", "--loss", "softmax"),
    *("--model.layers", "1", "--model.width", "16", "--model.heads", "2", "--model.mlp", "16"),
]
STUDENT = [  # the whole of DeiT's recipe, on a model of seconds
    *("pretrain", "DeiT-Ti/16-distilled", *DIGITS, "--image", "32", "--batch", "12", "--micro-batch", "5"),
    *("--schedule.total", "8", "--save-every", "2", "--model.layers", "2", "--model.width", "16"),
    *("--model.heads", "2", "--model.mlp", "16"),
]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A model of other preprocessing and other pictures than the student's."""
    out = tmp_path_factory.mktemp("teacher")
    assert main([*TEACHER, "--out", str(out / "run")]) == 0
    return out / "run" / "model"


def hashes(folder):
    entries = json.loads((folder / MANIFEST).read_text())
    return {name: entry["sha256"] for name, entry in entries.items() if name.endswith(".safetensors")}


def refusal(capsys, *arguments):
    assert main(list(arguments)) == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return " ".join(told.split())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "weight"), [("hard", 0.5), ("soft", 0.1)])
def test_a_distilled_run_is_killed_and_resumed_bit_for_bit(teacher, tmp_path, monkeypatch, capsys, kind, weight):
    words = [*STUDENT, "--teacher", str(teacher), "--distillation.kind", kind]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main([*words, "--out", str(whole)]) == 0
    assert f"{kind} distillation of weight {weight}" in capsys.readouterr().out
    update = Update.__call__

    def failing(self, state, forward, examples):
        if state.progress.step == 5:
            raise ConnectionError("the power went")
        return update(self, state, forward, examples)

    with monkeypatch.context() as patch:
        patch.setattr(Update, "__call__", failing)
        assert main([*words, "--out", str(broken)]) != 0
    assert not (broken / "model").exists()
    assert main(["resume", str(broken), "--workers", "1"]) == 0
    for folder in ("checkpoints/step-00000008", "model"):
        assert hashes(whole / folder) == hashes(broken / folder)
    spec = RunDir.open(whole).spec()
    assert (spec.recipe.name, spec.recipe.augmentation.repeats) == ("DeiT-Ti/16-distilled@imagenet", 3)
    assert (spec.model.stochastic_depth, spec.teacher) == (0.1, str(teacher.resolve()))
    provenance = load_model(whole / "model").provenance
    assert provenance["teacher_sha256"] == spec.teacher_sha256 != ""
    model = load_model(whole / "model")
    assert not torch.equal(model.head.logits.weight, model.head.distillation.weight)


@pytest.mark.slow
def test_only_the_teacher_of_the_run_is_taken(teacher, tmp_path, monkeypatch, capsys):
    own, out = tmp_path / "own", tmp_path / "run"
    shutil.copytree(teacher, own)
    update = Update.__call__

    def failing(self, state, forward, examples):
        if state.progress.step == 1:
            raise ConnectionError("the power went")
        return update(self, state, forward, examples)

    with monkeypatch.context() as patch:
        patch.setattr(Update, "__call__", failing)
        assert main([*STUDENT, "--teacher", str(own), "--out", str(out)]) != 0
    own.rename(tmp_path / "moved")
    told = refusal(capsys, "resume", str(out))
    assert f"if it has moved: vitlab resume {out} --teacher MODEL" in told
    assert main([*TEACHER, "--seed", "1", "--out", str(tmp_path / "other")]) == 0
    told = refusal(capsys, "resume", str(out), "--teacher", str(tmp_path / "other" / "model"))
    assert "is not the one the run began with" in told
    assert main(["resume", str(out), "--teacher", str(tmp_path / "moved")]) == 0


@pytest.mark.slow
def test_a_model_of_one_head_is_fine_tuned_with_a_teacher(teacher, tmp_path):
    words = ["finetune", str(teacher), *DIGITS, "--recipe", "quick", "--schedule.total", "3", "--batch", "8"]
    plain, taught = tmp_path / "plain", tmp_path / "taught"
    assert main([*words, "--out", str(plain)]) == 0
    assert main([*words, "--teacher", str(teacher), "--distillation.weight", "0.9", "--out", str(taught)]) == 0
    assert hashes(plain / "model") != hashes(taught / "model")
    assert RunDir.open(taught).spec().recipe.distillation.weight == 0.9


@pytest.mark.slow
def test_teachers_that_do_not_fit_are_refused_before_there_is_a_folder(teacher, tmp_path, capsys):
    out = tmp_path / "run"
    assert "give --teacher MODEL" in refusal(capsys, *STUDENT, "--distillation.kind", "soft", "--out", str(out))
    assert "no such file or folder" in refusal(capsys, *STUDENT, "--teacher", str(tmp_path / "none"))
    for letter in "abcdefghij":  # ten classes of other names, then nine
        (tmp_path / "photos" / letter).mkdir(parents=True)
        Image.new("RGB", (9, 9), (ord(letter), 0, 0)).save(tmp_path / "photos" / letter / "1.png")
    words = [f"folder:{tmp_path / 'photos'}" if word == DIGITS[1] else word for word in STUDENT]
    told = refusal(capsys, *words, "--teacher", str(teacher), "--out", str(out))
    assert "the teacher's classes are not the data's" in told
    shutil.rmtree(tmp_path / "photos" / "j")
    told = refusal(capsys, *words, "--teacher", str(teacher), "--out", str(out))
    assert "the teacher has 10 classes and the data has 9" in told
    assert not (out / "run.json").exists()


@pytest.mark.slow
def test_the_teacher_sees_the_pixels_in_its_own_way(teacher, tmp_path):
    """Its own mean and deviation and its own size, whatever the student has; nothing of it can be trained."""
    assert main([*STUDENT, "--schedule.total", "2", "--teacher", str(teacher), "--out", str(tmp_path / "run")]) == 0
    spec = RunDir.open(tmp_path / "run").spec()
    card = describe(open_source(spec.data), spec.data)
    model = load_model(teacher).eval()
    assert model.spec.image == (8, 8)
    assert model.spec.conventions.preprocessing.mean != spec.model.conventions.preprocessing.mean
    asked = open_teacher(spec, card)
    small = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(asked(small), model((small.float() / 255 - 0.5) / 0.5))
        grey = torch.full((1, 3, 32, 32), 60.0)  # a plain picture is plain at any size
        torch.testing.assert_close(asked(grey), model(torch.full((1, 3, 8, 8), (60 / 255 - 0.5) / 0.5)))
    assert not asked(small).requires_grad


def test_a_teacher_with_the_classes_in_another_order_teaches_them_by_name(tmp_path, tiny):
    tiny.class_names = ("ant", "bee", "cat", "dog", "eel")
    save_model(tiny, tmp_path / "teacher")
    made = RunSpec(
        format="vitlab-run",
        version=1,
        kind="pretrain",
        model=tiny.spec,
        recipe=pretraining_recipe("ViT-B/16@imagenet", Length(images=1_281_167)),
        data="",
        execution=Execution(),
        teacher=str(tmp_path / "teacher"),
        teacher_sha256=weights_sha256(tmp_path / "teacher"),
    )
    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    same, other = (
        open_teacher(made, DataCard("", 1, names, ""))(pixels)
        for names in (tiny.class_names, ("eel", "ant", "dog", "cat", "bee"))
    )
    assert torch.equal(other, same[:, [4, 0, 3, 2, 1]])
