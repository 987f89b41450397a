"""Start a run: `vitlab.finetune` and `vitlab.pretrain`, which the commands of the same names call."""

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from torch import nn

from vitlab.changes import NO_CHANGES, flattened, with_fields
from vitlab.data.fingerprint import DataCard
from vitlab.data.loading.workers import check_workers
from vitlab.data.source import Source
from vitlab.errors import Stopped
from vitlab.models.build import Model
from vitlab.recipe import AUTOMATIC, SHARDS, Execution
from vitlab.require import require
from vitlab.run_dir import RUN, RunDir, RunSpec, check_new
from vitlab.runs.measure.scoring import fingerprint_of
from vitlab.runs.progress import announced, default_console, say
from vitlab.runs.training.creation import create_run, free_folder
from vitlab.runs.training.data import Data, Opened, named_sources, open_training_data, split_data
from vitlab.runs.training.distillation import open_teacher
from vitlab.runs.training.initial_state import IN_MEMORY
from vitlab.runs.training.request import Objective, Request, finetuning_spec, pretraining_spec
from vitlab.runs.training.run import Run, ended
from vitlab.runs.training.trainer import Loaded, Watcher, train_run
from vitlab.spec import Image, image_size
from vitlab.strict_json import from_json
from vitlab.weights.load import StartWeights, load_start
from vitlab.world.group import World, join, may_restart, restarts


