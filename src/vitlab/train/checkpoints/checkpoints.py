"""Crash-safe checkpoints: written to a temporary folder, synced, renamed and verified before old ones are removed."""

import copy
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from torch import Tensor

from vitlab.files import store
from vitlab.train.checkpoints import files
from vitlab.train.state import Progress, TrainState
from vitlab.world.group import ALONE, World
from vitlab.world.parallel import is_cut, is_sharded, own_part


class NotSaved(OSError):  # noqa: N818 - says what is wrong
    """A checkpoint could not be written; the previous one is intact."""


@dataclass
class _Pending:
    """A checkpoint whose parts the ranks are writing; `temporary` is None if it exists already."""

    progress: Progress
    path: Path
    temporary: Path | None
    layout: dict[str, object]
    entries: dict[str, store.Entry] = field(default_factory=dict)


@dataclass(frozen=True)
class Restored:
    """A restored checkpoint: its step and environment, and the damaged checkpoints that were skipped."""

    step: int
    environment: dict[str, str]
    damaged: tuple[str, ...]


class Checkpoints:
    """The checkpoints of one run, for the process that holds the run's lock.

    On several ranks all call the same methods at the same step. Rank 0 writes a replicated state. Of a sharded state
    every rank writes its part to a temporary folder, which rank 0 renames when all are done.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        environment: Mapping[str, str],
        learned: Mapping[str, object] | None = None,
        world: World = ALONE,
    ) -> None:
        self.folder, self.keep, self.environment, self.world = folder, keep, dict(environment), world
        self.learned = dict(learned or {})
        self._writer: threading.Thread | None = None
        self._error: Exception | None = None
        self._pending: _Pending | None = None
        world.first(partial(store.make_folder, folder))
        world.first(partial(store.remove_leftovers, folder))

    @property
    def status(self) -> tuple[bool, bool, bool]:
        """Whether this rank failed to write, whether it is writing, and whether a checkpoint is unpublished."""
        is_writing = self._writer is not None and self._writer.is_alive()
        return self._error is not None, is_writing, self._pending is not None

    def save(self, state: TrainState, *, wait: bool = False) -> None:
        """Save the state, in the background unless `wait`; raises the error of the previous save, if it failed.

        Raises for a state with NaN or infinity. The best checkpoint by the state's progress is kept and marked.
        """
        self.wait()
        if bad := next(filter(None, self.world.gather(state.first_nonfinite())), None):
            step = state.progress.step
            good = self.last_good(before=step)
            raise FloatingPointError(f"{bad} has NaN or infinity after step {step}; the state is not saved; {good}")
        progress = copy.deepcopy(state.progress)
        groups = state.groups()
        write = self._begin(progress, groups) if is_cut(state.module) else partial(self._write, progress)
        own = {group: _own(tensors, self.world) for group, tensors in groups.items()}
        if not (self.world.leads or self._pending):
            write = None
        if wait:  # nothing changes the tensors meanwhile, so they are not copied
            if write is not None:
                write(own)
            self.wait()
        elif write is not None:
            copies = {group: {n: t.to("cpu", copy=True) for n, t in tensors.items()} for group, tensors in own.items()}
            self._writer = threading.Thread(target=write, args=(copies,), name="checkpoint writer")
            self._writer.start()

    def wait(self) -> None:
        """Wait until no rank is writing; raises the error of a failed save."""
        self.close()
        self.world.meet()
        self.settle()

    def close(self) -> None:
        """Wait until this rank is not writing."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def check(self) -> None:
        """Raise NotSaved if a save failed on any rank; all ranks must call it."""
        error, self._error = self._error, None
        told = next(filter(None, self.world.gather(str(error) if error is not None else "")), "")
        if error is not None or told:
            self._give_up()
            kept = self.steps()
            last = f"the last good one is of step {kept[-1]:,}" if kept else "there is no earlier one"
            raise NotSaved(f"a checkpoint could not be written to {self.folder}: {told}; {last}") from error

    def settle(self) -> None:
        """Publish a checkpoint that all ranks have written; raises if a save failed. All ranks must call it."""
        self.check()
        pending, self._pending = self._pending, None
        if pending is not None:
            entries = {name: entry for part in self.world.gather(pending.entries) for name, entry in part.items()}
            self.world.first(partial(self._publish, pending, entries))
            self.check()

    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, ascending."""
        return files.steps_in(self.folder)

    def last_good(self, before: int) -> str:
        """A phrase that names the newest checkpoint before a step with NaN, for error messages."""
        self.close()
        kept = [step for step in self.steps() if step < before]
        if not kept:
            return "no earlier checkpoint is kept"
        return f"the last good checkpoint is of step {kept[-1]:,}: {self.folder / files.name_of(kept[-1])}"

    def restore(self, state: TrainState) -> Restored | None:
        """Load the newest intact checkpoint into the state; returns None if there is no checkpoint at all.

        All hashes are verified before a tensor is used. Damaged checkpoints are renamed and reported.
        """
        damaged = []
        for step in reversed(self.world.first(self.steps)):
            path = self.folder / files.name_of(step)
            if fault := self.fault(path):
                damaged.append(f"{path.name}: {fault}")
                self.world.first(lambda path=path: str(files.set_aside(path)))
                continue
            saved = files.load_checkpoint(path, state)
            self.world.first(partial(files.point, self.folder, files.LATEST, step))
            self.world.first(partial(self._mark_best, state.progress))  # its writer may have died just before
            return Restored(step, saved, tuple(damaged))
        aside = files.damaged_in(self.folder)
        if aside or (self.folder / files.LATEST).exists():  # never restart silently when checkpoints are lost
            told = "; ".join(damaged) or ", ".join(aside) or "all are missing"
            raise ValueError(f"no checkpoint in {self.folder} is intact: {told}; restore a copy, or start a new run")
        return None

    def fault(self, path: Path) -> str:
        """What is wrong with a checkpoint, or an empty string; the ranks share the reading and all get the answer."""
        found = ""
        try:
            files.verify_checkpoint(path, (self.world.rank, self.world.ranks))
        except (OSError, ValueError) as error:
            found = str(error)
        self.world.meet()
        return next(filter(None, self.world.gather(found)), "")

    def best(self) -> int | None:
        """The step of the best checkpoint, if one is marked and exists."""
        return files.best_in(self.folder)

    def _write(self, progress: Progress, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        path = self.folder / files.name_of(progress.step)
        try:
            if not path.exists():  # a repeated save of a step has the same content
                store.write_folder(path, files.tensor_writers(groups) | self._state_writer(progress))
            files.verify_checkpoint(path)
            self._announce(progress)
        except Exception as error:  # raised in the main thread by `check`
            self._error = error

    def _state_writer(self, progress: Progress) -> dict[str, store.Writer]:
        return {files.STATE: store.json_writer(files.state_values(progress, self.environment, self.learned))}

    def _announce(self, progress: Progress) -> None:
        """Point to a complete checkpoint and remove old ones."""
        files.point(self.folder, files.LATEST, progress.step)
        self._mark_best(progress)
        if not progress.skipped_in_a_row:  # a state that may have diverged does not replace good ones
            self._prune()

    def _give_up(self) -> None:
        """Remove the parts of a checkpoint that a rank failed to write."""
        pending, self._pending = self._pending, None
        if pending is not None and pending.temporary is not None:
            self.close()
            self.world.meet()
            self.world.first(lambda: shutil.rmtree(str(pending.temporary), ignore_errors=True))

    # -- A sharded state, of which each rank has a part -------------------------------------------

    def _begin(self, progress: Progress, groups: Mapping[str, Mapping[str, Tensor]]) -> Callable[..., None]:
        """Create a temporary folder for all ranks; returns a function that writes this rank's part."""
        path = self.folder / files.name_of(progress.step)
        temporary = self.world.first(lambda: None if path.exists() else self._opened(path))
        layout = files.layout_of(groups, self.world)
        self._pending = _Pending(progress, path, Path(temporary) if temporary else None, layout)
        return partial(self._write_part, self._pending)

    def _opened(self, path: Path) -> str | None:
        """Create the temporary folder of a checkpoint; an error is kept for `check`."""
        try:
            return str(store.begin_folder(path))
        except OSError as error:
            self._error = error
            return None

    def _write_part(self, pending: "_Pending", groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        if pending.temporary is None:
            return
        writers = files.tensor_writers(groups, files.part_name(self.world.rank, self.world.ranks))
        if self.world.leads:
            writers |= self._state_writer(pending.progress) | {files.LAYOUT: store.json_writer(pending.layout)}
        try:
            pending.entries |= store.write_files(pending.temporary, writers)
        except Exception as error:  # see `_write`
            self._error = error

    def _publish(self, pending: "_Pending", entries: Mapping[str, store.Entry]) -> None:
        try:
            if pending.temporary is not None:
                store.finish_folder(pending.path, pending.temporary, entries)
            self._announce(pending.progress)
        except Exception as error:  # see `_write`
            self._error = error
            if pending.temporary is not None:
                shutil.rmtree(pending.temporary, ignore_errors=True)

    def _mark_best(self, progress: Progress) -> None:
        step = progress.best_step
        if progress.best is not None and step != self.best() and (self.folder / files.name_of(step)).is_dir():
            files.point(self.folder, files.BEST, step)

    def _prune(self) -> None:
        best = self.best()
        for step in self.steps()[: -self.keep]:
            if step != best:
                store.remove_folder(self.folder / files.name_of(step))


def _own(tensors: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """The tensors of a group that this rank writes: its rows of split ones, and on rank 0 all others."""
    return {n: own_part(t) for n, t in tensors.items() if world.leads or (is_sharded(t) and len(own_part(t)))}
