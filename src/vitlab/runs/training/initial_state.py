"""The state of a run at step 0: its weights, fresh or loaded, and an optimizer that has seen nothing."""

import copy
from functools import partial
from pathlib import Path

import torch

from vitlab.models.build import Model, build_from_spec, copied_model, empty_model
from vitlab.models.masked import build_masked_model, empty_masked_model
from vitlab.paper.pretraining import HEAD_BIAS
from vitlab.require import require
from vitlab.run_dir import RunSpec
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import TrainState
from vitlab.train.update import freeze
from vitlab.weights.load import load_start
from vitlab.world.group import World
from vitlab.world.parallel import shard, spread_weights, whole

IN_MEMORY = "module:"  # how run.json names starting weights that were a module of the caller


def initial_state(
    spec: RunSpec, device: torch.device, start: Model | None = None, *, is_empty: bool = False
) -> TrainState:
    """The whole state on one device.

    `start` is the loaded model where the caller has it; it is resized and gets a new head. A state that
    `is_empty` has storage without values: a checkpoint is about to fill it.
    """
    module = _without_storage(spec).to_empty(device=device) if is_empty else initial_model(spec, start).to(device)
    module.train()
    average = copy.deepcopy(module).requires_grad_(False) if spec.recipe.average is not None else None
    return _state(spec, module, average)


def sharded_state(
    spec: RunSpec, device: torch.device, world: World, start: Model | None = None, *, is_empty: bool
) -> TrainState:
    """The state with a part of each tensor on every rank. Only rank 0 ever holds the whole model."""
    is_half = spec.execution.precision == "bf16"
    module, average = _without_storage(spec).train(), None
    shard(module, device, is_half=is_half)
    module.to_empty(device=device)
    if spec.recipe.average is not None:
        average = _without_storage(spec).train()
        shard(average, device, is_half=False)
        average.to_empty(device=device).requires_grad_(False)
    if not is_empty:
        made: list[Model] = []
        world.first(partial(_append_initial, made, spec, start))
        for part in (module, average):
            if part is not None:
                spread_weights(part, made[0] if made else None, world)
    return _state(spec, module, average)


def _append_initial(made: list[Model], spec: RunSpec, start: Model | None) -> None:
    made.append(initial_model(spec, start))


def _state(spec: RunSpec, module: Model, average: Model | None) -> TrainState:
    freeze(module, spec.recipe.frozen)
    optimizer = make_optimizer(module, spec.recipe.optimizer, layer_decay=spec.recipe.layer_decay)
    return TrainState(module, optimizer, average)


def initial_model(spec: RunSpec, start: Model | None = None) -> Model:
    """The weights that training starts from, the same every time."""
    if spec.recipe.masking is not None:
        require(not spec.start, "masked patches are learned from fresh weights; leave the start out")
        return build_masked_model(spec.model, spec.recipe.masking.outputs(spec.model.stride), seed=spec.seed)
    bias = HEAD_BIAS if spec.recipe.loss == "sigmoid" else 0.0
    if not spec.start:
        return build_from_spec(spec.model, seed=spec.seed, head_bias=bias)
    start = _reloaded(spec) if start is None else start
    adapt(start, spec.model.image, spec.model.classes)
    model = copied_model(spec.model, start)
    if spec.recipe.loss == "sigmoid":
        torch.nn.init.constant_(model.head.logits.bias, bias)
    return model


def _reloaded(spec: RunSpec) -> Model:
    """Load the starting weights of a run again; they must be those the run was created with."""
    require(
        not spec.start.startswith(IN_MEMORY),
        "the run started from a module in memory and has no checkpoint to continue from; start a new run",
    )
    found = load_start(Path(spec.start), conventions=spec.model.conventions)
    require(
        found.sha256 == spec.start_sha256,
        f"the weights in {spec.start} are not those the run started from; restore them, or start a new run",
    )
    return found.model


def adapt(model: Model, image: tuple[int, int], classes: int) -> None:
    """Bring a loaded model to another resolution and give it a new zero head of one layer."""
    if model.spec.image != image:
        model.resize(image)
    model.reset_head(classes)


def whole_model(module: Model, spec: RunSpec, world: World) -> Model | None:
    """A sharded model gathered in rank 0's memory, one tensor at a time; None on the other ranks."""
    model = _without_storage(spec).to_empty(device="cpu") if world.leads else None
    targets = {} if model is None else model.state_dict()
    for name, tensor in module.state_dict().items():
        full = whole(tensor)
        if model is not None:
            targets[name].copy_(full)
    return model


def _without_storage(spec: RunSpec) -> Model:
    if spec.recipe.masking is None:
        return empty_model(spec.model)
    return empty_masked_model(spec.model, spec.recipe.masking.outputs(spec.model.stride))