def finetune(
    model: str | Path | nn.Module,
    data: Data,
    out: str | Path | None = None,
    *,
    recipe: str = "",
    image: Image | None = None,
    epochs: int | None = None,
    validation: Data = "",
    held_out: float | None = None,
    test: Data = "",
    max_pixels: int | None = None,
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
    and `test` are strings such as "folder:photos", sources, or map-style torch Datasets of (picture, label). `out` is
    the run folder (default: a new one under runs/). Any other keyword is a field of the recipe, of the `Execution`, or,
    as `architecture`, of the model: `schedule={"peak": 3e-3}, batch=64, workers=2, architecture={"dropout": 0.1}`;
    `changes` has the same by dotted names, `{"schedule.peak": 3e-3}`.
    `on_event` is called with every event of the run as a dictionary. Ctrl-C saves and raises `vitlab.Stopped`; the run
    continues with `vitlab.open_run(out).resume()`.
    """
    names, sources = named_sources(data, validation, test, max_pixels)
    execution, changed = split_changes(execution, {**changes, **fields})
    request = Request(
        names["data"],
        None if image is None else image_size(image),
        names["validation"],
        held_out,
        names["test"],
        seed,
        changed,
        teacher,
        epochs,
    )
    console = default_console(console, quiet=quiet)
    with join(execution.device, execution.timeout) as world, ExitStack() as stack:
        life = world.agree(restarts())  # the launcher of a machine where nothing failed counts none
        if not world.leads:
            return _follow(world)
        name = type(model).__name__ if isinstance(model, nn.Module) else Path(model).stem
        path, is_begun = _folder(out, (name, request.data), life, execution)
        opened = _opened(request, sources, console)
        start = _start_weights(model)
        taught = None if teacher is None else load_start(teacher)
        spec = finetuning_spec(start, recipe, opened, request, execution, console, taught)
        spec = _with_shards(spec, world)
        loaded = _loaded(spec, opened, sources, path if is_begun else None, start.model, taught)
        run = _begun(path, spec, loaded, console, is_begun=is_begun, is_confirmed=yes)
        stack.enter_context(run.withdrawn_unless_begun())
        return _train(run, console, loaded, world, on_event)


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
    With the objective "masked-patches" the model learns without labels to predict what hidden patches look like.
    """
    names, sources = named_sources(data, validation, test, max_pixels)
    execution, changed = split_changes(execution, {**changes, **fields})
    request = Request(
        names["data"],
        None if image is None else image_size(image),
        names["validation"],
        held_out,
        names["test"],
        seed,
        changed,
        teacher,
        epochs,
    )
    console = default_console(console, quiet=quiet)
    with join(execution.device, execution.timeout) as world, ExitStack() as stack:
        life = world.agree(restarts())
        if not world.leads:
            return _follow(world)
        path, is_begun = _folder(out, (recipe.partition("@")[0], request.data), life, execution)
        opened = _opened(request, sources, console)
        taught = None if teacher is None else load_start(teacher)
        spec = pretraining_spec(recipe, opened.card, request, execution, console, objective, taught)
        spec = _with_shards(spec, world)
        loaded = _loaded(spec, opened, sources, path if is_begun else None, None, taught)
        run = _begun(path, spec, loaded, console, is_begun=is_begun, is_confirmed=yes)
        stack.enter_context(run.withdrawn_unless_begun())
        return _train(run, console, loaded, world, on_event)


# -- What is asked for -----------------------------------------------------------------------------


ARCHITECTURE = "architecture."  # of keywords: `model` is taken by the weights to start from


def split_changes(
    execution: Execution, changes: Mapping[str, object]
) -> tuple[Execution, tuple[tuple[str, object], ...]]:
    """Keywords of a call as (the execution with its fields changed, the fields of the recipe and the model)."""
    own = {field.name for field in fields_of(Execution)}
    pairs = [
        (f"model.{field.removeprefix(ARCHITECTURE)}" if field.startswith(ARCHITECTURE) else field, value)
        for field, value in flattened(changes)
    ]
    execution = with_fields(execution, [pair for pair in pairs if pair[0] in own])
    return execution, tuple(pair for pair in pairs if pair[0] not in own)


def _start_weights(model: str | Path | nn.Module) -> StartWeights:
    """Load the weights to start from; a module in memory is copied, so that training does not change the caller's."""
    if not isinstance(model, nn.Module):
        return load_start(model)
    if not isinstance(model, Model):
        raise TypeError(
            f"finetune takes a vitlab model, not a {type(model).__name__}; save its weights and load them with "
            f"vitlab.load_model, which reads timm, Hugging Face and torchvision formats"
        )
    return StartWeights(copy.deepcopy(model), Path(f"{IN_MEMORY}{type(model).__name__}"), fingerprint_of(model))


def _opened(request: Request, sources: Mapping[str, Source], console: Console) -> Opened:
    with announced(console, f"opening {request.data} ..."):
        return open_training_data(request.data, sources.get("data"))


# -- The folder, and the ranks that train in it ----------------------------------------------------


def _folder(out: str | Path | None, names: tuple[str, str], life: int, execution: Execution) -> tuple[Path, bool]:
    """The run's folder, and whether failed ranks had begun the run there; checked before the data takes its time."""
    require(
        out is not None or not may_restart(),
        "ranks that are restarted must know their run: give --out, or torchrun --max-restarts 0",
    )
    check_workers(max(execution.workers, 0))
    name, data = names
    last = data.partition("?")[0].rstrip("/").rpartition("/")[2].rpartition(":")[2]
    path = free_folder(Path("runs"), name, last) if out is None else Path(out)
    is_begun = bool(life) and (path / RUN).is_file()
    if not is_begun:
        check_new(path)
    return path, is_begun


def _loaded(
    spec: RunSpec,
    opened: Opened,
    sources: Mapping[str, Source],
    begun: Path | None,
    start: Model | None,
    teacher: StartWeights | None,
) -> Loaded:
    """Everything that rank 0 has in memory when its run begins; `begun` is a folder to continue in."""
    card = None if begun is None else from_json(DataCard, RunDir(begun).card())
    data = split_data(spec, opened, card, sources=sources)
    taught = None if teacher is None else open_teacher(spec, data.card, teacher)
    return Loaded(data, start, taught)


def _begun(
    path: Path, spec: RunSpec, loaded: Loaded, console: Console, *, is_begun: bool, is_confirmed: bool
) -> RunDir:
    """Create the run, or open it where restarted ranks had begun it."""
    assert loaded.data is not None
    if not is_begun:
        return create_run(path, spec, loaded.data, console, loaded.teacher, is_confirmed=is_confirmed)
    run = RunDir(path)
    say(console, f"the ranks were restarted; the run in {path} continues")
    found = run.spec()
    same = replace(spec, recipe=replace(spec.recipe, shards=found.recipe.shards), execution=found.execution)
    require(same == found, f"{path} holds another run than the one asked for; choose another --out")
    return run


def _train(run: RunDir, console: Console, loaded: Loaded, world: World, on_event: Watcher | None) -> Run:
    """Tell the other ranks the folder, and train with them."""
    world.first(partial(str, run.path))
    try:
        code = train_run(run, console, loaded=loaded, world=world, on_event=on_event)
    except KeyboardInterrupt:
        raise Stopped(path=run.path, command=run.command) from None
    return ended(run, code)


def _follow(world: World) -> Run:
    """Train the run that rank 0 creates."""
    path = Path(world.first(str))
    run = RunDir(path, writes=False)
    return ended(run, train_run(run, Console(quiet=True), world=world))


def _with_shards(spec: RunSpec, world: World) -> RunSpec:
    """The run with enough parts per batch for any number of ranks, where results must not depend on that number."""
    recipe, is_exact = spec.recipe, spec.execution.exact_elastic
    if recipe.shards > 1 or not (is_exact or (recipe.mixes and world.ranks > 1)):
        return spec
    wanted = SHARDS if is_exact else max(SHARDS, world.ranks)  # exact ones are the same on any number of ranks
    return replace(spec, recipe=replace(recipe, shards=min(wanted, recipe.batch)))
