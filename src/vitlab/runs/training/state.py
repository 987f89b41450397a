"""The training state of a run: built at step 0, or restored from the newest checkpoint."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from vitlab.counting import count_spec
from vitlab.data.fingerprint import unused_classes
from vitlab.models.build import Model, build_from_spec, copied_model, empty_model
from vitlab.models.masked import build_masked_model, empty_masked_model
from vitlab.models.swin import Swin
from vitlab.paper.pretraining import HEAD_BIAS
from vitlab.require import require
from vitlab.run_dir import CHECKPOINTS, RunDir, RunSpec
from vitlab.runs.progress import say
from vitlab.runs.training.data import RunData, tell_unused
from vitlab.spec import SwinSpec
from vitlab.train.checkpoints.checkpoints import Checkpoints
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import TrainState
from vitlab.train.streams import applied
from vitlab.train.update import freeze
from vitlab.weights.load import load_start
from vitlab.world.device import check_precision, differences, environment
from vitlab.world.group import World, device_of
from vitlab.world.parallel import choose, shard, spread_weights, whole

IN_MEMORY = "module:"  # how run.json names starting weights that were a module of the caller


class Session(NamedTuple):
    """One process's work on a run: its folder, what to train, where to print, and the other ranks."""

    run: RunDir
    spec: RunSpec
    console: Console
    world: World


def open_state(session: Session, start: Model | None = None) -> tuple[TrainState, Checkpoints]:
    """The state of step 0, or an empty one for a checkpoint to fill; and the checkpoints."""
    run, spec, console, world = session
    device = device_of(world, spec.execution.device)
    check_precision(spec.execution.precision, device)
    kind, why = choose(spec.execution.parallel, world, device, count_spec(spec.model).parameters)
    _check_ranks(spec, kind, world)
    if world.ranks > 1:
        say(console, f"ranks   {world.ranks}, {kind}: {why}")
    here = environment(device) | _execution_environment(spec, kind, world)
    keep, learned = spec.execution.keep, run.learned()
    checkpoints = Checkpoints(run.path / CHECKPOINTS, keep=keep, environment=here, learned=learned, world=world)
    is_begun = bool(world.first(checkpoints.steps))
    if kind == "fsdp":
        return sharded_state(spec, device, world, start, is_empty=is_begun), checkpoints
    return initial_state(spec, device, start, is_empty=is_begun), checkpoints


def restore_or_begin(session: Session, data: RunData, state: TrainState, checkpoints: Checkpoints) -> None:
    """Fill the state from the newest checkpoint, or save that of step 0; either is recorded as an event."""
    run, spec, console, world = session
    restored = checkpoints.restore(state)
    here = checkpoints.environment
    if restored is None:
        lost = f"{run.path / CHECKPOINTS} has no checkpoint, but the run had saved some"
        require(not world.first(_has_saved, run), f"{lost}; restore them, or start a new run")
        run.record("started", {"step": 0, **here})
        if spec.recipe.masking is None:
            tell_unused(console, world.first(unused_classes, data.train), spec.model.classes)
        checkpoints.save(state, wait=True)
        return
    none = {"streams": "0", "last layer": "whole"}  # recorded only by runs with streams
    changed = differences({"ranks": "1"} | none | restored.environment, none | here)
    run.record("resumed", {"step": restored.step, "damaged": list(restored.damaged), "changed": changed})
    for damage in restored.damaged:
        say(console, f"damaged, set aside: {damage}")
    say(console, f"continuing after step {restored.step:,}")
    if changed:
        say(console, f"not bit-exact because {'; '.join(changed)}")


def _has_saved(run: RunDir) -> bool:
    return any(run.events("saved"))


def _execution_environment(spec: RunSpec, kind: str, world: World) -> dict[str, str]:
    """The settings of the execution that affect the bits."""
    how = spec.execution
    ranks = str(world.ranks) if kind == "alone" else f"{world.ranks} {kind}"
    streams = applied(spec.model, how, ranks=world.ranks)
    return {
        "precision": how.precision,
        "micro-batch": str(how.micro_batch),
        **({"streams": str(streams), "last layer": "short"} if streams else {}),
        "compile": str(how.compile),
        "ranks": "any" if how.exact_elastic else ranks,
    }


