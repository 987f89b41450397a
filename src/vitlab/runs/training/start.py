"""Start a run: `vitlab.finetune` and `vitlab.pretrain`, which the commands of the same names call."""

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from vitlab.data.images.gate import Decoding
from vitlab.data.loading.workers import check_workers
from vitlab.data.sources.catalogue import data_name
from vitlab.errors import InvalidValue, printable
from vitlab.files.strict_json import to_json
from vitlab.models.build import Model
from vitlab.models.fingerprint import fingerprint_of
from vitlab.process.interrupts import raise_when_interrupted
from vitlab.require import check_arguments, require
from vitlab.run_dir import RUN, RunDir, RunSpec, check_new
from vitlab.runs.progress import announced, default_console, duration, say
from vitlab.runs.training.data import (
    Data,
    RunData,
    named_sources,
    open_training_data,
    read_card,
    split_data,
    tell_bad,
    tell_classes,
    write_quarantine,
)
from vitlab.runs.training.objective import Teacher, corruption_of, open_teacher
from vitlab.runs.training.request import Objective, Request, finetuning_spec, pretraining_spec
from vitlab.runs.training.run import Run
from vitlab.runs.training.state import IN_MEMORY, without_storage
from vitlab.runs.training.time_estimate import DAY, estimated_seconds
from vitlab.runs.training.trainer import InMemory, Watcher, check_watcher, train_or_stop
from vitlab.runs.training.validation import check_pictures
from vitlab.spec import AttentionLike, Image, ViTSpec, image_size
from vitlab.spec.changes import NO_CHANGES, check_names, flattened, with_fields
from vitlab.spec.patterns import parse_pattern
from vitlab.spec.recipe import AUTOMATIC, SHARDS, Execution
from vitlab.train.optimizers import make_optimizer
from vitlab.train.streams import unfit
from vitlab.train.update import freeze, recompute_activations
from vitlab.weights.load import StartWeights, load_start
from vitlab.world.device import pick_device
from vitlab.world.group import World, join, may_restart, restarts

MERGE, ATTENTION = "model.merge", "model.attention"
ARCHITECTURE = "architecture."  # of keywords: `model` names the weights to start from


def finetune(
    model: str | Path | nn.Module,
    data: Data,
    out: str | Path | None = None,
    *,
    recipe: str = "",
    image: Image | None = None,
    merge: int | None = None,
    attention: AttentionLike | None = None,
    epochs: int | None = None,
    validation: Data = "",
    held_out: float | None = None,
    test: Data = "",
    max_pixels: int | None = None,
    decode: Decoding = "exact",
    teacher: str | Path | None = None,
    seed: int = 0,
    execution: Execution = AUTOMATIC,
    yes: bool = False,
    on_event: Watcher | None = None,
    quiet: bool = False,
    console: Console | None = None,
    changes: Mapping[str, object] = NO_CHANGES,
    **fields: object,
) -> Run:
    """Train a model on the classes of your own images: a new head, resized positions, the paper's table 4.

    `model` is a path, a name that `vitlab download` lists, or a vitlab module, which is copied. `data`, `validation`
    and `test` are strings such as "folder:photos", sources, or map-style torch Datasets of (image, label). `out` is
    the run folder (default: a new one under runs/), `merge` the number of tokens to merge in every layer,
    `attention` a pattern such as "window:7". Any other keyword is a field of the recipe, of the `Execution`, or, as
    `architecture`, of the model:
    `schedule={"peak": 3e-3}, batch=64, workers=2, architecture={"dropout": 0.1}`; `changes` has the same by dotted
    names, `{"schedule.peak": 3e-3}`.
    `decode` "fast" decodes training JPEGs that are larger than needed at a reduced size, which changes pixels a little.
    `on_event` is called with every event of the run as a dictionary. Ctrl-C saves and raises `vitlab.Stopped`; the run
    continues with `vitlab.open_run(out).resume()`.
    """
    check_arguments(finetune, locals())
    changes = changes if merge is None else {**changes, MERGE: merge}
    changes = changes if attention is None else {**changes, ATTENTION: str(parse_pattern(attention))}
    return _start(Call(locals()), recipe, model=model)


def pretrain(
    recipe: str,
    data: Data,
    out: str | Path | None = None,
    *,
    objective: Objective = "labels",
    image: Image | None = None,
    epochs: int | None = None,
    validation: Data = "",
    held_out: float | None = None,
    test: Data = "",
    max_pixels: int | None = None,
    decode: Decoding = "exact",
    teacher: str | Path | None = None,
    seed: int = 0,
    execution: Execution = AUTOMATIC,
    yes: bool = False,
    on_event: Watcher | None = None,
    quiet: bool = False,
    console: Console | None = None,
    changes: Mapping[str, object] = NO_CHANGES,
    **fields: object,
) -> Run:
    """Train a model from fresh weights with a row of the paper's table 3; `finetune` describes the other arguments.

    `recipe` is a row such as "ViT-B/16@imagenet21k", or a model's name, which gets the row of the nearest data size.
    With the objective "masked-patches" the model learns without labels to predict hidden patches.
    """
    check_arguments(pretrain, locals())
    return _start(Call(locals()), recipe, objective=objective)


