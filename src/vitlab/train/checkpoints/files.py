"""What a checkpoint is on disk: its name, its files, the marks beside it, whether it is whole, and how it is read.

checkpoints/step-00000100/  model.safetensors  optimizer.safetensors  [average.safetensors]  state.json  manifest.json
checkpoints/step-00000200/  model.rank-00000-of-00002.safetensors  ...  layout.json: of a model that ranks share
checkpoints/LATEST          the name of the newest
checkpoints/BEST            the name of the best by validation, where there is one
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

from safetensors.torch import save_file
from torch import Tensor

from vitlab.require import require
from vitlab.store import Writer, replacing, verify_folder
from vitlab.strict_json import read_json
from vitlab.train.checkpoints.tensors import LAYOUT, files_of, open_parts, open_whole, read_layout
from vitlab.train.state import Progress, TrainState, progress_from
from vitlab.user_files import read_regular

VERSION = 1
STATE, LATEST, BEST = "state.json", "LATEST", "BEST"
DAMAGED = "damaged-"  # what stands before the name of one that is set aside
NAME = re.compile(r"step-(\d{8,})")


def name_of(step: int) -> str:
    """The folder of a step's checkpoint; names sort as steps do."""
    return f"step-{step:08d}"


def steps_in(folder: Path) -> list[int]:
    """The steps of all whole checkpoints, ascending."""
    found = (NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in found if match)


def best_in(folder: Path) -> int | None:
    """The step of the best checkpoint, if one was marked and is there."""
    try:
        match = NAME.fullmatch(read_regular(folder / BEST, 100).decode().strip())
    except (OSError, ValueError):
        return None
    return int(match[1]) if match and (folder / match[0]).is_dir() else None


def point(folder: Path, mark: str, step: int) -> None:
    """Let a mark, `LATEST` or `BEST`, name the checkpoint of a step."""
    with replacing(folder / mark) as temporary:
        temporary.write_text(f"{name_of(step)}\n", encoding="utf-8")


# -- Writing and reading one -----------------------------------------------------------------------


def tensor_writers(groups: Mapping[str, Mapping[str, Tensor]], part: str = "") -> dict[str, Writer]:
    """How the file of each group is written; `part` stands in the names where it is not the whole."""
    place = f".{part}" if part else ""
    return {f"{name}{place}.safetensors": partial(_save, group) for name, group in groups.items()}


def state_values(progress: Progress, environment: Mapping[str, str], learnt: Mapping[str, object]) -> dict[str, object]:
    """What `state.json` says; `learnt` is the part of run.json that decides what is learnt."""
    return {
        "version": VERSION,
        "progress": asdict(progress),
        "environment": dict(environment),
        "learnt": {"sha256": learnt_sha256(learnt), "values": dict(learnt)},
    }


def learnt_sha256(learnt: Mapping[str, object]) -> str:
    """A hash of what is learnt, whatever the order of its fields."""
    return hashlib.sha256(json.dumps(learnt, sort_keys=True, allow_nan=False).encode()).hexdigest()


def learnt_in(folder: Path) -> tuple[int, dict[str, Any] | None] | None:
    """The step of the newest checkpoint whose state can be read, and what was learnt when it was made.

    That is None for a checkpoint of a version that did not note it; all is None where there is no checkpoint.
    """
    for step in reversed(steps_in(folder) if folder.is_dir() else []):
        try:
            values = cast(dict[str, Any], read_json(folder / name_of(step) / STATE))
            return step, values["learnt"]["values"] if "learnt" in values else None
        except (OSError, ValueError, KeyError, TypeError):  # damaged; told when it is restored
            continue
    return None


def load_checkpoint(path: Path, state: TrainState) -> dict[str, str]:
    """Fill the state from a verified checkpoint; returns the environment it was made in."""
    values = cast(dict[str, Any], read_json(path / STATE))
    require(isinstance(values, dict), f"{path / STATE} is not an object")
    version = values.get("version")
    require(version == VERSION, f"{path} has format version {version!r}, this vitlab reads {VERSION}")
    state.load(open_parts(path) if (path / LAYOUT).exists() else open_whole(path), progress_from(values["progress"]))
    return values["environment"]


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)


# -- Damage ------------------------------------------------------------------------------------------


def verify_checkpoint(path: Path, part: tuple[int, int] = (0, 1)) -> None:
    """Raise unless every file of the checkpoint is as it was written; `part` (i, n): this process looks at a share."""
    required = ["model.safetensors", "optimizer.safetensors", STATE]
    if (path / LAYOUT).exists():
        required = [LAYOUT, STATE, *files_of(read_layout(path))]
    verify_folder(path, required, part)


def set_aside(path: Path) -> Path:
    """Give what is damaged, such as a checkpoint, a name that says so; returns it."""
    return path.rename(_free(path.with_name(f"{DAMAGED}{path.name}")))


def damaged_in(folder: Path) -> list[str]:
    """The names of all that were set aside."""
    return sorted(path.name for path in folder.glob(f"{DAMAGED}*"))


def _free(path: Path) -> Path:
    tries = (path.with_name(f"{path.name}-{n}") if n else path for n in range(10_000))
    return next(candidate for candidate in tries if not candidate.exists())
