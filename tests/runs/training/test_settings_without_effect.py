"""A setting that nobody would read is refused when a run is made; recipes that were stored with one are still read."""

import dataclasses
import re

import pytest
from rich.console import Console

from vitlab import build_model, save_model
from vitlab.files.strict_json import from_json, to_json
from vitlab.paper.recipes.pretraining import pretraining_recipe
from vitlab.run_dir import RunSpec
from vitlab.runs.training.data import open_training_data
from vitlab.runs.training.request import Request, pretraining_spec
from vitlab.spec.pixels import RandAugment
from vitlab.spec.recipe import HARD, Distillation, Execution, Recipe
from vitlab.weights.load import load_start

DATA = "shapes?classes=3&images=40&size=32"
RANDAUGMENT = "augmentation.randaugment."


def run(model="ViT-Ti/16", teacher=None, **changes):
    short = {"schedule.total": "3", "schedule.warmup": "1", "batch": "8"}
    asked = Request(DATA, (32, 32), changes=tuple((short | changes).items()), teacher=teacher)
    taught = None if teacher is None else load_start(teacher)
    card = open_training_data(DATA).card
    return pretraining_spec(model, card, asked, Execution(), Console(quiet=True), teacher=taught)


@pytest.fixture
def teacher(tmp_path):
    save_model(build_model("R26x0.25", image=32, classes=3), tmp_path / "teacher")
    return tmp_path / "teacher"


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("ViT-Ti/16", {f"{RANDAUGMENT}magnitude": "9"}, "RandAugment is off; give augmentation.randaugment.lay"),
        ("ViT-Ti/16", {f"{RANDAUGMENT}flavour": "timm"}, "RandAugment is off"),
        ("ViT-Ti/16", {"augmentation.erasing.mean": "0,0,0"}, "random erasing is off"),
        ("ViT-Ti/16", {"partners": "rolled"}, "no images are mixed; give mixup= or cutmix="),
        ("ViT-Ti/16", {"schedule.decay": "constant", "schedule.end": "0"}, "a constant decay has no such end"),
        ("ViT-Ti/16", {"distillation.kind": "hard"}, "give teacher="),
        ("ViT-Ti/16", {"distillation.kind": "soft"}, "give teacher="),
        ("R26x0.25", {"stochastic_depth": "0.5"}, "a ResNet has no stochastic depth"),
        ("R26x0.25", {"dropout": "0.1"}, "a ResNet has no dropout"),
        ("ViT-Ti/16", {"masking.target": "pixels"}, "give objective='masked-patches'"),
    ],
)
def test_a_setting_without_effect_is_refused(model, changes, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        run(model, **changes)


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("ViT-Ti/16", {f"{RANDAUGMENT}magnitude": "9", f"{RANDAUGMENT}flavour": "timm", f"{RANDAUGMENT}layers": "2"}),
        ("ViT-Ti/16", {f"{RANDAUGMENT}magnitude": "0", f"{RANDAUGMENT}layers": "2"}),
        ("ViT-Ti/16", {"augmentation.erasing.mean": "0,0,0", "augmentation.erasing.probability": "1"}),
        ("ViT-Ti/16", {"partners": "rolled", "cutmix": "1"}),
        ("ViT-Ti/16", {"schedule.decay": "cosine", "schedule.end": "1e-6"}),
        ("R26x0.25", {"stochastic_depth": "0"}),
        ("ViT-Ti/16", {"stochastic_depth": "0.5", "dropout": "0.1"}),
        ("ViT-S/16@imagenet-augreg-none", {}),  # rolled partners and no mixing, as its authors have it
    ],
)
def test_what_is_read_is_taken(model, changes):
    assert isinstance(run(model, **changes), RunSpec)


def test_a_temperature_is_for_soft_distillation(teacher):
    changes = {"loss": "softmax", "distillation.temperature": "9"}
    with pytest.raises(ValueError, match=r"the same at any temperature; give distillation.kind='soft'"):
        run(teacher=teacher, **changes)
    found = run(teacher=teacher, **changes, **{"distillation.kind": "soft"}).recipe.distillation
    assert (found.kind, found.share, found.temperature) == ("soft", 0.1, 9.0)


def test_one_head_does_not_learn_a_sigmoid_and_a_softmax(teacher):
    with pytest.raises(ValueError, match="give loss='softmax'"):
        run(teacher=teacher)  # the paper's rows have the sigmoid
    assert run(teacher=teacher, loss="softmax").teacher_sha256
    assert run("DeiT-Ti/16-distilled", teacher=teacher, loss="sigmoid").teacher_sha256


def test_runs_that_were_stored_with_what_nobody_reads_are_still_read():
    spec = run()
    old = dataclasses.replace(
        spec.recipe,
        partners="rolled",
        stochastic_depth=0.5,
        distillation=Distillation(HARD.kind, 0.5, HARD.temperature),  # the weight used to be written out
        augmentation=dataclasses.replace(spec.recipe.augmentation, randaugment=RandAugment(0, 0.0)),
    )
    stored = to_json(dataclasses.replace(spec, recipe=old))
    assert from_json(RunSpec, stored).recipe == old
    level = pretraining_recipe("ViT-S/16@imagenet-augreg-light1")
    assert level.augmentation.randaugment.magnitude == 0
    assert from_json(Recipe, to_json(level)) == level
