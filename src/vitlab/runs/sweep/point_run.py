"""One run of a sweep, wherever it is carried out: from whatever its folder holds to its end."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from vitlab.require import require
from vitlab.run_dir import RESULT, RUN, RunDir, RunSpec
from vitlab.runs.progress import describe, say
from vitlab.runs.sweep.selection import DIVERGED
from vitlab.runs.training.data import open_material
from vitlab.runs.training.request import create
from vitlab.runs.training.trainer import carry_out
from vitlab.store import Locked, json_writer, replacing
from vitlab.strict_json import read_json

PATIENCE = 120  # seconds in which a worker of a killed sweep has saved and gone


def train_run(asked: tuple[Path, RunSpec, Path], console: Console) -> int:
    """The work of a job: a run folder from wherever it is to its end. One that diverges says so in a file.

    The last of what is asked is the sweep's record of what the images hold, so that no run reads them for that.
    """
    folder, spec, known = asked
    try:
        return _patiently(lambda: _opened(folder, spec, known, console), console)
    except ArithmeticError as error:
        say(console, f"diverged: {error}")
        with replacing(folder / DIVERGED) as temporary:
            json_writer({"diverged": str(error)})(temporary)
        return 0


def _opened(folder: Path, spec: RunSpec, known: Path, console: Console) -> int:
    if (folder / RUN).exists():
        return carry_out(RunDir.open(folder), console, execution=spec.execution, known=known)
    material = open_material(spec)
    run = create(folder, spec, material, console, is_wanted=True)
    with run.withdrawn_unless_begun():
        return carry_out(run, console, material=material, execution=spec.execution, known=known)


def _patiently(work: Callable[[], int], console: Console) -> int:
    """Work in a folder that a worker of a killed sweep may still be leaving."""
    for tried in range(PATIENCE):
        try:
            return work()
        except Locked as error:
            if not tried:
                say(console, f"waiting: {error}")
            time.sleep(1)
    return work()


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
