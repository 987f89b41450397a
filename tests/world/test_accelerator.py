"""`make gpu-check`: a machine with an accelerator trains on it what its CPU trains. Elsewhere it says so and skips."""

import copy
from dataclasses import replace

import pytest
import torch

from vitlab.models.build import build_from_spec
from vitlab.paper.recipes.pretraining import pretraining_recipe
from vitlab.spec import ViTSpec
from vitlab.spec.recipe import Execution, Schedule
from vitlab.train.checkpoints.checkpoints import Checkpoints
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import TrainState
from vitlab.train.update import Examples, Update
from vitlab.world.device import pick_device, products_in

SPEC = ViTSpec(patch=4, layers=3, width=48, mlp=96, heads=4, image=(16, 16), classes=7)


@pytest.fixture
def accelerator():
    device = pick_device("auto")
    if device.type == "cpu":
        pytest.skip("no accelerator here: torch sees neither CUDA nor MPS")
    with products_in("fp32", device):
        yield device


def trained(device, execution=None, steps=5):
    recipe = replace(
        pretraining_recipe("ViT-B/16@imagenet"),
        schedule=Schedule(1e-3, steps, 1),
        average=0.9,
        batch=16,
        image=(16, 16),
    )
    module = build_from_spec(SPEC, seed=2, head_bias=-10.0).to(device)
    average = copy.deepcopy(module)
    state = TrainState(module, make_optimizer(module, recipe.optimizer), average)
    update = Update(recipe, execution or Execution(), seed=0, prepare=lambda x: x)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(steps):
        inputs = torch.randn(16, 3, 16, 16, generator=generator)
        targets = torch.nn.functional.one_hot(torch.randint(7, (16,), generator=generator), 7).float()
        losses.append(update(state, module, Examples(inputs.to(device), targets.to(device))).loss)
        state.progress.step += 1
    return state, losses


def test_losses_are_those_of_the_cpu(accelerator):
    assert trained(accelerator)[1] == pytest.approx(trained(torch.device("cpu"))[1], rel=1e-4)


def test_bf16_is_close(accelerator):
    half = trained(accelerator, Execution(precision="bf16"))[1]
    assert half == pytest.approx(trained(accelerator)[1], rel=2e-2)


def test_a_checkpoint_is_saved_and_restored_there(accelerator, tmp_path):
    state, _ = trained(accelerator)
    Checkpoints(tmp_path, keep=1, environment={}).save(state, wait=True)
    fresh, _ = trained(accelerator, steps=1)
    assert Checkpoints(tmp_path, keep=1, environment={}).restore(fresh).step == 5
    for group, tensors in fresh.groups().items():
        for name, tensor in tensors.items():
            assert tensor.device.type in (accelerator.type, "cpu")
            assert torch.equal(tensor, state.groups()[group][name]), name
