"""Small runs in processes of their own, which die where a test wants, and what must be left of them."""

import ctypes
import io
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import save_file

from vitlab.cli import main
from vitlab.files.store import LOCK, MANIFEST, json_writer, sha256
from vitlab.files.strict_json import to_json
from vitlab.run_dir import CHECKPOINTS, EVENTS, REPORT, RunDir, RunSpec
from vitlab.runs.study.study import StudyResult, study
from vitlab.runs.training import state as training_state
from vitlab.runs.training.data import open_run_data
from vitlab.runs.training.trainer import train_run
from vitlab.spec import ViTSpec
from vitlab.spec.pixels import Augmentation
from vitlab.spec.recipe import AdamW, Execution, Recipe, Schedule
from vitlab.train.checkpoints import files as checkpoint_files
from vitlab.train.checkpoints.checkpoints import Checkpoints
from vitlab.train.checkpoints.files import LATEST, NAME, STATE, name_of, verify_checkpoint
from vitlab.train.state import Progress
from vitlab.weights.files import folder

STEPS, SAVE_EVERY = 24, 2
PATIENCE = 600  # seconds that nothing takes, however busy the machine is

# A server that has imported torch and forks a child for every run: fast, and free of the test process's threads.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    [
        "vitlab.runs.training.trainer",
        "vitlab.runs.study.study",
        "sklearn.datasets",
        "torch._dynamo",
        "torch.distributed.fsdp",
    ]
)


def run_test_study(name: str, out: Path) -> StudyResult:
    """A study at the scale of the tests, with one seed."""
    return study(name, out, scale="test", seeds=1, quiet=True, execution=Execution())


def small_run(*, steps: int = STEPS, execution: Execution | None = None, **recipe: object) -> RunSpec:
    """A run of seconds with everything in it that has a state: dropout, augmentation, an average, early stopping."""
    model = ViTSpec(patch=4, layers=1, width=16, mlp=24, heads=2, image=(8, 8), classes=10, head="linear", dropout=0.1)
    how = Recipe(
        name="small",
        source="tests",
        batch=12,
        image=(8, 8),
        schedule=Schedule(peak=3e-3, total=steps, warmup=min(4, steps - 1)),
        optimizer=AdamW(clip=1.0),
        dropout=0.1,
        augmentation=Augmentation(smallest_area=0.5),
        average=0.9,
        validate_every=5,
        patience=50,
    )
    return RunSpec(
        format="vitlab-run",
        version=1,
        kind="pretrain",
        model=model,
        recipe=replace(how, **recipe),
        data="digits?split=test",
        execution=execution or Execution(save_every=SAVE_EVERY, micro_batch=5),
        held_out=0.1,
    )


def new_run(path: Path, spec: RunSpec) -> RunDir:
    return RunDir.create(path, spec, to_json(open_run_data(spec).card))


def carry_on(path: Path, prepare: Callable[..., None] | None = None, *arguments: object) -> None:
    """What a child does: the run from where it is, after `prepare` has made the world worse; ends with its code."""
    torch.set_num_threads(1)
    if prepare is not None:
        prepare(*arguments)
    code = train_run(RunDir.open(path), Console(file=io.StringIO()))
    os._exit(code)  # not through multiprocessing's own cleaning up


def start(target: Callable[..., None], *arguments: object) -> BaseProcess:
    child = processes.Process(target=target, args=arguments)
    child.start()
    return child


def code_of(child: BaseProcess) -> int:
    """The exit code of a child that ends by itself; minus the signal if one ended it."""
    child.join(PATIENCE)
    if child.exitcode is None:
        child.kill()
        raise AssertionError("the child hangs")
    return child.exitcode


def finish(path: Path) -> None:
    """Take a run to its end."""
    code = code_of(start(carry_on, path))
    assert code == 0, f"the run ended with {code}"


def last_step(path: Path, since: int = 0) -> int:
    """The last step in the run's log since it was started or resumed, and after `since` bytes; 0 before the first."""
    if not (path / EVENTS).exists():
        return 0
    with (path / EVENTS).open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - 8192, since))
        lines = file.read().split(b"\n")[:-1]  # the last may be being written
    for line in reversed(lines):
        if b'"event": "resumed"' in line:
            return 0
        if b'"event": "step"' in line and line.startswith(b"{"):
            return json.loads(line)["step"]
    return 0


