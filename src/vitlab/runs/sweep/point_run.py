"""One run of a sweep, in any process: started, continued or finished already."""

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from vitlab.data.source import Source
from vitlab.files.store import Locked, write_json
from vitlab.files.strict_json import read_json
from vitlab.require import require
from vitlab.run_dir import DIVERGED, RESULT, RUN, RunDir, RunSpec
from vitlab.runs.progress import describe, say
from vitlab.runs.training.data import open_run_data
from vitlab.runs.training.objective import open_teacher
from vitlab.runs.training.start import create_run
from vitlab.runs.training.trainer import InMemory, train_run

PLACES = ("data", "validation", "test")  # of a run's data, which may move
PATIENCE = 120  # seconds for a worker of a killed sweep to save and end
Argument = tuple[Path, RunSpec, Path, Mapping[str, Source]]


def train_point(asked: Argument, console: Console) -> int:
    """Train the run of a folder to its end, as a job. A run that diverges leaves a file that says so.

    The argument is the folder, its run, the sweep's record of the images' contents, so that no run hashes them again,
    and data sets that the caller has open.
    """
    folder, *_ = asked
    try:
        for seconds_left in reversed(range(PATIENCE + 1)):
            try:
                return _trained(*asked, console)
            except Locked as error:  # a worker of a killed sweep may not have ended yet
                if not seconds_left:
                    raise
                if seconds_left == PATIENCE:
                    say(console, f"waiting: {error}")
                time.sleep(1)
        raise AssertionError("the last attempt returns or raises")
    except ArithmeticError as error:
        say(console, f"diverged: {error}")
        write_json(folder / DIVERGED, {"diverged": str(error)})
        return 0


def _trained(folder: Path, spec: RunSpec, known: Path, sources: Mapping[str, Source], console: Console) -> int:
    if (folder / RUN).exists():
        run = RunDir.open(folder)
        held = run.spec()
        begun = replace(spec.execution, streams=held.execution.streams)  # an earlier version may have had none
        moved = {name: getattr(spec, name) for name in PLACES if getattr(spec, name) != getattr(held, name)}
        memory = InMemory(sources=sources)
        return train_run(run, console, memory=memory, places=moved, execution=begun, known=known)
    data = open_run_data(spec, sources=sources)
    teacher = open_teacher(spec, data.card) if spec.teacher else None
    run = create_run(folder, spec, data, console, teacher, is_confirmed=True, is_announced=False)
    with run.withdrawn_unless_begun():
        return train_run(run, console, memory=InMemory(data, teacher=teacher), execution=spec.execution, known=known)


def check_same(folder: Path, wanted: RunSpec, apart_from: Collection[str] = ()) -> None:
    """Raise if the folder holds a run that differs from what is wanted in more than `apart_from`."""
    if not (folder / RUN).exists():
        return
    found = RunDir.open(folder).spec()
    # Paths of weights that have hashes, and settings of no effect.
    may_differ = ("start", "teacher", "execution", *apart_from)
    other = [name for name in vars(wanted) if name not in may_differ and getattr(found, name) != getattr(wanted, name)]
    verb = "differs" if len(other) == 1 else "differ"
    require(not other, f"{folder} holds another run: its {', '.join(other)} {verb}; choose another out=")


def reached(folder: Path) -> str:
    """What a finished run reached, in a few words: on its test or validation images, or how many it has seen."""
    if (folder / DIVERGED).exists():
        return "diverged"
    result = cast(dict[str, Any], read_json(folder / RESULT))
    numbers = result.get("test") or result.get("validation")
    return describe(numbers) if numbers else f"{result['images']:,} images"
