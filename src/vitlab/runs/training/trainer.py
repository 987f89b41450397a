"""From a run's spec to its finished folder: what `pretrain`, `finetune`, `resume` and `reproduce` all end in."""

from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from vitlab.busy import Crowding, advice
from vitlab.counting import count_spec
from vitlab.data.fingerprint import DataCard, unused_classes
from vitlab.data.loading.accounting import Account
from vitlab.data.loading.batches import Batch, order_of, slice_sizes, training_batches
from vitlab.data.source import Source
from vitlab.data.transforms.evaluation import as_model_input
from vitlab.errors import TooManyBadImages
from vitlab.interrupts import undisturbed
from vitlab.recipe import Execution
from vitlab.require import require
from vitlab.run_dir import CHECKPOINTS, MODEL, RESULT, RunDir, RunSpec
from vitlab.runs.progress import Display, say
from vitlab.runs.training.account import Books, tell_bad, tell_unused, write_quarantine
from vitlab.runs.training.data import Material, first_state, open_material, sharded_state
from vitlab.runs.training.distillation import open_teacher, student_of
from vitlab.runs.training.exactness import check_unchanged
from vitlab.runs.training.finishing import finish, model_fault, read_result, rebuild, withdraw_result
from vitlab.runs.training.masked_patches import corruption_of, prediction_of
from vitlab.runs.training.validation import validate
from vitlab.strict_json import from_json
from vitlab.train.checkpoints.checkpoints import Checkpoints
from vitlab.train.checkpoints.files import steps_in
from vitlab.train.distillation import distilled
from vitlab.train.loop import JUDGE, Hook, Loop
from vitlab.train.state import TrainState
from vitlab.train.tensorboard import tensorboard_writer
from vitlab.train.update import Examples, Update, recompute_activations, supervised
from vitlab.world.device import differences, environment
from vitlab.world.group import ALONE, World, device_of
from vitlab.world.parallel import choose, wrapped

SAVES, LOGGED = 20, 20_000  # of a whole run, where nothing else is asked for


@dataclass(frozen=True)
class Places:
    """Where data and teacher of a run are now, if they have moved."""

    data: str = ""
    validation: str = ""
    test: str = ""
    teacher: str = ""

    def of(self, spec: RunSpec, path: Path) -> RunSpec:
        """The run with what has moved in its new place; what it never had cannot have moved."""
        for name, place in vars(self).items():
            require(not place or bool(getattr(spec, name)), f"{path} has no {name} that could have moved")
        return replace(spec, **{name: place for name, place in vars(self).items() if place})


AS_BEFORE = Places()


def carry_out(
    run: RunDir,
    console: Console,
    *,
    material: Material | None = None,
    places: Places = AS_BEFORE,
    execution: Execution | None = None,
    allow_changed: bool = False,
    known: Path | None = None,
    world: World = ALONE,
) -> int:
    """Train what the folder asks for, from its newest checkpoint if it has one; returns the exit code.

    Whoever has made the folder has its `material` open; else it is opened, and must be what it was, unless
    `allow_changed`. Data and teacher may have moved to other `places` and the `execution` may be another one; what is
    learnt is the run's. `known` is a record of what the data holds, where one was made already. All ranks of a `world`
    call it, with a folder that only the first writes and a console that only its is heard of.
    """
    with run.held(), undisturbed():
        run.mend()
        spec = places.of(run.spec(), run.path)
        spec = replace(spec, execution=execution or spec.execution)
        card = from_json(DataCard, run.card())
        if world.first((run.path / RESULT).exists) and _is_whole(run, spec, card, console, world):
            say(console, f"{run.path} is finished: the model is in {run.path / MODEL}")
            return 0
        material = material or open_material(spec, card, allow_changed=allow_changed)
        world.meet()  # one that has the data open already waits for the others, however long they take
        cards = card, material.card
        how = {"allow_changed": allow_changed, "known": known}
        world.first(partial(check_unchanged, run, material.sets, cards, console, **how))
        state, checkpoints = _opened(run, spec, console, world)
        restored = checkpoints.restore(state)
        here = checkpoints.environment
        if restored is None:
            _check_new(run, world)
            run.record("started", {"step": 0, **here})
            if spec.recipe.masking is None:
                tell_unused(console, world.first(partial(unused_classes, material.train)), spec.model.classes)
            checkpoints.save(state, wait=True)
        else:
            changed = differences({"ranks": "1"} | restored.environment, here)
            run.record("resumed", {"step": restored.step, "damaged": list(restored.damaged), "changed": changed})
            for damage in restored.damaged:
                say(console, f"damaged, set aside: {damage}")
            say(console, f"continuing after step {restored.step:,}")
            if changed:
                say(console, f"not bit-exact because {'; '.join(changed)}")
        code = _train(run, spec, material, state, checkpoints, console, world)
        if code == 0:
            finish(run, spec, material, state, checkpoints, console, world)
        return code


