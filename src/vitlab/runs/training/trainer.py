"""Train the run of a folder to its end: what `pretrain`, `finetune`, `resume` and `reproduce` all call."""

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
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
from vitlab.models.build import Model
from vitlab.recipe import Execution
from vitlab.require import require
from vitlab.run_dir import CHECKPOINTS, MODEL, RESULT, RunDir, RunSpec
from vitlab.runs.progress import Display, say
from vitlab.runs.training.account import Books, tell_bad, tell_unused, write_quarantine
from vitlab.runs.training.data import RunData, open_run_data
from vitlab.runs.training.distillation import Teacher, open_teacher, student_of
from vitlab.runs.training.exactness import check_unchanged
from vitlab.runs.training.finishing import finish, model_fault, read_result, rebuild, withdraw_result
from vitlab.runs.training.initial_state import initial_state, sharded_state
from vitlab.runs.training.masked_patches import corruption_of, prediction_of
from vitlab.runs.training.session import Session
from vitlab.runs.training.validation import validate
from vitlab.strict_json import from_json
from vitlab.train.checkpoints.checkpoints import Checkpoints
from vitlab.train.checkpoints.files import steps_in
from vitlab.train.loop import JUDGE, Hook, Loop
from vitlab.train.objectives import distilled, supervised
from vitlab.train.state import TrainState
from vitlab.train.tensorboard import tensorboard_writer
from vitlab.train.update import Examples, Update, recompute_activations
from vitlab.world.device import differences, environment
from vitlab.world.group import ALONE, World, device_of
from vitlab.world.parallel import choose, wrapped

SAVES, LOGGED = 20, 20_000  # times per run, unless the execution says otherwise
Watcher = Callable[[dict[str, object]], object]  # gets every event as it is recorded


@dataclass(frozen=True)
class Places:
    """Where the data and the teacher of a run are now, if they have moved."""

    data: str = ""
    validation: str = ""
    test: str = ""
    teacher: str = ""

    def of(self, spec: RunSpec, path: Path) -> RunSpec:
        """The run with everything in its new place; raises for a place of something the run never had."""
        for name, place in vars(self).items():
            require(not place or bool(getattr(spec, name)), f"{path} has no {name} that could have moved")
        return replace(spec, **{name: place for name, place in vars(self).items() if place})


AS_BEFORE = Places()


@dataclass(frozen=True)
class Loaded:
    """What the creator of a run has in memory already; the rest is opened from what run.json names.

    `data` is all of the run's data, `sources` only some of its sets, by name.
    """

    data: RunData | None = None
    start: Model | None = None
    teacher: Teacher | None = None
    sources: Mapping[str, Source] = field(default_factory=dict)


NOTHING = Loaded()


def train_run(
    run: RunDir,
    console: Console,
    *,
    loaded: Loaded = NOTHING,
    places: Places = AS_BEFORE,
    execution: Execution | None = None,
    allow_changed: bool = False,
    known: Path | None = None,
    world: World = ALONE,
    on_event: Watcher | None = None,
) -> int:
    """Train the run of a folder, from its newest checkpoint if it has one; returns the exit code.

    Data must be what it was when the run began, unless `allow_changed`. Data and teacher may have moved to other
    `places`, and the `execution` may differ; what is learned does not. `known` is a record of what the data holds,
    where one exists. All ranks of a `world` call this; only rank 0 writes to the folder and prints.
    """
    with run.held(), undisturbed():
        run.mend()
        spec = places.of(run.spec(), run.path)
        spec = replace(spec, execution=execution or spec.execution)
        card = from_json(DataCard, run.card())
        session = Session(run, spec, console, world)
        if world.first((run.path / RESULT).exists) and _is_complete(session, card):
            say(console, f"{run.path} is finished; its model is in {run.path / MODEL}")
            return 0
        data = loaded.data or open_run_data(
            spec, card, sources=loaded.sources, allow_changed=allow_changed, command=run.command
        )
        world.meet()  # a rank that already has the data open waits for the others, however long they take
        cards = card, data.card
        how = {"allow_changed": allow_changed, "known": known}
        world.first(partial(check_unchanged, run, data.sets, cards, console, **how))
        state, checkpoints = _open_state(session, loaded.start)
        _restore_or_begin(session, data, state, checkpoints)
        teacher = loaded.teacher or (open_teacher(spec, data.card, command=run.command) if spec.teacher else None)
        code = Training(session, data, state, checkpoints, on_event).run_loop(teacher)
        if code == 0:
            finish(session, data, state, checkpoints)
        return code