def wait_for(claim: Callable[[], bool], child: BaseProcess) -> bool:
    """Whether the claim came true before the child ended."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if claim():
            return True
        if not child.is_alive():
            return claim()
        time.sleep(0.002)
    child.kill()
    raise AssertionError("no progress")


def whole_checkpoints(path: Path) -> list[int]:
    """The steps of the checkpoints that are what they were when they were written."""
    whole = []
    for saved in sorted((path / CHECKPOINTS).glob("step-*")):
        verify_checkpoint(saved)
        whole.append(int(NAME.fullmatch(saved.name)[1]))
    return whole


def remains(path: Path) -> dict[str, str]:
    """Every file of a run by its hash, but for the log, which has times in it, the lock, and the report, which names
    the folder."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name not in (EVENTS, LOCK, REPORT))
    return {str(file.relative_to(path)): sha256(file) for file in files}


def left_on_disk(path: Path) -> frozenset[tuple[str, str]]:
    """All names and contents of a run's folders, whoever wrote them."""
    named = {re.sub(r"tmp-\d+", "tmp", str(entry.relative_to(path))): entry for entry in path.rglob("*")}
    return frozenset(
        (name, sha256(entry) if entry.is_file() else "")
        for name, entry in named.items()
        if entry.name not in (EVENTS, LOCK)
    )


def numbers(path: Path) -> dict[str, dict[int, float]]:
    """Everything measured, by step."""
    run = RunDir(path)
    measured = [("step", "loss"), ("step", "gradient_norm"), ("validation", "top1"), ("validation", "loss")]
    return {f"{kind} {value}": run.history(kind, value) for kind, value in measured}


def assert_same(path: Path, unbroken: Path) -> None:
    """The same weights, optimizer, average, progress, books, model and result, bit for bit; the same numbers."""
    assert remains(path) == remains(unbroken)
    assert numbers(path) == numbers(unbroken)


@dataclass
class Toll:
    """What a series of deaths cost."""

    deaths: int = 0
    resumes: int = 0
    lives: int = 0
    during_a_save: int = 0
    redone: int = 0  # most steps that one death cost
    lost: int = 0

    def __str__(self) -> str:
        return (
            f"{self.deaths} kills in {self.lives} runs, {self.during_a_save} during a save; {self.resumes} resumes; "
            f"{self.lost} checkpoints lost; at most {self.redone} steps redone after a kill"
        )


def live_and_die(
    path: Path, spec: RunSpec, toll: Toll, rng: random.Random, most: int, prepare: Callable[..., None] | None = None
) -> None:
    """Take a run to its end through SIGKILLs, at most `most`, each some steps on and up to 30 ms more."""
    new_run(path, spec)
    toll.lives += 1
    for killing in [*[True] * most, False]:
        before = whole_checkpoints(path)
        target = (before[-1] if before else 0) + rng.randrange(1, 3 * SAVE_EVERY) if rng.random() < 0.95 else 0
        logged = (path / EVENTS).stat().st_size if (path / EVENTS).exists() else 0
        child = start(carry_on, path, prepare)
        if killing and wait_for(lambda goal=target, since=logged: last_step(path, since) >= goal, child):
            time.sleep(rng.random() * 0.03)
            os.kill(child.pid, signal.SIGKILL)
        code = code_of(child)
        if code == 0:
            break
        assert code == -signal.SIGKILL, f"the run ended with {code}"
        toll.deaths += 1
        _examine(path, before, toll)
    else:
        raise AssertionError("the run does not come to its end")
    resumed = list(RunDir(path).events("resumed"))
    assert not any(event["damaged"] or event["changed"] for event in resumed)
    toll.resumes += len(resumed)


