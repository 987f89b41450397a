"""Twenty steps whose losses were written down: whoever changes them has changed what training does.

`python tests/train/test_golden_losses.py` writes the file again.
"""

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vitlab.models.build import build_from_spec
from vitlab.paper.pretraining import HEAD_BIAS
from vitlab.paper.recipes.finetuning import finetuning_recipe
from vitlab.paper.recipes.pretraining import pretraining_recipe
from vitlab.spec import ViTSpec
from vitlab.spec.recipe import Execution, Recipe
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import TrainState
from vitlab.train.update import Examples, Update

FILE = Path(__file__).with_name("golden_losses.json")
SPEC = ViTSpec(patch=4, layers=3, width=32, mlp=64, heads=4, image=(16, 16), classes=7, dropout=0.1)


def small(recipe: Recipe, steps: int = 20) -> Recipe:
    peak = max(recipe.schedule.peak, 0.1 if recipe.optimizer.kind == "sgd" else 0)
    schedule = replace(
        recipe.schedule, peak=peak, total=steps, warmup=5, boundaries=(8, 12) if recipe.schedule.boundaries else ()
    )
    return replace(recipe, batch=16, image=SPEC.image, schedule=schedule)


RECIPES = {
    "pretraining": small(pretraining_recipe("ViT-B/16@imagenet")),
    "finetuning": small(replace(finetuning_recipe("imagenet-512"), layer_decay=0.75)),
    "hyper-rule": small(finetuning_recipe("bit-medium")),
}


def losses(recipe: Recipe, micro_batch: int = 0) -> list[float]:
    model = build_from_spec(SPEC, seed=5, head_bias=HEAD_BIAS if recipe.loss == "sigmoid" else 0.0)
    average = copy.deepcopy(model) if recipe.average is not None else None
    state = TrainState(model, make_optimizer(model, recipe.optimizer, layer_decay=recipe.layer_decay), average)
    update = Update(recipe, Execution(micro_batch=micro_batch), seed=11, prepare=lambda x: x.float() / 127.5 - 1)
    found = []
    for step in range(recipe.schedule.total):
        rng = np.random.default_rng(step % 2)
        pixels = torch.from_numpy(rng.integers(0, 256, (16, 3, 16, 16), dtype=np.uint8))
        labels = torch.from_numpy(rng.integers(0, 7, 16))
        found.append(update(state, model, Examples(pixels, torch.nn.functional.one_hot(labels, 7).float())).loss)
        state.progress.step += 1
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_twenty_losses_are_those_that_were_written_down(name):
    golden = json.loads(FILE.read_text())[name]
    assert losses(RECIPES[name]) == pytest.approx(golden, rel=1e-6)
    assert max(golden) > 1.01 * min(golden)


def test_the_same_run_twice_has_the_same_bits():
    assert losses(RECIPES["pretraining"]) == losses(RECIPES["pretraining"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    FILE.write_text(json.dumps({name: losses(recipe) for name, recipe in RECIPES.items()}, indent=1) + "\n")
