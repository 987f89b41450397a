"""The training loop. To resume, call it again with a restored state."""

import contextlib
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass
from typing import NoReturn

from torch import nn

from vitlab.errors import Diverged
from vitlab.process.interrupts import Signals
from vitlab.spec.recipe import VALIDATION, Execution, Recipe, measure_of
from vitlab.train.checkpoints.checkpoints import Checkpoints
from vitlab.train.state import Progress, TrainState
from vitlab.train.update import Examples, Step, Update
from vitlab.world.group import World

SAVES, LOGGED = 20, 20_000  # times per run, unless the execution says otherwise; skipped steps are always logged
SKIPS_ALLOWED = 3  # in a row before the run stops
ADVICE = "lower the learning rate (schedule.peak=), clip gradients (optimizer.clip=) or check the data"


@dataclass(frozen=True)
class Loop:
    """The loop around the updates of a run: checkpoints, validation, events, early stopping.

    `record` is called with the kind and values of every event, `validate` with the model when a validation is due,
    `before_save` with the state just before it is saved.
    """

    recipe: Recipe
    execution: Execution
    checkpoints: Checkpoints
    record: Callable[[str, Mapping[str, object]], None]
    validate: Callable[[nn.Module], Mapping[str, float]] | None
    before_save: Callable[[TrainState], None]

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return self.recipe.schedule.total

    def run(self, state: TrainState, forward: nn.Module, update: Update, batches: Generator[Examples]) -> int:
        """Train to the end; returns 0, or the exit code of the signal that stopped it after the state was saved."""
        save_every = self.execution.save_every or max(self.total // SAVES, 1)
        with Signals() as signals, contextlib.closing(batches) as stream, contextlib.closing(self.checkpoints):
            while state.progress.step < self.total and not self._is_over(state):
                done = update(state, forward, next(stream))
                self._book(state, done)
                improved = self._measure(state)
                stop, is_saving = self._agreed(update.world, signals)
                if stop or improved or is_saving or state.progress.step % save_every == 0:
                    self._save(state, wait=bool(stop))
                if stop:
                    self.record("stopped", {"step": state.progress.step, "code": stop})
                    return stop
            self._check_end(state.progress)
            if state.progress.settling.has_settled and state.progress.step < self.total:
                self.record("settled", {"step": state.progress.step, "loss": state.progress.settling.lowest})
            self._save(state, wait=True)
        return 0

    def _agreed(self, world: World, signals: Signals) -> tuple[int, bool]:
        """Agree with the other ranks on signals: (exit code of a stop or 0, whether to save now)."""
        has_failed, is_writing, is_pending = self.checkpoints.status
        wishes = [signals.stop, signals.take_save(), has_failed, is_writing]
        stop, is_saving, has_failed, is_writing = world.most([int(wish) for wish in wishes])
        if has_failed or (is_pending and not is_writing):
            self.checkpoints.settle()
        return stop, bool(is_saving)

    def _book(self, state: TrainState, done: Step) -> None:
        progress = state.progress
        progress.step += 1
        progress.images += done.images
        if done.images:  # a batch of bad images only says nothing about the weights
            progress.skipped_in_a_row = progress.skipped_in_a_row + 1 if done.skipped else 0
        progress.skipped += done.skipped
        if window := self.recipe.settle_window:
            progress.settling.add(done.loss, window, is_warming=progress.step <= self.recipe.schedule.warmup)
        if done.skipped or progress.step % max(self.total // LOGGED, 1) == 0 or progress.step == self.total:
            self.record("step", {"step": progress.step, **asdict(done)})
        if progress.skipped_in_a_row >= SKIPS_ALLOWED:
            found = f"loss {done.loss} and gradient norm {done.gradient_norm} in step {progress.step:,}"
            self._diverged(progress, f"{found}; {SKIPS_ALLOWED} steps in a row were not finite")

    def _check_end(self, progress: Progress) -> None:
        """Raise if the last steps were not finite: the weights are the ones that made them so."""
        if number := progress.skipped_in_a_row:
            steps = f"last {number} steps were" if number > 1 else "last step was"
            self._diverged(progress, f"the {steps} not finite and changed nothing, so the run has no result")

    def _diverged(self, progress: Progress, why: str) -> NoReturn:
        good = self.checkpoints.last_good(before=progress.step - progress.skipped_in_a_row)
        raise Diverged(f"{why}; {ADVICE}; {good}")

    def _measure(self, state: TrainState) -> bool:
        """Validate if it is due; returns whether the result improved on the best so far."""
        step, every = state.progress.step, self.recipe.validate_every
        if self.validate is None or not (step == self.total or (every and step % every == 0)):
            return False
        found = dict(self.validate(state.trained.eval()))
        self.record(VALIDATION, {"step": step, **found})
        return _judge(state, found[measure_of(found)])

    def _is_over(self, state: TrainState) -> bool:
        """Whether the run stops early."""
        is_exhausted = 0 < self.recipe.patience <= state.progress.validations_since_best
        return is_exhausted or state.progress.settling.has_settled

    def _save(self, state: TrainState, *, wait: bool = False) -> None:
        self.before_save(state)
        self.checkpoints.save(state, wait=wait)
        self.record("saved", {"step": state.progress.step})


def _judge(state: TrainState, measured: float) -> bool:
    progress = state.progress
    if not math.isfinite(measured) or (progress.best is not None and measured <= progress.best):
        progress.validations_since_best += 1
        return False
    progress.best, progress.best_step, progress.validations_since_best = measured, progress.step, 0
    return True
