"""The work that is measured: a function that makes the step of a batch, for inference and for training."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.engines.opening import open_engine
from vitlab.models.build import build_from_spec
from vitlab.models.vit import make_lean
from vitlab.require import require
from vitlab.spec import EngineName, ModelSpec
from vitlab.spec.recipe import CHOSEN, AdamW, Execution, Recipe, Schedule
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import TrainState
from vitlab.train.streams import resolved
from vitlab.train.update import Examples, Update

Mode = Literal["inference", "training"]
PASSES: dict[Mode, int] = {"inference": 1, "training": 3}  # forward passes that a step costs: the backward is two


class Step(NamedTuple):
    """A call that computes a batch, and what computes it: the name of an engine, or a number of streams."""

    run: Callable[[], object]
    engine: str


def inference(spec: ModelSpec, device: torch.device, engine: EngineName) -> Callable[[int], Step]:
    """Steps that classify a batch with new weights."""
    model = build_from_spec(spec).to(device).eval()

    def step_of(batch: int) -> Step:
        images, opened = _images(spec, batch, device), open_engine(model, engine, batch=batch)
        return Step(lambda: opened(images), opened.name)

    return step_of


def training(spec: ModelSpec, device: torch.device) -> Callable[[int], Step]:
    """Steps of `vitlab pretrain`: forward, backward and AdamW in fp32, on normalised images, in the streams that a run
    of this batch has by default.
    """
    require(spec.classes > 0, "a model without classes cannot be trained on labels")
    module = build_from_spec(spec).to(device)
    state = TrainState(module, make_optimizer(module, AdamW()))
    schedule = Schedule(peak=1e-4, total=2**31, warmup=0, decay="constant")
    automatic = Execution(device=str(device), streams=CHOSEN)

    def step_of(batch: int) -> Step:
        recipe = Recipe("cost", "vitlab cost", batch, spec.image, schedule, AdamW())
        streams = resolved(spec, recipe, automatic)
        make_lean(module, is_lean=streams > 0)
        update = Update(recipe, replace(automatic, streams=streams), seed=0, prepare=lambda inputs: inputs)
        targets = F.one_hot(torch.arange(batch, device=device) % spec.classes, spec.classes).float()
        examples = Examples(_images(spec, batch, device), targets)
        return Step(lambda: update(state, module, examples), f"{streams} streams" if streams else "plain")

    return step_of


def work(mode: Mode, spec: ModelSpec, device: torch.device, engine: EngineName) -> Callable[[int], Step]:
    """The steps of a mode; engines compute inference only."""
    return inference(spec, device, engine) if mode == "inference" else training(spec, device)


def _images(spec: ModelSpec, batch: int, device: torch.device) -> Tensor:
    return torch.randn(batch, 3, *spec.image, generator=torch.Generator().manual_seed(0)).to(device)
