"""The run folder: what was asked for, what happened, and where everything else is. No torch.

run.json        the run, complete: model, recipe, data, seed, execution; never changed
data.json       the data's card: classes, number of samples, fingerprint
contents.npz    what the files of the data hold, see data/contents.py
not-exact.json  why the run differs from an uninterrupted one, if it was continued with changes
events.jsonl    what happened, one event per line; only appended to
quarantine.json unusable images with reason and hash, if there are any
checkpoints/    see train/checkpoints/files.py
result.json     the numbers at the end
masked-patches.png what a run of masked patches predicts, drawn at every validation and at the end
model/          the trained model, self-contained
*-answers.json  classes, confusions and worst mistakes of the last evaluation of the validation and test images
report.html     the report
"""

import contextlib
import json
import math
import os
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from vitlab.files.store import LOCK, locked, refuse_strange, refuse_unwritable, remove_leftovers, replacing, write_json
from vitlab.files.strict_json import from_json, read_json, to_json
from vitlab.files.user_files import broken_link, check_regular, stream_lines
from vitlab.require import require
from vitlab.spec import ModelSpec
from vitlab.spec.recipe import HARD, Execution, Recipe

VERSION = 1
RUN, DATA, EVENTS, QUARANTINE, RESULT = "run.json", "data.json", "events.jsonl", "quarantine.json", "result.json"
CHECKPOINTS, MODEL, TENSORBOARD = "checkpoints", "model", "tensorboard"
PICTURE, REPORT = "masked-patches.png", "report.html"
CONTENTS, NOT_EXACT = "contents.npz", "not-exact.json"
SWEEP, CHOICE, DIVERGED = "sweep.json", "choice.json", "diverged.json"  # of a sweep; the last in the folder of a point
OBJECT = "dataset:"  # data that is a torch Dataset of the caller, by the name of its class
LARGEST_RECORD = 2**34  # bytes of the contents; each sample takes a few dozen
LEARNED = ("kind", "model", "recipe", "seed", "start_sha256", "held_out", "teacher_sha256")  # what decides the weights


@dataclass(frozen=True)
class RunSpec:
    """A complete run: with the same data it learns the same weights.

    `start` are the weights that fine-tuning began with, empty for fresh ones; `teacher` is a model to distill from.
    `validation` is a data set, or empty for the share `held_out` of the training data.
    """

    format: Literal["vitlab-run"]
    version: int
    kind: Literal["pretrain", "finetune"]
    model: ModelSpec
    recipe: Recipe
    data: str
    execution: Execution
    seed: int = 0
    start: str = ""
    start_sha256: str = ""
    validation: str = ""
    held_out: float = 0.0
    test: str = ""
    teacher: str = ""
    teacher_sha256: str = ""

    def __post_init__(self) -> None:
        require(self.version == VERSION, f"{RUN} has format version {self.version}, this vitlab reads {VERSION}")
        require(0 <= self.held_out < 1, f"held_out {self.held_out} is outside [0, 1)")
        require(not (self.validation and self.held_out), "give a validation set or a held-out share, not both")
        if self.recipe.validate_every and not (self.validation or self.held_out):
            raise ValueError("validate_every and patience need images to validate on: give validation= or held_out=")
        untouched = (HARD, replace(HARD, weight=HARD.share))  # older files write the weight out
        if not self.teacher and self.recipe.distillation not in untouched:
            raise ValueError("distillation needs a teacher: give teacher=MODEL (pretrain, finetune and sweep have it)")
        if self.teacher and self.recipe.masking is not None:
            raise ValueError(
                "a teacher predicts classes, and masked patches have none; leave out teacher= or objective="
            )