def _check_ranks(spec: RunSpec, kind: str, world: World) -> None:
    """Raise for settings that do not fit the number of ranks, or the parallelism that `auto` has become."""
    if kind == "fsdp":
        replace(spec.execution, parallel="fsdp")  # raises if another setting does not work with fsdp
    shards = spec.recipe.shards
    is_summed_by_shards = shards > 1 or spec.recipe.batch == 1
    if spec.execution.exact_elastic and not is_summed_by_shards:
        raise ValueError("the run began without exact_elastic= and sums whole batches; leave it out or start anew")
    if spec.recipe.mixes and world.ranks > shards:
        way = f"use at most {shards} ranks, or start a run with shards={world.ranks}"
        raise ValueError(f"{world.ranks} ranks cannot share the {shards} part(s) in which images are mixed; {way}")


# -- The state of step 0 -------------------------------------------------------------------------


def initial_state(
    spec: RunSpec, device: torch.device, start: Model | None = None, *, is_empty: bool = False
) -> TrainState:
    """The whole state on one device.

    `start` is the loaded model if the caller has it; it is resized and gets a new head. A state that `is_empty` has
    storage without values, for a checkpoint to fill.
    """
    module = without_storage(spec).to_empty(device=device) if is_empty else initial_model(spec, start).to(device)
    module.train()
    average = copy.deepcopy(module).requires_grad_(False) if spec.recipe.average is not None else None
    return _with_optimizer(spec, module, average)


def sharded_state(
    spec: RunSpec, device: torch.device, world: World, start: Model | None = None, *, is_empty: bool
) -> TrainState:
    """The state with a part of each tensor on every rank. Only rank 0 ever holds the whole model."""
    is_half = spec.execution.precision == "bf16"
    module, average = without_storage(spec).train(), None
    shard(module, device, is_half=is_half)
    module.to_empty(device=device)
    if spec.recipe.average is not None:
        average = without_storage(spec).train()
        shard(average, device, is_half=False)
        average.to_empty(device=device).requires_grad_(False)
    if not is_empty:
        made = initial_model(spec, start) if world.leads else None
        world.meet()  # the others wait for rank 0, however long it takes
        for part in (module, average):
            if part is not None:
                spread_weights(part, made, world)
    return _with_optimizer(spec, module, average)


def _with_optimizer(spec: RunSpec, module: Model, average: Model | None) -> TrainState:
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
    if isinstance(start, Swin) and isinstance(spec.model, SwinSpec) and start.spec.window != spec.model.window:
        start.set_window(spec.model.window)
    adapt(start, spec.model.image, spec.model.classes)
    model = copied_model(spec.model, start)
    if spec.recipe.loss == "sigmoid":
        torch.nn.init.constant_(model.head.logits.bias, bias)
    return model


def _reloaded(spec: RunSpec) -> Model:
    """Load the starting weights of a run again; they must be those the run was created with."""
    if spec.start.startswith(IN_MEMORY):
        raise ValueError("the run started from a module in memory and has no checkpoint; start a new run")
    found = load_start(Path(spec.start), conventions=spec.model.conventions)
    is_same = found.sha256 == spec.start_sha256
    require(is_same, f"the weights in {spec.start} are not those of the run; restore them, or start a new run")
    return found.model


def adapt(model: Model, image: tuple[int, int], classes: int) -> None:
    """Resize a loaded model to another resolution and give it a new zero head of one layer."""
    if model.spec.image != image:
        model.resize(image)
    model.reset_head(classes)


def whole_model(module: Model, spec: RunSpec, world: World) -> Model | None:
    """A sharded model gathered in rank 0's memory, one tensor at a time; None on the other ranks."""
    model = without_storage(spec).to_empty(device="cpu") if world.leads else None
    targets = {} if model is None else model.state_dict()
    for name, tensor in module.state_dict().items():
        full = whole(tensor)
        if model is not None:
            targets[name].copy_(full)
    return model


def without_storage(spec: RunSpec) -> Model:
    """The model of a run on the meta device: shapes without values."""
    if spec.recipe.masking is None:
        return empty_model(spec.model)
    return empty_masked_model(spec.model, spec.recipe.masking.outputs(spec.model.stride))