def _open_state(session: Session, start: Model | None = None) -> tuple[TrainState, Checkpoints]:
    """The state of step 0, or an empty one for a checkpoint to fill; and the checkpoints."""
    run, spec, console, world = session.run, session.spec, session.console, session.world
    device = device_of(world, spec.execution.device)
    kind, why = choose(spec.execution.parallel, world, device, count_spec(spec.model).parameters)
    _check_kind(spec, kind, world)
    if world.ranks > 1:
        say(console, f"ranks   {world.ranks}, {kind}: {why}")
    here = environment(device) | _execution(spec, kind, world)
    checkpoints = Checkpoints(
        run.path / CHECKPOINTS, keep=spec.execution.keep, environment=here, learnt=run.learnt(), world=world
    )
    is_begun = bool(world.first(checkpoints.steps))
    if kind == "fsdp":
        return sharded_state(spec, device, world, start, is_empty=is_begun), checkpoints
    return initial_state(spec, device, start, is_empty=is_begun), checkpoints


def _restore_or_begin(session: Session, data: RunData, state: TrainState, checkpoints: Checkpoints) -> None:
    """Fill the state from the newest checkpoint, or save that of step 0; either is recorded as an event."""
    run, spec, console, world = session.run, session.spec, session.console, session.world
    restored = checkpoints.restore(state)
    here = checkpoints.environment
    if restored is None:
        require(
            not world.first(partial(_has_saved, run)),
            f"{run.path / CHECKPOINTS} has no checkpoint, but the run had saved some; restore them, or start a new run",
        )
        run.record("started", {"step": 0, **here})
        if spec.recipe.masking is None:
            tell_unused(console, world.first(partial(unused_classes, data.train)), spec.model.classes)
        checkpoints.save(state, wait=True)
        return
    changed = differences({"ranks": "1"} | restored.environment, here)
    run.record("resumed", {"step": restored.step, "damaged": list(restored.damaged), "changed": changed})
    for damage in restored.damaged:
        say(console, f"damaged, set aside: {damage}")
    say(console, f"continuing after step {restored.step:,}")
    if changed:
        say(console, f"not bit-exact because {'; '.join(changed)}")


def _has_saved(run: RunDir) -> bool:
    return any(run.events("saved"))


def _is_complete(session: Session, card: DataCard) -> bool:
    """Whether a finished run has its model; one that is missing or damaged is written again from a checkpoint.

    If the last checkpoint is lost as well but an earlier one exists, the run counts as unfinished.
    """
    run, console, world = session.run, session.console, session.world
    if not world.first(partial(read_result, run)):
        world.first(partial(withdraw_result, run))
        say(console, f"{run.path / RESULT} is damaged and was set aside; the end of the run is repeated")
        return False
    fault = world.first(partial(model_fault, run))
    if not fault:
        return True
    say(console, f"the run is finished, but its model cannot be used: {fault}")
    kept = world.first(partial(_steps_kept, run))
    require(
        bool(kept),
        f"the model of {run.path} cannot be restored, because {run.path / CHECKPOINTS} has no checkpoint; bring back "
        f"{run.path / MODEL} or the checkpoints, or start a new run",
    )
    state, checkpoints = _open_state(session)
    restored = checkpoints.restore(state)
    assert restored is not None, "there are checkpoints"
    if rebuild(session, card, state, checkpoints):
        return True
    world.first(partial(withdraw_result, run))
    say(console, f"the last checkpoint is lost; training continues after step {restored.step:,}")
    return False