class Call:
    """The arguments that `finetune` and `pretrain` share, by name, checked before anything is opened."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        named = ("data", "validation", "test", "max_pixels", "decode")
        names, self.sources = named_sources(*(given[name] for name in named))
        fields = {**given["changes"], **given["fields"]}
        self.execution, changes = split_changes(given["execution"], fields, given.keys() - {"fields"})
        same: dict[str, Any] = {name: given[name] for name in ("held_out", "seed", "teacher", "epochs")} | names
        image = None if given["image"] is None else image_size(given["image"])
        self.request = Request(image=image, changes=changes, **same)
        self.out = None if given["out"] is None else Path(given["out"])
        self.is_confirmed: bool = given["yes"]
        self.on_event: Watcher | None = given["on_event"]
        check_watcher(self.on_event)
        self.console = default_console(given["console"], quiet=given["quiet"])


def _start(
    call: Call, recipe: str, model: str | Path | nn.Module | None = None, objective: Objective = "labels"
) -> Run:
    """Create a run and train it; without a model, from fresh weights."""
    request, execution, console = call.request, call.execution, call.console
    with join(execution.device, execution.timeout) as world:
        restart_count = world.agree(restarts())  # the launcher of a machine where nothing failed counts none
        if not world.leads:
            return _follow(world)
        name = recipe.partition("@")[0] if model is None else _name_of(model)
        path, is_begun = _choose_folder(call, name, restart_count)
        with announced(console, f"opening {printable(data_name(request.data))} ..."):
            opened = open_training_data(request.data, call.sources.get("data"))
        start = None if model is None else _start_weights(model)
        teacher = None if request.teacher is None else load_start(request.teacher)
        if start is None:
            spec = pretraining_spec(recipe, opened.card, request, execution, console, objective, teacher)
        else:
            spec = finetuning_spec(start, recipe, opened, request, execution, console, teacher)
        spec = _on_ranks(_with_shards(spec, world), execution, world)
        data = split_data(spec, opened, read_card(RunDir(path)) if is_begun else None, sources=call.sources)
        memory = InMemory(
            data,
            None if start is None else start.model,
            None if teacher is None else open_teacher(spec, data.card, teacher),
        )
        if is_begun:
            run = _continued(path, spec, console)
        else:
            run = create_run(path, spec, data, console, memory.teacher, is_confirmed=call.is_confirmed)
        with run.withdrawn_unless_begun():
            world.first(str, run.path)  # the other ranks wait for it in `_follow`
            train_or_stop(run, console, memory=memory, world=world, on_event=call.on_event)
        return Run(run.path)


# -- What is asked for -----------------------------------------------------------------------------


def split_changes(
    execution: Execution, changes: Mapping[str, object], arguments: Iterable[str] = ()
) -> tuple[Execution, tuple[tuple[str, object], ...]]:
    """Keywords of a call as (the execution with its fields changed, the fields of the recipe and the model).

    `arguments` are the other names that the call knows, for suggestions.
    """
    local = {field.name for field in fields_of(Execution)}
    pairs = [
        (f"model.{field.removeprefix(ARCHITECTURE)}" if field.startswith(ARCHITECTURE) else field, value)
        for field, value in flattened(changes)
    ]
    check_names((field for field, _ in pairs), local, arguments)
    execution = with_fields(execution, [pair for pair in pairs if pair[0] in local])
    return execution, tuple(pair for pair in pairs if pair[0] not in local)


def _name_of(model: str | Path | nn.Module) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else Path(model).stem


def _start_weights(model: str | Path | nn.Module) -> StartWeights:
    """Load the weights to start from; a module in memory is copied, so that training does not change the caller's."""
    if not isinstance(model, nn.Module):
        return load_start(model)
    if not isinstance(model, Model):
        foreign = f"finetune takes a vitlab model, not a {type(model).__name__}"
        raise TypeError(f"{foreign}; save its weights, and vitlab.load_model reads them")
    return StartWeights(copy.deepcopy(model), Path(f"{IN_MEMORY}{type(model).__name__}"), fingerprint_of(model))


def _with_shards(spec: RunSpec, world: World) -> RunSpec:
    """The run with enough parts per batch for any number of ranks, where results must not depend on that number."""
    recipe, is_exact = spec.recipe, spec.execution.exact_elastic
    if recipe.shards > 1 or not (is_exact or (recipe.mixes and world.ranks > 1)):
        return spec
    wanted = SHARDS if is_exact else max(SHARDS, world.ranks)  # exact ones are the same on any number of ranks
    return replace(spec, recipe=replace(recipe, shards=min(wanted, recipe.batch)))


def _on_ranks(spec: RunSpec, asked: Execution, world: World) -> RunSpec:
    """The run without streams if there are several ranks; an InvalidValue if the user asked for them."""
    why = unfit(spec.model, spec.execution, ranks=world.ranks)
    if not spec.execution.streams or not why:
        return spec
    if asked.streams > 0:
        raise InvalidValue(f"has no effect in this run: {why}", field="streams")
    return replace(spec, execution=replace(spec.execution, streams=0))


