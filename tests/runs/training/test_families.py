"""Every family goes through the one loop: trained, interrupted, resumed bit for bit, fine-tuned, asked."""

import io
import json
from dataclasses import replace

import pytest
from PIL import Image
from rich.console import Console

from vitlab import load_model, predict
from vitlab.data.sources.digits import DigitsSource
from vitlab.files.store import MANIFEST
from vitlab.files.strict_json import to_json
from vitlab.run_dir import VERSION, RunDir, RunSpec
from vitlab.runs.training.data import open_run_data, open_training_data
from vitlab.runs.training.request import Request, finetuning_spec
from vitlab.runs.training.trainer import train_run
from vitlab.spec import AxialResNetSpec, Backbone, ResNetSpec, SwinSpec, ViTSpec
from vitlab.spec.recipe import AdamW, Execution, Recipe, Schedule
from vitlab.train.update import Update
from vitlab.weights.load import load_start

pytest.importorskip("sklearn", reason="the digits need scikit-learn")

VIT = {"patch": 8, "layers": 1, "width": 16, "mlp": 16, "heads": 2, "image": (32, 32), "classes": 10, "head": "linear"}
FAMILIES = {
    "BiT": ResNetSpec((1, 1), 8, (32, 32), 10),
    "hybrid": ViTSpec(**(VIT | {"patch": 1, "backbone": Backbone((1, 1), 8)})),
    "Axial-ViT": ViTSpec(**(VIT | {"attention": "axial", "pool": "mean", "positions": "2d"})),
    "windows": ViTSpec(**(VIT | {"attention": "window:3"})),
    "neighbourhoods": ViTSpec(**(VIT | {"attention": "neighbourhood:3"})),
    "strided": ViTSpec(**(VIT | {"attention": "strided"})),
    "fixed": ViTSpec(**(VIT | {"attention": "fixed:3"})),
    "BigBird": ViTSpec(**(VIT | {"attention": "bigbird:block=2,random=1,seed=5"})),
    "AxialResNet": AxialResNetSpec((1, 1), 8, 2, (32, 32), 10),
    "Swin": SwinSpec((2, 2), 12, 3, 3, image=(32, 32), classes=10),
    "distilled DeiT": ViTSpec(**(VIT | {"distilled": True})),
    "relative positions": ViTSpec(**(VIT | {"positions": "relative"})),
}
STEPS = 6


def quiet():
    return Console(file=io.StringIO(), width=1000)


def run_of(model):
    recipe = Recipe(
        name="small",
        source="tests",
        batch=8,
        image=(32, 32),
        schedule=Schedule(peak=1e-3, total=STEPS, warmup=1),
        optimizer=AdamW(),
    )
    execution = Execution(save_every=2)
    return RunSpec("vitlab-run", VERSION, "pretrain", model, recipe, "digits?split=test", execution)


def created(path, spec):
    return RunDir.create(path, spec, to_json(open_run_data(spec).card))


def tensor_hashes(folder):
    entries = json.loads((folder / MANIFEST).read_text())
    return {name: entry["sha256"] for name, entry in entries.items() if name.endswith(".safetensors")}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_resumes_and_is_fine_tuned(family, tmp_path, monkeypatch):
    spec = run_of(FAMILIES[family])
    whole, broken = created(tmp_path / "whole", spec), created(tmp_path / "broken", spec)
    assert train_run(whole, quiet()) == 0

    update = Update.__call__

    def failing(self, state, forward, examples):
        if state.progress.step == 3:
            raise ConnectionError("the power went")
        return update(self, state, forward, examples)

    with monkeypatch.context() as patch:
        patch.setattr(Update, "__call__", failing)
        with pytest.raises(ConnectionError):
            train_run(broken, quiet())
    assert train_run(broken, quiet()) == 0
    for folder in (f"checkpoints/step-{STEPS:08}", "model"):
        assert tensor_hashes(whole.path / folder) == tensor_hashes(broken.path / folder)

    words = Request("digits?split=test", changes=(("schedule.total", "3"), ("schedule.warmup", "1"), ("batch", "8")))
    opened, start = open_training_data(words.data), load_start(whole.path / "model")
    tuned = created(tmp_path / "tuned", finetuning_spec(start, "", opened, words, Execution(), quiet()))
    assert train_run(tuned, quiet()) == 0
    model = load_model(tuned.path / "model")
    assert replace(model.spec, head=spec.model.head) == FAMILIES[family]
    Image.fromarray(DigitsSource("test").item(0).data).save(tmp_path / "digit.png")
    (answer,) = predict(model, [tmp_path / "digit.png"])
    assert len(answer.guesses) == 5