class RunDir:
    """The folder of a run. A writer holds its lock (`held`); of several ranks only one `writes`.

    run.json is read once, when it is first needed.
    """

    def __init__(self, path: Path, *, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        self._command = ""
        self._values: dict[str, Any] | None = None  # of run.json
        self._spec: RunSpec | None = None
        self.dropped = 0  # events that could not be written
        self._identity: tuple[int, int] | None = None  # of the folder that is held
        self._is_new = False
        self._made: tuple[Path, ...] = ()  # folders that were created for the run, the innermost first

    @property
    def command(self) -> str:
        """How to continue the run: a command, or a call if the data is a Python object."""
        if self._command:
            return self._command
        if self.spec().data.startswith(OBJECT):
            return f"vitlab.open_run({str(self.path)!r}).resume(data=...)"
        return f"vitlab resume {shlex.quote(str(self.path))}"

    @command.setter
    def command(self, value: str) -> None:
        self._command = value

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder against other writers while the block runs."""
        with locked(self.path) if self.writes else contextlib.nullcontext():
            self._identity = _identity(self.path)
            yield

    def check_there(self) -> None:
        """Raise if the folder was moved or removed since it was locked: writing would create another one."""
        if self.writes and self._identity is not None and _identity(self.path) != self._identity:
            gone = f"{self.path} was moved or removed while the run was writing to it"
            raise FileNotFoundError(f"{gone}; if it was moved, move it back and continue with: {self.command}")

    def _may_write(self) -> bool:
        self.check_there()
        return self.writes

    @classmethod
    def create(cls, path: Path, spec: RunSpec, card: Mapping[str, object]) -> "RunDir":
        """Create the folder of a new run; raises if it holds a run, and says how to continue that."""
        run = cls(path)
        run._is_new = True
        run._made = tuple(folder for folder in (path, *path.absolute().parents) if not folder.exists())
        with locked(path):
            _refuse_run(path)
            run.write(DATA, dict(card))
            run._spec, run._values = spec, cast(dict[str, Any], to_json(spec))
            run.write(RUN, run._values)  # last: a folder that has it is complete
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDir":
        """Open a folder that holds a run."""
        missing = f"{path} holds no run: there is no {RUN} in it" if path.exists() else f"{path} does not exist"
        require((path / RUN).is_file(), broken_link(path) or missing)
        if (path / EVENTS).is_fifo():  # writing to it would block; events lost in other ways are counted
            check_regular(path / EVENTS)
        return cls(path)

    def spec(self) -> RunSpec:
        """The run as it was requested."""
        if self._spec is None:
            self._spec = from_json(RunSpec, self._read(), RUN)
        return self._spec

    def _read(self) -> dict[str, Any]:
        if self._values is None:
            self._values = cast(dict[str, Any], read_json(self.path / RUN))
        return self._values

    def learned(self) -> dict[str, object]:
        """The part of run.json that decides what is learned, besides the data, as the file states it."""
        values = self._read()
        found = {name: values[name] for name in LEARNED if name in values}
        return found | {"validation": bool(values.get("validation"))}

    def not_exact(self) -> list[str]:
        """Why the run differs from an uninterrupted one; empty if it does not."""
        return list(cast(list[str], read_json(self.path / NOT_EXACT))) if (self.path / NOT_EXACT).exists() else []

    def card(self) -> object:
        """What the data was, as JSON values."""
        has_card = (self.path / DATA).is_file()
        require(has_card, f"{self.path} has lost {DATA}, the description of its data; restore it, or start a new run")
        return read_json(self.path / DATA)

    @contextlib.contextmanager
    def withdrawn_unless_begun(self) -> Iterator[None]:
        """Train a new run inside this block. An error before the end of the first step removes what the run wrote,
        so that the corrected command can use the folder.
        """
        try:
            yield
        except Exception:
            if self._is_new and (self.path / RUN).is_file():
                with contextlib.suppress(OSError):  # such as another process using it, or files of others
                    self._withdraw()
            raise

    def _withdraw(self) -> None:
        self.check_there()
        with locked(self.path):
            saved = (int(folder.name.removeprefix("step-")) for folder in (self.path / CHECKPOINTS).glob("step-*[0-9]"))
            if any(self.events("step")) or any(saved):  # a step was completed
                return
            (self.path / RUN).unlink()  # first: without it there is no run, whatever else is left
            remove_leftovers(self.path)
            written = DATA, CONTENTS, NOT_EXACT, EVENTS, PICTURE
            for file in (*map(self.path.joinpath, written), *self.path.glob(f"*{QUARANTINE}")):
                file.unlink(missing_ok=True)
            for name in (CHECKPOINTS, TENSORBOARD):
                shutil.rmtree(self.path / name, ignore_errors=True)
        (self.path / LOCK).unlink()
        for folder in self._made:
            folder.rmdir()

    def write(self, name: str, value: object) -> None:
        """Write a JSON file of the run atomically."""
        if self._may_write():
            write_json(self.path / name, value)

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file of the run that is not JSON atomically."""
        if self._may_write():
            with replacing(self.path / name) as temporary:
                temporary.write_bytes(content)

    def record(self, kind: str, values: Mapping[str, object]) -> None:
        """Append an event. Events that cannot be written are counted and do not stop a run, unless the folder is gone.

        JSON has no NaN and no infinity: they are written as text, which float() reads.
        """
        if not self._may_write():
            return
        plain = {n: str(v) if isinstance(v, float) and not math.isfinite(v) else v for n, v in values.items()}
        line = json.dumps({"event": kind, "time": round(time.time(), 3), **plain}, allow_nan=False)
        try:
            with (self.path / EVENTS).open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError:
            self.dropped += 1

    def sync(self) -> None:
        """Make all events so far durable, if possible; called before every checkpoint."""
        if not self._may_write():
            return
        try:
            with (self.path / EVENTS).open("rb") as file:
                os.fsync(file.fileno())
        except OSError:
            self.dropped += 1

    def mend(self) -> None:
        """Remove what a crash left: an event that was cut short, temporary files."""
        if self.writes:
            remove_leftovers(self.path)
            with contextlib.suppress(OSError):  # see `record`
                _cut_last_line(self.path / EVENTS)

    def events(self, kind: str = "") -> Iterator[dict[str, Any]]:
        """Yield the events in order, all or of one kind; a line that a crash cut short is skipped."""
        if not (self.path / EVENTS).is_file():
            return
        for line in stream_lines(self.path / EVENTS):
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if not kind or event["event"] == kind:
                yield event

    def history(self, kind: str, value: str) -> dict[int, float]:
        """A value by step; of a step that was repeated after a crash, the last value."""
        return {event["step"]: float(event[value]) for event in self.events(kind)}


def answers_file(name: str) -> str:
    """The file with the predictions of the last evaluation of a set."""
    return f"{name}-answers.json"


def weights_name(path: Path) -> str:
    """What to call weights: by their file or folder, or by the run folder whose model they are."""
    return path.parent.name if path.name == MODEL and (path.parent / RUN).is_file() else path.name


def check_new(path: Path) -> None:
    """Raise unless a new run may begin in `path`: an empty or new folder that can be written to."""
    refuse_unwritable(path)
    _refuse_run(path)
    if not _is_half_made(path):
        refuse_strange(path, ())


def _is_half_made(path: Path) -> bool:
    """Whether there is only the first file of a run whose creation was interrupted."""
    if [file.name for file in path.glob("[!.]*")] != [DATA]:
        return False
    try:
        card = read_json(path / DATA)
    except (OSError, ValueError):
        return False
    return isinstance(card, dict) and {"spec", "samples", "class_names", "fingerprint"} == set(card)


def _refuse_run(path: Path) -> None:
    if (path / RUN).exists() and (path / RESULT).exists():
        raise ValueError(f"{path} holds a finished run, with its model in {path / MODEL}; choose another out=")
    resume = f"vitlab resume {shlex.quote(str(path))}"
    require(not (path / RUN).exists(), f"{path} holds a run already; continue it with: {resume}")


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the folder at a path; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _cut_last_line(path: Path) -> None:
    """Cut off an unfinished last line."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        while size > 0:
            start = max(size - 4096, 0)
            file.seek(start)
            last = file.read(size - start).rfind(b"\n")
            if last >= 0:
                size = start + last + 1
                break
            size = start
        file.truncate(size)
