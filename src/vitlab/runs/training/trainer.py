"""Train the run of a folder to its end: what `pretrain`, `finetune`, `resume` and `reproduce` all call."""

import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from rich.console import Console
from torch import nn

from vitlab.data.loading.accounting import Account
from vitlab.data.loading.batches import order_of, slice_sizes, training_batches
from vitlab.data.source import Source
from vitlab.data.transforms.evaluation import as_model_input
from vitlab.errors import SIGNAL_CODES, Stopped, TooManyBadImages
from vitlab.models.build import Model
from vitlab.models.vit import make_lean
from vitlab.process.busy import Crowding, advice
from vitlab.process.interrupts import undisturbed
from vitlab.require import require
from vitlab.run_dir import MODEL, RESULT, RunDir
from vitlab.runs.progress import Display, say
from vitlab.runs.training.data import RankAccounts, RunData, open_run_data, read_card, tell_bad, write_quarantine
from vitlab.runs.training.exactness import check_unchanged
from vitlab.runs.training.finishing import finish, is_complete
from vitlab.runs.training.objective import Teacher, corruption_of, objective_of, open_teacher, student_of, targets_of
from vitlab.runs.training.state import Session, open_state, restore_or_begin
from vitlab.runs.training.validation import validate
from vitlab.spec.recipe import Execution
from vitlab.train.checkpoints.checkpoints import Checkpoints
from vitlab.train.loop import Loop
from vitlab.train.state import TrainState
from vitlab.train.streams import applied
from vitlab.train.tensorboard import tensorboard_writer
from vitlab.train.update import Examples, Update, recompute_activations
from vitlab.world.device import is_out_of_memory, products_in
from vitlab.world.group import ALONE, World
from vitlab.world.parallel import wrapped

Watcher = Callable[[dict[str, object]], object]  # gets every event as it is recorded


@dataclass(frozen=True)
class InMemory:
    """What the caller has in memory; the rest is opened from what run.json names.

    `data` is all of the run's data, `sources` only some of its sets, by name.
    """

    data: RunData | None = None
    start: Model | None = None
    teacher: Teacher | None = None
    sources: Mapping[str, Source] = field(default_factory=dict)


NOTHING = InMemory()


def check_watcher(on_event: Watcher | None) -> None:
    """Raise unless events can be passed on, before a folder is created."""
    require(on_event is None or callable(on_event), f"on_event is {on_event!r}; expected a function of one event")


def train_run(
    run: RunDir,
    console: Console,
    *,
    memory: InMemory = NOTHING,
    places: Mapping[str, str] = MappingProxyType({}),
    execution: Execution | None = None,
    allow_changed: bool = False,
    known: Path | None = None,
    world: World = ALONE,
    on_event: Watcher | None = None,
) -> int:
    """Train the run of a folder, from its newest checkpoint if it has one; returns the exit code.

    Data must be what it was when the run began, unless `allow_changed`. `places` are those of data, validation, test or
    teacher that have moved; the `execution` may differ too, what is learned does not. `known` is an existing record of
    what the data holds. All ranks of a `world` call this; only rank 0 writes to the folder and prints.
    """
    with run.held(), undisturbed():
        run.mend()
        spec = run.spec()
        moved: dict[str, Any] = {name: place for name, place in places.items() if place}
        for name in moved:
            require(bool(getattr(spec, name)), f"{run.path} has no {name} that could have moved")
        spec = replace(spec, **moved, execution=execution or spec.execution)
        session = Session(run, spec, console, world)
        data = memory.data
        card = read_card(run) if data is None else data.card
        if world.first((run.path / RESULT).exists) and is_complete(session, card):
            say(console, f"{run.path} is finished; its model is in {run.path / MODEL}")
            return 0
        if data is None:
            sources, command = memory.sources, run.command
            data = open_run_data(spec, card, sources=sources, allow_changed=allow_changed, command=command)
        world.meet()  # a rank that already has the data open waits for the others, however long they take
        cards = card, data.card
        world.first(check_unchanged, run, data.sets, cards, console, allow_changed=allow_changed, known=known)
        state, checkpoints = open_state(session, memory.start)
        restore_or_begin(session, data, state, checkpoints)
        teacher = memory.teacher
        if teacher is None and spec.teacher:
            teacher = open_teacher(spec, data.card, command=run.command)
        first = state.progress.step
        training = Training(session, data, state, checkpoints, on_event)
        code = training.run_loop(teacher)
        if code == 0:
            with products_in("fp32", training.device):
                finish(session, data, state, checkpoints, is_shown=state.progress.step > first)
        return code


