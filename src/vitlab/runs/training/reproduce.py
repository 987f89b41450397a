"""Train a finished run again with the same recipe, seed and data, and compare the two."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from vitlab.errors import Stopped
from vitlab.require import require
from vitlab.run_dir import CHECKPOINTS, CONTENTS, LARGEST_RECORD, RESULT, RUN, RunDir, check_new
from vitlab.runs.progress import default_console
from vitlab.runs.training.trainer import Watcher, train_run
from vitlab.store import MANIFEST
from vitlab.strict_json import read_json
from vitlab.train.checkpoints.files import STATE
from vitlab.user_files import read_regular
from vitlab.world.device import differences


@dataclass(frozen=True)
class Comparison:
    """Two runs of the same recipe: how many steps had the same loss, and whether the last states are the same bits."""

    steps: int
    same_losses: int
    largest_difference: float
    same_bits: bool
    changed: tuple[str, ...]  # reasons why the bits may differ

    @property
    def is_same(self) -> bool:
        """Whether every loss and every bit of the last state is the same."""
        return self.same_bits and self.same_losses == self.steps

    def summary(self) -> str:
        """The comparison in a sentence or two."""
        equal = "identical" if self.same_bits else "not identical"
        said = (
            f"{self.same_losses:,} of {self.steps:,} losses are equal (largest difference "
            f"{self.largest_difference:g}); the last weights and optimizer state are {equal}, bit for bit"
        )
        reasons = "; ".join(self.changed)
        return f"{said}\nthey may differ because {reasons}" if reasons and not self.same_bits else said


def reproduce(
    path: str | Path,
    out: str | Path | None = None,
    *,
    allow_changed: bool = False,
    on_event: Watcher | None = None,
    quiet: bool = False,
    console: Console | None = None,
) -> Comparison:
    """Train the finished run of `path` again in the folder `out` (default: PATH-again), and compare step by step.

    A second run that was interrupted continues. The data must hold what it held in the first run, unless
    `allow_changed`.
    """
    path = Path(path)
    again = path.with_name(f"{path.name}-again") if out is None else Path(out)
    run = RunDir.open(path)
    spec = run.spec()
    require((path / RESULT).is_file(), f"{path} is not finished; finish it first with: {run.command}")
    if (again / RUN).is_file():
        twin = RunDir.open(again)
        require(twin.spec() == spec, f"{again} holds another run; choose another --out")
    else:
        check_new(again)
        twin = RunDir.create(again, spec, _object(run.card()))
    twin.command = f"vitlab reproduce {shlex.quote(str(path))}"
    if (path / CONTENTS).is_file() and not (again / CHECKPOINTS).exists():
        twin.write_bytes(CONTENTS, read_regular(path / CONTENTS, LARGEST_RECORD))  # what the data must still hold
    screen = default_console(console, quiet=quiet)
    with twin.withdrawn_unless_begun():
        code = train_run(twin, screen, allow_changed=allow_changed, on_event=on_event)
    if code:
        raise Stopped(code, again)
    return compare(run, twin)


def compare(run: RunDir, twin: RunDir) -> Comparison:
    """The losses step by step, and the hashes of the last checkpoints."""
    ours, theirs = run.history("step", "loss"), twin.history("step", "loss")
    steps = sorted(set(ours) | set(theirs))
    same = sum(str(ours.get(step)) == str(theirs.get(step)) for step in steps)  # NaN is NaN, a missing step is not
    largest = max((abs(ours[step] - theirs[step]) for step in steps if step in ours and step in theirs), default=0.0)
    return Comparison(len(steps), same, largest, _last_hashes(run) == _last_hashes(twin), _changed(run, twin))


def _changed(run: RunDir, twin: RunDir) -> tuple[str, ...]:
    """How the machine of the second run differs from that of the first, and what makes one of them not exact."""
    found = [_object(_object(read_json(_last(one) / STATE))["environment"]) for one in (run, twin)]
    first, second = run.not_exact(), twin.not_exact()
    words = [f"the first run is not exact ({why})" for why in first] + [
        f"the data has changed ({why})" for why in second
    ]
    return (*differences(*found), *words)


def _last(run: RunDir) -> Path:
    """The newest checkpoint."""
    return max((run.path / CHECKPOINTS).glob("step-*"))


def _last_hashes(run: RunDir) -> dict[str, object]:
    """SHA-256 of the tensors of the last checkpoint."""
    manifest = _object(read_json(_last(run) / MANIFEST))
    return {name: entry for name, entry in manifest.items() if name.endswith(".safetensors")}


def _object(value: object) -> dict:
    assert isinstance(value, dict)
    return value
