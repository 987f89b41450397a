"""Checkpoints that survive any death: written beside, synced, renamed, proven, and only then the old ones go.

checkpoints/step-00000100/  model.safetensors  optimizer.safetensors  [average.safetensors]  state.json  manifest.json
checkpoints/LATEST          the name of the newest
checkpoints/BEST            the name of the best by validation, where there is one
"""

import copy
import re
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitlab.store import (
    Writer,
    json_writer,
    make_folder,
    remove_folder,
    remove_leftovers,
    replacing,
    verify_folder,
    write_folder,
)
from vitlab.strict_json import read_json, require
from vitlab.train.state import Progress, TrainState, progress_from

VERSION = 1
STATE, LATEST, BEST = "state.json", "LATEST", "BEST"
DAMAGED = "damaged-"  # what stands before the name of one that is set aside
NAME = re.compile(r"step-(\d{8,})")


class NotSaved(OSError):  # noqa: N818 - says what is wrong
    """A checkpoint could not be written; the one before it is untouched."""


@dataclass(frozen=True)
class Restored:
    """What a run continues from: the checkpoint's step and environment, and what was found damaged on the way."""

    step: int
    environment: dict[str, str]
    damaged: tuple[str, ...]


class Checkpoints:
    """The checkpoints of one run; whoever uses them holds the run's lock."""

    def __init__(self, folder: Path, *, keep: int, environment: Mapping[str, str]) -> None:
        self.folder, self.keep, self.environment = folder, keep, dict(environment)
        self._writer: threading.Thread | None = None
        self._error: Exception | None = None
        make_folder(folder)
        remove_leftovers(folder)

    def save(self, state: TrainState, *, wait: bool = False) -> None:
        """Write the state as it is now, in the background unless `wait`; raises what the last writing met.

        A state that holds NaN or infinity is refused. The best by the state's progress is kept and marked.
        """
        self.wait()
        if bad := state.first_nonfinite():
            raise FloatingPointError(f"{bad} holds NaN or infinity after step {state.progress.step}; it is not saved")
        progress = copy.deepcopy(state.progress)
        groups = state.groups()
        if wait:  # nobody changes them while they are written
            self._write(progress, groups)
        else:
            copies = {
                group: {n: t.to("cpu", copy=True) for n, t in tensors.items()} for group, tensors in groups.items()
            }
            self._writer = threading.Thread(target=self._write, args=(progress, copies), name="checkpoint writer")
            self._writer.start()
        self.check()

    def wait(self) -> None:
        """Return when nothing is being written; raises what the writing met."""
        self.close()
        self.check()

    def close(self) -> None:
        """Return when nothing is being written."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def check(self) -> None:
        """Raise what a writing in the background met."""
        error, self._error = self._error, None
        if error is not None:
            kept = self.steps()
            last = f"the last good one is of step {kept[-1]:,}" if kept else "there is none before it"
            raise NotSaved(f"a checkpoint could not be written to {self.folder}: {error}; {last}") from error

    def steps(self) -> list[int]:
        """The steps of all whole checkpoints, ascending."""
        found = (NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def restore(self, state: TrainState) -> Restored | None:
        """Fill the state from the newest checkpoint that is intact, or return None when there is none at all.

        Every byte is checked before a tensor is used. Damaged checkpoints are set aside under another name and told.
        """
        damaged = []
        for step in reversed(self.steps()):
            path = self.folder / name_of(step)
            try:
                verify_checkpoint(path)
            except (OSError, ValueError) as error:
                damaged.append(f"{path.name}: {error}")
                path.rename(_free(self.folder / f"{DAMAGED}{path.name}"))
                continue
            saved = load_checkpoint(path, state)
            self._point(LATEST, step)
            self._mark_best(state.progress)  # its writer may have died just before
            return Restored(step, saved, tuple(damaged))
        aside = sorted(path.name for path in self.folder.glob(f"{DAMAGED}*"))
        if aside or (self.folder / LATEST).exists():  # a run that has lost its work does not begin anew in silence
            told = "; ".join(damaged) or ", ".join(aside) or "all are gone"
            raise ValueError(f"no checkpoint in {self.folder} is intact: {told}; bring one back, or start a new run")
        return None

    def best(self) -> int | None:
        """The step of the best checkpoint, if one was marked and is there."""
        try:
            match = NAME.fullmatch((self.folder / BEST).read_text(encoding="utf-8").strip())
        except OSError:
            return None
        return int(match[1]) if match and (self.folder / match[0]).is_dir() else None

    def _write(self, progress: Progress, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        path = self.folder / name_of(progress.step)
        values = {"version": VERSION, "progress": asdict(progress), "environment": self.environment}
        try:
            if not path.exists():  # a repeated save of the same step has the same content
                files: dict[str, Writer] = {
                    f"{name}.safetensors": partial(_save, group) for name, group in groups.items()
                }
                write_folder(path, files | {STATE: json_writer(values)})
            verify_checkpoint(path)
            self._point(LATEST, progress.step)
            self._mark_best(progress)
            self._prune()
        except Exception as error:  # whatever it is, it surfaces in the run's own thread
            self._error = error

    def _point(self, pointer: str, step: int) -> None:
        with replacing(self.folder / pointer) as temporary:
            temporary.write_text(f"{name_of(step)}\n", encoding="utf-8")

    def _mark_best(self, progress: Progress) -> None:
        step = progress.best_step
        if progress.best is not None and step != self.best() and (self.folder / name_of(step)).is_dir():
            self._point(BEST, step)

    def _prune(self) -> None:
        best = self.best()
        for step in self.steps()[: -self.keep]:
            if step != best:
                remove_folder(self.folder / name_of(step))


def name_of(step: int) -> str:
    """The folder of a step's checkpoint; names sort as steps do."""
    return f"step-{step:08d}"


def verify_checkpoint(path: Path) -> None:
    """Raise unless every file of the checkpoint is as it was written."""
    verify_folder(path, ("model.safetensors", "optimizer.safetensors", STATE))


def load_checkpoint(path: Path, state: TrainState) -> dict[str, str]:
    """Fill the state from a verified checkpoint; returns the environment it was made in."""
    values = cast(dict[str, Any], read_json(path / STATE))
    require(isinstance(values, dict), f"{path / STATE} is not an object")
    version = values.get("version")
    require(version == VERSION, f"{path} has format version {version!r}, this vitlab reads {VERSION}")
    files = sorted(path.glob("*.safetensors"))
    opened = {file.name.removesuffix(".safetensors"): safe_open(file, "pt", device="cpu") for file in files}
    stored = {name: (list(file.keys()), file.get_tensor) for name, file in opened.items()}
    state.load(stored, progress_from(values["progress"]))
    return values["environment"]


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)


def _free(path: Path) -> Path:
    tries = (path.with_name(f"{path.name}-{n}") if n else path for n in range(10_000))
    return next(candidate for candidate in tries if not candidate.exists())