def train_or_stop(run: RunDir, console: Console, **how: Any) -> None:
    """Train the run of a folder; `how` are the options of `train_run`. Raises Stopped if a signal stopped it.

    Of several ranks, only the one that writes names the folder.
    """
    path = run.path if run.writes else None
    try:
        code = train_run(run, console, **how)
    except KeyboardInterrupt:
        raise Stopped(SIGNAL_CODES[signal.SIGINT], path, run.command) from None
    if code:
        raise Stopped(code, path, run.command, is_agreed=True)


class Training:
    """The steps of a run: its batches, its objective, and what happens at every event."""

    def __init__(
        self, session: Session, data: RunData, state: TrainState, checkpoints: Checkpoints, on_event: Watcher | None
    ) -> None:
        self.session, self.data, self.state, self.checkpoints = session, data, state, checkpoints
        self.run, self.spec, self.console, self.world = session
        self.on_event = on_event
        self.device = next(state.module.parameters()).device
        self.account = self._opened_account()
        self.accounts = RankAccounts(self.account, self.spec.execution.max_bad, self.world)
        self.crowding = Crowding(self.spec.execution.workers) if self.device.type == "cpu" else None
        self.display = Display(self.console, self.spec.recipe.schedule.total, state.progress.step)
        self.log = None

    def run_loop(self, teacher: Teacher | None) -> int:
        """Run the loop to its end or to a stop; returns its exit code."""
        recipe, state = self.spec.recipe, self.state
        streams = applied(self.spec.model, self.spec.execution, ranks=self.world.ranks)
        execution = replace(self.spec.execution, streams=streams)
        objective = objective_of(self.spec, self.data.train, teacher, self.device)
        forward: nn.Module = state.module if teacher is None else student_of(self.spec, state.module)
        if streams:
            make_lean(state.module)
        if execution.recompute:
            recompute_activations(state.module)
        if execution.compile:
            forward = torch.compile(forward)  # pyrefly: ignore[bad-assignment] - calls like the module
        parallel = wrapped(forward, self.world, is_exact=execution.exact_elastic)
        update = Update(
            recipe,
            execution,
            seed=self.spec.seed,
            prepare=as_model_input(self.data.train, self.spec.model.conventions.preprocessing),
            objective=objective,
            world=self.world,
            parallel=parallel,
        )
        measure = None if self.data.validation is None else partial(validate, self.session, self.data)
        loop = Loop(recipe, execution, self.checkpoints, self.record, measure, self.keep_account)
        with ExitStack() as stack:
            stack.enter_context(self.display)
            stack.enter_context(products_in(execution.precision, self.device))
            if execution.tensorboard and self.run.writes:
                self.log = stack.enter_context(tensorboard_writer(self.run.path))
            try:
                return loop.run(state, parallel.forward, update, self._examples())
            except TooManyBadImages:
                write_quarantine(self.run, self.account)  # the error names it; validation has its own file
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

    def keep_account(self, state: TrainState) -> None:
        """Put the account of all ranks into a state that is about to be saved."""
        self.accounts.settle()
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
        spec, recipe = self.spec, self.spec.recipe
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
            account=self.accounts.local,
            max_bad=self.accounts.local_limit,
            device=self.device,
        )
        for batch in self.accounts.kept(batches):
            yield Examples(batch.pixels, targets_of(batch, spec), slice_sizes(batch, recipe.batch, recipe.shards))

    def _explained(self, error: BaseException) -> BaseException:
        """An error that says what to change where memory ran out; any other error as it is."""
        if not is_out_of_memory(error):
            return error
        micro = self.spec.execution.micro_batch or self.spec.recipe.batch
        way = "vitlab resume takes both" if self.state.progress.step else "add one of them"
        return MemoryError(
            f"out of memory with {micro} images at once; a micro_batch= of {max(micro // 2, 1)} computes the same in "
            f"smaller pieces, recompute= keeps fewer activations; {way}"
        )
