"""What a run begins with: its data, opened and split, and the weights of step 0."""

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from vitlab.data.class_names import renumbered
from vitlab.data.fingerprint import DataCard
from vitlab.data.fingerprint import describe as describe_data
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import open_source
from vitlab.data.splits import development_split
from vitlab.metrics.multilabel import check_kept
from vitlab.models.build import Model, build_from_spec, empty_model
from vitlab.models.masked import build_masked_model, empty_masked_model
from vitlab.paper.pretraining import HEAD_BIAS
from vitlab.require import require
from vitlab.run_dir import RunSpec
from vitlab.spec import Task
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import TrainState
from vitlab.train.update import freeze
from vitlab.weights.load import load_model, weights_sha256
from vitlab.world.group import World
from vitlab.world.parallel import shard, spread_weights, whole


@dataclass(frozen=True)
class Opened:
    """Images to train on, open and fingerprinted: with millions of files that takes minutes, so it is handed on."""

    source: Source
    card: DataCard


@dataclass(frozen=True)
class Material:
    """The data of a run, opened and split."""

    card: DataCard
    train: Source
    excluded: Counter[str]
    validation: Source | None
    test: Source | None
    sets: Mapping[str, Source]  # every data set that was opened, by the name of its flag
    task: Task


def open_data(spec: str) -> Opened:
    """The data that a string such as `folder:photos` names, with its card."""
    source = open_source(spec)
    return Opened(source, describe_data(source, spec))


def open_material(spec: RunSpec, card: DataCard | None = None, *, allow_changed: bool = False) -> Material:
    """Open and split the data; see `material_of`."""
    try:
        source = open_source(spec.data)
    except (OSError, ValueError) as error:
        moved = "; if the data has moved: vitlab resume RUN --data SPEC" if card else ""
        raise ValueError(f"{error}{moved}") from None
    if card is not None:
        source = renumbered(source, card.class_names)  # runs made when numbers were sorted as text continue
    opened = Opened(source, describe_data(source, spec.data))
    return material_of(spec, opened, card, allow_changed=allow_changed)


def material_of(
    spec: RunSpec, opened: Opened, card: DataCard | None = None, *, allow_changed: bool = False
) -> Material:
    """Split data that is open already; with a `card` it must be what it was when the run was made.

    With `allow_changed` it must only have the same classes, and the card is then that of the data as it is.
    """
    if card is not None:
        card.check(opened.card, same_samples=not allow_changed)
    is_same = card is not None and card.fingerprint == opened.card.fingerprint
    card, whole = card if card is not None and is_same else opened.card, opened.source
    task = _task(spec, whole)
    train, validation = whole, None
    fitting = open_source if spec.recipe.masking is not None else partial(_same_classes, card=card)  # no class is asked
    if spec.validation:
        validation = fitting(spec.validation)
    elif spec.held_out:
        train, validation = development_split(whole, spec.held_out)
    test = fitting(spec.test) if spec.test else None
    own = {"data": whole, "validation": validation if spec.validation else None, "test": test}
    sets = {name: source for name, source in own.items() if source is not None}
    if task == "multi-label":
        for source in (one for one in (validation, test) if one is not None):
            check_kept(len(source), spec.model.classes)  # now, not after an epoch
    return Material(card, train, Counter(whole.excluded), validation, test, sets, task)


def _task(spec: RunSpec, source: Source) -> Task:
    """Multi-label where images have several labels or none; raises where the loss needs exactly one.

    The sigmoid loss alone says nothing: the paper pre-trains with it on images of one label.
    """
    number = source.first_not_single
    if number is None or spec.recipe.masking is not None:
        return "single-label"
    require(
        spec.recipe.loss == "sigmoid",
        f"{source.id(number)!r} of {spec.data!r} has {len(source.label(number))} labels, and the softmax loss needs "
        f"exactly one per image; give --loss sigmoid to learn any number of labels per image",
    )
    return "multi-label"


def _same_classes(spec: str, card: DataCard) -> Source:
    source = open_source(spec)
    try:
        return renumbered(source, card.class_names)
    except ValueError as error:
        raise ValueError(f"{spec!r} does not fit the training data: {error}") from None


def first_state(spec: RunSpec, device: torch.device) -> TrainState:
    """The state of step 0: fresh or loaded weights on the device, and an optimizer that has seen nothing."""
    module = initial_model(spec).to(device).train()
    average = copy.deepcopy(module).requires_grad_(False) if spec.recipe.average is not None else None
    return _state(spec, module, average)


def sharded_state(spec: RunSpec, device: torch.device, world: World, *, is_empty: bool) -> TrainState:
    """The state of step 0 with a part of each tensor on every rank; only the first ever has the whole model.

    One that `is_empty` has storage without values: a checkpoint is going to fill it.
    """
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
        world.first(lambda: made.append(initial_model(spec)))
        for part in (module, average):
            if part is not None:
                spread_weights(part, made[0] if made else None, world)
    return _state(spec, module, average)


def _state(spec: RunSpec, module: Model, average: Model | None) -> TrainState:
    freeze(module, spec.recipe.frozen)
    optimizer = make_optimizer(module, spec.recipe.optimizer, layer_decay=spec.recipe.layer_decay)
    return TrainState(module, optimizer, average)


def whole_model(module: Model, spec: RunSpec, world: World) -> Model | None:
    """The whole of a sharded model, in the memory of the first rank only, gathered a tensor at a time."""
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


def initial_model(spec: RunSpec) -> Model:
    """The weights that training starts from, the same every time."""
    if spec.recipe.masking is not None:
        require(not spec.start, "masked patches are learnt from fresh weights; leave the start out")
        return build_masked_model(spec.model, spec.recipe.masking.outputs(spec.model.stride), seed=spec.seed)
    bias = HEAD_BIAS if spec.recipe.loss == "sigmoid" else 0.0
    model = build_from_spec(spec.model, seed=spec.seed, head_bias=bias)
    if not spec.start:
        return model
    found = weights_sha256(Path(spec.start))
    require(
        found == spec.start_sha256,
        f"the weights in {spec.start} are not those the run began with; bring them back, or start a new run",
    )
    loaded = load_model(spec.start, conventions=spec.model.conventions)
    adapt(loaded, spec.model.image, spec.model.classes)
    if spec.recipe.loss == "sigmoid":
        torch.nn.init.constant_(loaded.head.logits.bias, bias)
    model.load_state_dict(loaded.state_dict())
    return model


def adapt(model: Model, image: tuple[int, int], classes: int) -> None:
    """Bring a loaded model to another resolution, with a new zero head of one layer."""
    if model.spec.image != image:
        model.resize(image)
    model.reset_head(classes)