def _examine(path: Path, before: list[int], toll: Toll) -> None:
    """Right after a death: what was whole before or was followed by another save is whole now."""
    toll.during_a_save += any((path / CHECKPOINTS).glob(".*"))
    whole = whole_checkpoints(path)
    begun: list[int] = []  # in this life
    for event in RunDir(path).events():
        begun = [] if event["event"] == "resumed" else [*begun, event["step"]] if event["event"] == "saved" else begun
    proven = max([*before[-1:], *begun[-2:-1]], default=None)  # a save starts when the one before it has ended
    if proven is not None:
        toll.lost += not whole or whole[-1] < proven
        toll.redone = max(toll.redone, last_step(path) - whole[-1]) if whole else toll.redone


def on_step(step: int, act: Callable[..., None], *arguments: object) -> None:
    """Do something in this process when it has done a step."""
    record = RunDir.record

    def recorded(self: RunDir, kind: str, values: Mapping[str, object]) -> None:
        record(self, kind, values)
        if kind == "step" and values["step"] == step:
            act(*arguments)

    RunDir.record = recorded


# -- Deaths inside a save ------------------------------------------------------------------------


def die_at(
    fatal: int, diary: Path, window: tuple[str, str, str], run: Path | None = None, copies: Path | None = None
) -> None:
    """Wrap all that changes files, so that the process is gone at point number `fatal`; the diary lists all points.

    Points count from the first operation on what `window` names first until one on what it names second, and again
    from one on what it names last. With `copies`, the run is copied there at every point, under the point's number.
    """
    begin, end, again = window
    is_counting, passed, is_copying = False, 0, False
    alone = threading.RLock()  # a copy is of one moment

    def point(what: str, path: object) -> None:
        nonlocal is_counting, passed, is_copying
        if is_copying:
            return
        name = str(path)
        is_counting = begin in name or again in name or (is_counting and end not in name)
        if not is_counting or name.endswith(EVENTS):
            return
        with diary.open("a") as file:
            file.write(f"{passed} {what} {Path(name).name}\n")
        if passed == fatal:
            os._exit(77)
        if run is not None and copies is not None:
            is_copying = True
            shutil.copytree(run, copies / str(passed))
            is_copying = False
        passed += 1

    def around(operation: str) -> None:
        real = getattr(os, operation)

        def wrapped(first: object, *rest: object, **options: object) -> None:
            path = Path(f"/proc/self/fd/{first}").readlink() if isinstance(first, int) else first
            with alone:
                point(f"before {operation}", path)
                real(first, *rest, **options)
                point(f"after {operation}", path)

        setattr(os, operation, wrapped)

    for operation in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir"):
        around(operation)

    def write_text(path: Path, text: str, encoding: str | None = None) -> None:
        with alone:
            point("before write", path)
            with path.open("w", encoding=encoding) as file:
                file.write(text[: len(text) // 2])
                file.flush()
                point("inside write", path)
                file.write(text[len(text) // 2 :])
            point("after write", path)

    def write_tensors(tensors: dict[str, torch.Tensor], path: Path, **options: object) -> None:
        with alone:
            point("before write", path)
            save_file(tensors, path, **options)
            whole = path.read_bytes()
            os.truncate(path, len(whole) // 2)
            point("inside write", path)
            path.write_bytes(whole)
            point("after write", path)

    Path.write_text = write_text
    checkpoint_files.save_file = folder.save_file = write_tensors


# -- A writer as one writes it at first ----------------------------------------------------------


def write_naively(fatal: int) -> None:
    """Plug in a writer that points first and writes over the one set of files it has; it dies in save `fatal`."""
    saves = 0

    def write(self: Checkpoints, progress: Progress, groups: dict) -> None:
        nonlocal saves
        saves += 1
        path = self.folder / name_of(progress.step)
        (self.folder / LATEST).write_text(path.name)
        for old in self.folder.glob("step-*"):
            old.rename(path)
        path.mkdir(exist_ok=True)
        for name, tensors in groups.items():
            if saves == fatal and name == "optimizer":
                os._exit(77)
            save_file({n: t.contiguous() for n, t in tensors.items()}, path / f"{name}.safetensors")
        json_writer({"version": 1, "progress": asdict(progress), "environment": self.environment})(path / STATE)
        names = [*(f"{name}.safetensors" for name in groups), STATE]
        entries = {n: {"bytes": (path / n).stat().st_size, "sha256": sha256(path / n)} for n in names}
        json_writer(entries)(path / MANIFEST)

    Checkpoints._write = write


# -- Bad moments ---------------------------------------------------------------------------------


def resume_by_command(path: Path, said: Path, prepare: Callable[..., None] | None = None, *arguments: object) -> None:
    """What a child does: `vitlab resume`, its complaints kept in `said`; ends with its code."""
    torch.set_num_threads(1)
    with said.open("w") as file:
        os.dup2(file.fileno(), 2)
    if prepare is not None:
        prepare(*arguments)
    os._exit(main(["resume", str(path)]))


def run_command(words: list[str], said: Path) -> None:
    """What a child does: a command of vitlab in a session of its own, with all output in `said`; ends with its code."""
    os.setsid()
    with said.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), line_buffering=True)
    code = main(words)
    sys.stdout.flush()
    os._exit(code)


def limit_files(size: int) -> None:
    """No file may grow beyond `size` bytes: a quota."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def close_output() -> None:
    """Standard output is a pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, 1)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), line_buffering=True)