def _opened(run: RunDir, spec: RunSpec, console: Console, world: World) -> tuple[TrainState, Checkpoints]:
    """The state of step 0, or an empty one that a checkpoint is going to fill; and the checkpoints."""
    device = device_of(world, spec.execution.device)
    kind, why = choose(spec.execution.parallel, world, device, count_spec(spec.model).parameters)
    _check_kind(spec, kind, world)
    if world.ranks > 1:
        say(console, f"ranks   {world.ranks}, {kind}: {why}")
    here = environment(device) | _execution(spec, kind, world)
    checkpoints = Checkpoints(
        run.path / CHECKPOINTS, keep=spec.execution.keep, environment=here, learnt=run.learnt(), world=world
    )
    is_begun = world.first(lambda: bool(checkpoints.steps()))
    if kind == "fsdp":
        return sharded_state(spec, device, world, is_empty=is_begun), checkpoints
    return first_state(replace(spec, start="") if is_begun else spec, device), checkpoints


def _check_new(run: RunDir, world: World) -> None:
    """Raise if a run without checkpoints had some: it does not begin anew in silence."""
    require(
        not world.first(lambda: any(run.events("saved"))),
        f"{run.path / CHECKPOINTS} has no checkpoint, but the run had saved some; bring them back, or start a new run",
    )


def _is_whole(run: RunDir, spec: RunSpec, card: DataCard, console: Console, world: World) -> bool:
    """Whether a finished run has its model, or has it again: one that is missing or damaged is made from a checkpoint.

    If the last checkpoint is lost too and an earlier one is there, the run is not finished any more.
    """
    if not world.first(partial(read_result, run)):
        world.first(partial(withdraw_result, run))
        say(console, f"{run.path / RESULT} is damaged and set aside; the run is finished again")
        return False
    fault = world.first(partial(model_fault, run))
    if not fault:
        return True
    say(console, f"the run is finished, but its model cannot be used: {fault}")
    kept = world.first(lambda: steps_in(run.path / CHECKPOINTS) if (run.path / CHECKPOINTS).is_dir() else [])
    require(
        bool(kept),
        f"the model of {run.path} cannot be made again, because there is no checkpoint in {run.path / CHECKPOINTS}; "
        f"bring {run.path / MODEL} or the checkpoints back, or start a new run",
    )
    state, checkpoints = _opened(run, spec, console, world)
    restored = checkpoints.restore(state)
    assert restored is not None, "there are checkpoints"
    if rebuild(run, spec, card, state, checkpoints, console, world):
        return True
    world.first(partial(withdraw_result, run))
    say(console, f"its last checkpoint is lost; training goes on after step {restored.step:,}")
    return False


def _execution(spec: RunSpec, kind: str, world: World) -> dict[str, str]:
    """What of the execution shows in the bits."""
    how = spec.execution
    ranks = str(world.ranks) if kind == "alone" else f"{world.ranks} {kind}"
    return {
        "precision": how.precision,
        "micro-batch": str(how.micro_batch),
        "compile": str(how.compile),
        "ranks": "any" if how.exact_elastic else ranks,
    }


def _check_kind(spec: RunSpec, kind: str, world: World) -> None:
    """Raise what the specs cannot know: which parallelism `auto` becomes, and how many ranks there are."""
    if kind == "fsdp":
        replace(spec.execution, parallel="fsdp")
    shards = spec.recipe.shards
    require(
        not spec.execution.exact_elastic or shards > 1 or spec.recipe.batch == 1,
        "the run was begun without --exact-elastic and sums whole batches; leave it out, or start a new run with it",
    )
    require(
        not spec.recipe.mixes or world.ranks <= shards,
        f"the run mixes pictures inside {shards} part(s) of a batch, and {world.ranks} ranks cannot share them without "
        f"learning something else; take {shards} ranks at most, or begin a run with --shards {world.ranks}",
    )


# -- Training ------------------------------------------------------------------------------------