def _steps_kept(run: RunDir) -> list[int]:
    return steps_in(run.path / CHECKPOINTS) if (run.path / CHECKPOINTS).is_dir() else []


def _execution(spec: RunSpec, kind: str, world: World) -> dict[str, str]:
    """The settings of the execution that affect the bits."""
    how = spec.execution
    ranks = str(world.ranks) if kind == "alone" else f"{world.ranks} {kind}"
    return {
        "precision": how.precision,
        "micro-batch": str(how.micro_batch),
        "compile": str(how.compile),
        "ranks": "any" if how.exact_elastic else ranks,
    }


def _check_kind(spec: RunSpec, kind: str, world: World) -> None:
    """Raise what only the launch shows: which parallelism `auto` becomes, and how many ranks there are."""
    if kind == "fsdp":
        replace(spec.execution, parallel="fsdp")
    shards = spec.recipe.shards
    require(
        not spec.execution.exact_elastic or shards > 1 or spec.recipe.batch == 1,
        "the run began without --exact-elastic and sums whole batches; leave it out, or start a new run with it",
    )
    require(
        not spec.recipe.mixes or world.ranks <= shards,
        f"the run mixes pictures inside {shards} part(s) of a batch, and {world.ranks} ranks cannot share them without "
        f"changing what is learned; use at most {shards} ranks, or start a run with --shards {world.ranks}",
    )