def own_mounts(*commands: str) -> None:
    """Mount things that only this process sees; ends with code 99 where that is not allowed."""
    if ctypes.CDLL(None).unshare(0x00020000):  # CLONE_NEWNS
        os._exit(99)
    for command in ("mount --make-rprivate /", *commands):
        if subprocess.run(command.split(), capture_output=True, check=False).returncode:
            os._exit(99)


def fill_disk_and_recover(stopped: Path, disk: Path, out: Path) -> None:
    """Resume a run on a disk that is nearly full, then on one that is not; ends with the code of the second."""
    torch.set_num_threads(1)
    blocks = sum(-(-entry.stat().st_size // 4096) for entry in stopped.rglob("*") if entry.is_file())
    own_mounts(f"mount -t tmpfs -o size={(blocks + 6) * 4096} tmpfs {disk}")
    shutil.copytree(stopped, disk / "run")
    before = whole_checkpoints(disk / "run")
    try:
        train_run(RunDir.open(disk / "run"), Console(file=io.StringIO()))
    except OSError as error:
        out.with_suffix(".said").write_text(str(error))
    assert whole_checkpoints(disk / "run") == before
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
    code = train_run(RunDir.open(disk / "run"), Console(file=io.StringIO()))
    shutil.copytree(disk / "run", out)
    os._exit(code)


def sleep_for_ever() -> None:
    while True:
        time.sleep(1)


def signal_twice(number: int, folder: Path) -> None:
    """Signal this process; leave a note after each time that is survived."""
    for name in ("once", "twice"):
        os.kill(os.getpid(), number)
        (folder / name).touch()


def signal_twice_as_a_launcher(number: int, folder: Path) -> None:
    os.environ["TORCHELASTIC_RUN_ID"] = "x"
    signal_twice(number, folder)


def signal_before_training(number: int) -> None:
    initial_state = training_state.initial_state

    def signalled(*arguments: object, **named: object) -> object:
        os.kill(os.getpid(), number)
        return initial_state(*arguments, **named)

    training_state.initial_state = signalled


def own_group_and_wait(step: int) -> None:
    """Be the leader of a process group, and wait at a step until a signal comes."""
    os.setsid()
    on_step(step, signal.pause)


def measure_memory(path: Path, note: Path) -> None:
    """What a child does: the run, and a note of the most memory that it had."""
    torch.set_num_threads(1)
    code = train_run(RunDir.open(path), Console(file=io.StringIO()))
    note.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
    os._exit(code)


def note_memory(note: Path, every: int, last: int) -> None:
    """Write down what this process holds, every so many steps: step, resident kilobytes, open files."""

    def write(step: int) -> None:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * (resource.getpagesize() // 1024)
        with note.open("a") as file:
            file.write(f"{step} {resident} {len(list(Path('/proc/self/fd').iterdir()))}\n")

    for step in range(every, last + 1, every):
        on_step(step, write, step)