# -- The folder ------------------------------------------------------------------------------------


def _choose_folder(call: Call, name: str, restart_count: int) -> tuple[Path, bool]:
    """The run's folder, and whether ranks that failed had begun the run there; checked before the data is opened."""
    is_found = call.out is not None or not may_restart()
    require(is_found, "ranks that are restarted must find their run: give out=, or torchrun --max-restarts 0")
    check_workers(max(call.execution.workers, 0))
    path = call.out
    if path is None:
        data = call.request.data.partition("?")[0].rstrip("/").rpartition("/")[2].rpartition(":")[2]
        path = free_folder(Path("runs"), name, data)
    is_begun = bool(restart_count) and (path / RUN).is_file()
    if not is_begun:
        check_new(path)
    return path, is_begun


def create_run(
    path: Path,
    spec: RunSpec,
    data: RunData,
    console: Console,
    teacher: Teacher | None = None,
    *,
    is_confirmed: bool,
    is_announced: bool = True,
) -> RunDir:
    """Announce a run, check what can be checked before its first step, and create its folder.

    A run of more than a day on a CPU must be confirmed. A sweep announces its runs together.
    """
    banner = console if is_announced else Console(quiet=True)
    _announce(spec, data, banner)
    device = pick_device(spec.execution.device)
    is_known = is_confirmed and not is_announced  # a sweep or a study has estimated and confirmed all its runs
    seconds = (
        0.0 if is_known else estimated_seconds(spec, device, data, None if teacher is None else teacher.model.spec)
    )
    sooner = "; less if the training loss settles before" if spec.recipe.settle_window else ""
    say(banner, f"time    about {duration(seconds)} on {device.type}, as busy as it is now{sooner}")
    remedy = "confirm with yes=True, or reduce schedule.total=, image= or the size of the model"
    is_allowed = seconds < DAY or device.type != "cpu" or is_confirmed
    require(is_allowed, f"the run would take about {duration(seconds)} on this CPU; {remedy}")
    _check_buildable(spec)
    accounts = check_pictures(spec, data, console)
    raise_when_interrupted()
    run = RunDir.create(path, spec, to_json(data.card))
    for name, account in accounts.items():
        tell_bad(console, run, account, write_quarantine(run, account, name), name)
    say(banner, f"run     {path}; if it is stopped: {run.command}\n")
    return run


def _announce(spec: RunSpec, data: RunData, console: Console) -> None:
    recipe, (height, width), train = spec.recipe, spec.recipe.image, len(data.train)
    validation = f"{len(data.validation or ()):,} to validate, {len(data.card.class_names):,} classes"
    say(console, f"data    {train:,} images to train on, {validation}")
    tell_classes(console, data)
    if spec.teacher:
        how = recipe.distillation
        say(console, f"teacher {spec.teacher}, {how.kind} distillation of weight {how.share:g}")
    elif isinstance(spec.model, ViTSpec) and spec.model.distilled:
        say(console, "teacher none: both heads learn from the labels; give teacher= to distill into the second")
    say(console, f"recipe  {recipe.name}: {recipe.source}")
    total, epochs = recipe.schedule.total, recipe.schedule.total * recipe.batch / max(train, 1)
    length = f"{total:,} steps of {recipe.batch:,} images ({epochs:,.1f} epochs), {height}x{width} pixels"
    say(console, f"        {length}, {recipe.optimizer.kind}, peak learning rate {recipe.schedule.peak:g}")
    if streams := spec.execution.streams:
        say(console, f"streams {streams}: parts of a batch are computed at the same time, each on one thread")


def _check_buildable(spec: RunSpec) -> None:
    """Raise what the first step would, before there is a folder: unknown frozen parts, no blocks to recompute."""
    if spec.recipe.masking is not None:
        corruption_of(spec)
    model = without_storage(spec)
    freeze(model, spec.recipe.frozen)
    make_optimizer(model, spec.recipe.optimizer, layer_decay=spec.recipe.layer_decay)
    if spec.execution.recompute:
        recompute_activations(model)


def free_folder(base: Path, *names: str) -> Path:
    """A folder for a new run that does not exist yet, named after model and data."""
    plain = re.sub(r"[^\w.]+", "-", "-".join(names)).strip("-.") or "run"
    tries = (base / f"{plain}-{n}" for n in range(1, 100_000))
    return next(path for path in tries if not path.exists())


def _continued(path: Path, spec: RunSpec, console: Console) -> RunDir:
    """Open the run that ranks had begun before they were restarted."""
    run = RunDir(path)
    say(console, f"the ranks were restarted; the run in {path} continues")
    found = run.spec()
    same = replace(spec, recipe=replace(spec.recipe, shards=found.recipe.shards), execution=found.execution)
    require(same == found, f"{path} holds another run than the one asked for; choose another out=")
    return run


def _follow(world: World) -> Run:
    """Train the run that rank 0 creates."""
    run = RunDir(Path(world.first(str)), writes=False)
    train_or_stop(run, Console(quiet=True), world=world)
    return Run(run.path)
