"""One run of a sweep, in whichever process: from whatever its folder holds to its end."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from vitlab.data.source import Source
from vitlab.require import require
from vitlab.run_dir import RESULT, RUN, RunDir, RunSpec
from vitlab.runs.progress import describe, say
from vitlab.runs.sweep.selection import DIVERGED
from vitlab.runs.training.creation import create_run
from vitlab.runs.training.data import open_run_data
from vitlab.runs.training.distillation import open_teacher
from vitlab.runs.training.trainer import Loaded, train_run
from vitlab.store import Locked, json_writer, replacing
from vitlab.strict_json import read_json

PATIENCE = 120  # seconds in which a worker of a killed sweep has saved and gone


Argument = tuple[Path, RunSpec, Path, Mapping[str, Source]]


def train_point(asked: Argument, console: Console) -> int:
    """The work of a job: train the run of a folder to its end. A run that diverges says so in a file.

    The argument is the folder, its run, the sweep's record of what the images hold, so that no run reads them for that,
    and data that the caller has open.
    """
    folder, *_ = asked
    try:
        for tried in range(PATIENCE):
            try:
                return _trained(*asked, console)
            except Locked as error:  # a worker of a killed sweep may still be leaving the folder
                if not tried:
                    say(console, f"waiting: {error}")
                time.sleep(1)
        return _trained(*asked, console)
    except ArithmeticError as error:
        say(console, f"diverged: {error}")
        with replacing(folder / DIVERGED) as temporary:
            json_writer({"diverged": str(error)})(temporary)
        return 0


def _trained(folder: Path, spec: RunSpec, known: Path, sources: Mapping[str, Source], console: Console) -> int:
    if (folder / RUN).exists():
        loaded = Loaded(sources=sources)
        return train_run(RunDir.open(folder), console, loaded=loaded, execution=spec.execution, known=known)
    data = open_run_data(spec, sources=sources)
    teacher = open_teacher(spec, data.card) if spec.teacher else None
    run = create_run(folder, spec, data, console, teacher, is_confirmed=True)
    with run.withdrawn_unless_begun():
        return train_run(run, console, loaded=Loaded(data, teacher=teacher), execution=spec.execution, known=known)


def check_same(folder: Path, wanted: RunSpec) -> None:
    """Raise if the folder holds another run."""
    if not (folder / RUN).exists():
        return
    found = RunDir.open(folder).spec()
    may_differ = ("start", "teacher", "execution")  # where weights lie, which have hashes, and how it is carried out
    other = [name for name in vars(wanted) if name not in may_differ and getattr(found, name) != getattr(wanted, name)]
    require(not other, f"{folder} holds another run: its {', '.join(other)} differ; choose another --out")


def reached(folder: Path) -> str:
    """What a run that just ended reached, in a few words."""
    if (folder / DIVERGED).exists():
        return "diverged"
    result = cast(dict[str, Any], read_json(folder / RESULT))
    return describe(result.get("test") or result["validation"])