class Training:
    """The steps of a run: its batches, its objective, and what happens at every event."""

    def __init__(
        self,
        session: Session,
        data: RunData,
        state: TrainState,
        checkpoints: Checkpoints,
        on_event: Watcher | None = None,
    ) -> None:
        self.session, self.data, self.state, self.checkpoints, self.on_event = (
            session,
            data,
            state,
            checkpoints,
            on_event,
        )
        self.run, self.spec, self.console, self.world = session.run, session.spec, session.console, session.world
        self.device = next(state.module.parameters()).device
        self.account = self._opened_account()
        self.books = Books(self.account, self.spec.execution.max_bad, self.world)
        self.crowding = Crowding(self.spec.execution.workers) if self.device.type == "cpu" else None
        self.display = Display(self.console, self.spec.recipe.schedule.total, state.progress.step)
        self.log = None

    def run_loop(self, teacher: Teacher | None) -> int:
        """Run the loop to its end or to a stop; returns its exit code."""
        recipe, execution, state = self.spec.recipe, self.spec.execution, self.state
        forward: nn.Module = state.module if teacher is None else student_of(self.spec, state.module)
        if execution.recompute:
            recompute_activations(state.module)
        if execution.compile:
            forward = torch.compile(forward)  # pyrefly: ignore[bad-assignment] - calls like the module
        parallel = wrapped(forward, self.world, is_exact=execution.exact_elastic)
        if recipe.masking is not None:
            objective = prediction_of(self.spec)
        else:
            objective = supervised(recipe, class_weights(self.spec, self.data.train, self.device))
        if teacher is not None:
            require(not self.data.train.is_prepared, "a teacher needs pictures, but the data set gives float tensors")
            objective = distilled(recipe.distillation, objective, teacher.to(self.device))
        update = Update(
            recipe,
            execution,
            seed=self.spec.seed,
            prepare=as_model_input(self.data.train, self.spec.model.conventions.preprocessing),
            objective=objective,
            world=self.world,
            parallel=parallel,
        )
        total = recipe.schedule.total
        loop = Loop(
            total=total,
            save_every=execution.save_every or max(total // SAVES, 1),
            log_every=max(total // LOGGED, 1),
            checkpoints=self.checkpoints,
            record=self.record,
            hooks=self._hooks(),
            patience=recipe.patience,
            settle_window=recipe.settle_window,
            warmup=recipe.schedule.warmup,
            before_save=self.keep_books,
        )
        with ExitStack() as stack:
            stack.enter_context(self.display)
            if execution.tensorboard and self.run.writes:
                self.log = stack.enter_context(tensorboard_writer(self.run.path))
            try:
                return loop.run(state, parallel.forward, update, self._examples())
            except TooManyBadImages:
                write_quarantine(self.run, self.account)  # the error names it; validation has a file of its own
                raise
            except OSError:
                self.run.check_there()  # the failure of a background writer may only be a consequence
                raise
            except (MemoryError, RuntimeError) as error:
                raise self._explained(error) from error

    def record(self, kind: str, values: Mapping[str, object]) -> None:
        """Write an event to the run's folder, show it, and pass it on."""
        self.run.record(kind, values)
        self.display.show(kind, values)
        if self.crowding is not None and kind == "step" and (why := self.crowding.notice()):
            self.run.record("crowded", {"step": values["step"], "why": why})
            self.display.say(advice(why, self.run.command))
        if self.log is not None:
            self.log.add(kind, values)
        if self.on_event is not None:
            self.on_event({"event": kind, **values})

    def keep_books(self, state: TrainState) -> None:
        """Put the account of all ranks into a state that is about to be saved."""
        self.books.settle()
        state.progress.books = self.account.to_json()
        tell_bad(self.console, self.run, self.account, write_quarantine(self.run, self.account))
        self.run.sync()

    def _opened_account(self) -> Account:
        """The account of the checkpoint, or a new one."""
        data, saved = self.data, self.state.progress.books
        found = len(data.train) + data.excluded.total()
        account = Account.from_json(saved) if saved else Account(found, data.excluded)
        if account.samples != len(data.train):  # continued on other samples
            account.found, account.excluded = found, data.excluded
        return account

    def _examples(self) -> Generator[Examples]:
        """This rank's shares of the batches from the state's step on, as inputs and targets on the device."""
        spec, books, recipe = self.spec, self.books, self.spec.recipe
        batches = training_batches(
            self.data.train,
            order_of(self.data.train, spec.seed),
            batch=recipe.batch,
            size=recipe.image,
            augmentation=recipe.augmentation,
            start=self.state.progress.step,
            stop=recipe.schedule.total,
            rank=self.world.rank,
            ranks=self.world.ranks,
            slices=recipe.shards,
            corruption=None if recipe.masking is None else corruption_of(spec),
            workers=spec.execution.workers,
            account=books.own,
            max_bad=books.own_limit,
            device=self.device,
        )
        for batch in books.kept(batches):
            yield Examples(batch.pixels, _targets(batch, spec), slice_sizes(batch, recipe.batch, recipe.shards))

    def _hooks(self) -> tuple[Hook, ...]:
        if self.data.validation is None:
            return ()
        measure = partial(validate, self.session, self.data)
        return (Hook(JUDGE, self.spec.recipe.validate_every, measure),)

    def _explained(self, error: BaseException) -> BaseException:
        """An error that says what to change where memory ran out; any other error as it is."""
        signs = "out of memory", "can't allocate memory", "not enough memory"
        if not isinstance(error, MemoryError) and not any(sign in str(error) for sign in signs):
            return error
        micro, is_begun = self.spec.execution.micro_batch or self.spec.recipe.batch, self.state.progress.step > 0
        return MemoryError(
            f"out of memory with {micro} images at once; --micro-batch {max(micro // 2, 1)} computes the same in "
            f"smaller pieces, --recompute keeps fewer activations; "
            f"{'vitlab resume takes both' if is_begun else 'add one of them'}"
        )


def _targets(batch: Batch, spec: RunSpec) -> Tensor:
    """(n, K): several ones for the sigmoid loss, exactly one for softmax; the plans where patches are predicted."""
    if batch.plans is not None:
        return batch.plans
    if spec.recipe.loss == "softmax":
        batch.one_label()
    return batch.multi_hot(spec.model.classes)


def class_weights(spec: RunSpec, source: Source, device: torch.device) -> Tensor | None:
    """(K,) inversely proportional to how often a class occurs, 1 on average over the samples; None without them."""
    if spec.recipe.class_weights == "none":
        return None
    counts = Counter(label for number in range(len(source)) for label in source.label(number))
    weights = [len(source) / (len(counts) * counts[k]) if counts[k] else 0.0 for k in range(spec.model.classes)]
    return torch.tensor(weights, device=device)