def _train(
    run: RunDir,
    spec: RunSpec,
    material: Material,
    state: TrainState,
    checkpoints: Checkpoints,
    console: Console,
    world: World,
) -> int:
    recipe, execution = spec.recipe, spec.execution
    saved = state.progress.books
    account = Account.from_json(saved) if saved else _new_account(material)
    if account.samples != len(material.train):  # continued on other samples
        account.found, account.excluded = len(material.train) + material.excluded.total(), material.excluded
    books = Books(account, execution.max_bad, world)
    forward: nn.Module = student_of(spec, state.module)
    if execution.recompute:
        recompute_activations(state.module)
    if execution.compile:
        forward = torch.compile(forward)  # pyrefly: ignore[bad-assignment] - calls like the module
    parallel = wrapped(forward, world, is_exact=execution.exact_elastic)

    def keep_books(state: TrainState) -> None:
        books.settle()
        state.progress.books = account.to_json()
        tell_bad(console, run, account, write_quarantine(run, account))
        run.sync()

    total = recipe.schedule.total
    prepare = as_model_input(material.train, spec.model.conventions.preprocessing)
    device = next(state.module.parameters()).device
    objective = prediction_of(spec) or supervised(recipe, _class_weights(spec, material.train, device))
    if spec.teacher:
        require(not material.train.is_prepared, "a teacher needs pictures, and the data set gives float tensors")
        objective = distilled(recipe.distillation, objective, open_teacher(spec, material.card, device))
    update = Update(
        recipe, execution, seed=spec.seed, prepare=prepare, objective=objective, world=world, parallel=parallel
    )
    with ExitStack() as stack:
        display = stack.enter_context(Display(console, total, state.progress.step))
        log = stack.enter_context(tensorboard_writer(run.path)) if execution.tensorboard and run.writes else None

        crowding = Crowding(execution.workers) if device.type == "cpu" else None

        def record(kind: str, values: Mapping[str, object]) -> None:
            run.record(kind, values)
            display.show(kind, values)
            if crowding is not None and kind == "step" and (why := crowding.notice()):
                run.record("crowded", {"step": values["step"], "why": why})
                display.say(advice(why, f"vitlab resume {run.path}"))
            if log is not None:
                log.add(kind, values)

        loop = Loop(
            total=total,
            save_every=execution.save_every or max(total // SAVES, 1),
            log_every=max(total // LOGGED, 1),
            checkpoints=checkpoints,
            record=record,
            hooks=tuple(_hooks(run, spec, material, console, world)),
            patience=recipe.patience,
            settle_window=recipe.settle_window,
            warmup=recipe.schedule.warmup,
            before_save=keep_books,
        )
        try:
            return loop.run(state, parallel.forward, update, _examples(spec, material.train, state, books))
        except TooManyBadImages:
            write_quarantine(run, account)  # named by the error; those of a validation have a file of their own
            raise
        except OSError:
            run.check_there()  # what a writer in the background met may only be what follows from that
            raise
        except (MemoryError, RuntimeError) as error:
            raise _explained(error, spec, is_begun=state.progress.step > 0) from error


def _new_account(material: Material) -> Account:
    return Account(len(material.train) + material.excluded.total(), material.excluded)


def _examples(spec: RunSpec, source: Source, state: TrainState, books: Books) -> Generator[Examples]:
    """The stream of this rank's shares from the state's step on, as inputs and targets on the device."""
    device = next(state.module.parameters()).device
    recipe = spec.recipe
    batches = training_batches(
        source,
        order_of(source, spec.seed),
        batch=recipe.batch,
        size=recipe.image,
        augmentation=recipe.augmentation,
        start=state.progress.step,
        stop=recipe.schedule.total,
        rank=books.world.rank,
        ranks=books.world.ranks,
        slices=recipe.shards,
        corruption=corruption_of(spec),
        workers=spec.execution.workers,
        account=books.own,
        max_bad=books.own_limit,
        device=device,
    )
    for batch in books.kept(batches):
        yield Examples(batch.pixels, _targets(batch, spec), slice_sizes(batch, recipe.batch, recipe.shards))


def _targets(batch: Batch, spec: RunSpec) -> Tensor:
    """(n, K): several ones for the sigmoid loss, exactly one for softmax; the plans where patches are predicted."""
    if batch.plans is not None:
        return batch.plans
    if spec.recipe.loss == "softmax":
        batch.one_label()
    return batch.multi_hot(spec.model.classes)


def _class_weights(spec: RunSpec, source: Source, device: torch.device) -> Tensor | None:
    """(K,) inversely proportional to how often a class occurs, 1 on average over the samples."""
    if spec.recipe.class_weights == "none":
        return None
    counts = Counter(label for number in range(len(source)) for label in source.label(number))
    occurring = len(counts)
    weights = [len(source) / (occurring * counts[k]) if counts[k] else 0.0 for k in range(spec.model.classes)]
    return torch.tensor(weights, device=device)


def _hooks(run: RunDir, spec: RunSpec, material: Material, console: Console, world: World) -> Generator[Hook]:
    if material.validation is not None:
        yield Hook(JUDGE, spec.recipe.validate_every, partial(validate, run, spec, material, console, world))


def _explained(error: BaseException, spec: RunSpec, *, is_begun: bool) -> BaseException:
    """A lack of memory says what to change; anything else stays what it is."""
    if not isinstance(error, MemoryError) and not any(
        sign in str(error) for sign in ("out of memory", "can't allocate memory", "not enough memory")
    ):
        return error
    micro = spec.execution.micro_batch or spec.recipe.batch
    return MemoryError(
        f"out of memory with {micro} images at once; --micro-batch {max(micro // 2, 1)} learns the same in smaller "
        f"pieces, --recompute keeps fewer activations; {'vitlab resume takes both' if is_begun else 'add one of them'}"
    )
