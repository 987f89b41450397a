"""The same recipe, the same seed, the same data, once more: is the result the same?"""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from vitlab.require import require
from vitlab.run_dir import CHECKPOINTS, CONTENTS, LARGEST_RECORD, RESULT, RUN, RunDir, check_new
from vitlab.runs.training.trainer import carry_out
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
    changed: tuple[str, ...]  # what the bits may differ for


def reproduce(
    path: Path, again: Path, console: Console, *, allow_changed: bool = False
) -> tuple[int, Comparison | None]:
    """Run the run of `path` again in the folder `again`, or continue doing so; (exit code, comparison).

    The data must hold what it held in the first run, unless `allow_changed`.
    """
    run = RunDir.open(path)
    spec = run.spec()
    require((path / RESULT).is_file(), f"{path} is not finished; finish it first with: vitlab resume {path}")
    if (again / RUN).is_file():
        twin = RunDir.open(again)
        require(twin.spec() == spec, f"{again} holds another run; choose another --out")
    else:
        check_new(again)
        twin = RunDir.create(again, spec, _object(run.card()))
    if (path / CONTENTS).is_file() and not (again / CHECKPOINTS).exists():
        twin.write_bytes(CONTENTS, read_regular(path / CONTENTS, LARGEST_RECORD))  # what the data must still hold
    with twin.withdrawn_unless_begun():
        code = carry_out(twin, console, allow_changed=allow_changed)
    return code, None if code else compare(run, twin)


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
