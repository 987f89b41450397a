"""The work that is measured: a function that makes the step of a batch, for inference and for training."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.engines.opening import open_engine
from vitlab.models.build import build_from_spec
from vitlab.recipe import AdamW, Execution, Recipe, Schedule
from vitlab.require import require
from vitlab.spec import EngineName, ModelSpec
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import TrainState
from vitlab.train.update import Examples, Update

Mode = Literal["inference", "training"]
Step = Callable[[], object]
PASSES: dict[Mode, int] = {"inference": 1, "training": 3}  # forward passes that a step costs: the backward is two


def inference(spec: ModelSpec, device: torch.device, engine: EngineName) -> Callable[[int], Step]:
    """Steps that classify a batch with new weights."""
    model = build_from_spec(spec).to(device).eval()

    def step_of(batch: int) -> Step:
        images, opened = _images(spec, batch, device), open_engine(model, engine, batch=batch)
        return lambda: opened(images)

    return step_of


def training(spec: ModelSpec, device: torch.device, engine: EngineName) -> Callable[[int], Step]:
    """Steps of `vitlab pretrain`: forward, backward and AdamW in fp32, on normalised images; the engine has no part."""
    require(spec.classes > 0, "a model without classes cannot be trained on labels")
    module = build_from_spec(spec).to(device)
    state = TrainState(module, make_optimizer(module, AdamW()))
    schedule = Schedule(peak=1e-4, total=2**31, warmup=0, decay="constant")

    def step_of(batch: int) -> Step:
        recipe = Recipe("cost", "vitlab cost", batch, spec.image, schedule, AdamW())
        update = Update(recipe, Execution(), seed=0, prepare=lambda inputs: inputs)
        targets = F.one_hot(torch.arange(batch, device=device) % spec.classes, spec.classes).float()
        examples = Examples(_images(spec, batch, device), targets)
        return lambda: update(state, module, examples)

    return step_of


WORK: dict[Mode, Callable[[ModelSpec, torch.device, EngineName], Callable[[int], Step]]] = {
    "inference": inference,
    "training": training,
}


def _images(spec: ModelSpec, batch: int, device: torch.device) -> Tensor:
    return torch.randn(batch, 3, *spec.image, generator=torch.Generator().manual_seed(0)).to(device)
