"""Checkpoints on disk: names, files, marks, verification and reading.

checkpoints/step-00000100/  model.safetensors  optimizer.safetensors  [average.safetensors]  state.json  manifest.json
checkpoints/step-00000200/  model.rank-00000-of-00002.safetensors  ...  layout.json (a sharded model)
checkpoints/LATEST          the name of the newest
checkpoints/BEST            the name of the best by validation, if there is one
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
DAMAGED = "damaged-"  # prefix of a damaged checkpoint that was renamed
NAME = re.compile(r"step-(\d{8,})")


def name_of(step: int) -> str:
    """The folder name of a step's checkpoint; names sort like steps."""
    return f"step-{step:08d}"


def steps_in(folder: Path) -> list[int]:
    """The steps of all complete checkpoints, ascending."""
    found = (NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in found if match)


def best_in(folder: Path) -> int | None:
    """The step of the best checkpoint, if one is marked and exists."""
    try:
        match = NAME.fullmatch(read_regular(folder / BEST, 100).decode().strip())
    except (OSError, ValueError):
        return None
    return int(match[1]) if match and (folder / match[0]).is_dir() else None


def point(folder: Path, mark: str, step: int) -> None:
    """Set a mark, `LATEST` or `BEST`, to the checkpoint of a step."""
    with replacing(folder / mark) as temporary:
        temporary.write_text(f"{name_of(step)}\n", encoding="utf-8")


# -- Writing and reading one -----------------------------------------------------------------------


def tensor_writers(groups: Mapping[str, Mapping[str, Tensor]], part: str = "") -> dict[str, Writer]:
    """Writers of the file of each group; `part` is put into the names of partial files."""
    place = f".{part}" if part else ""
    return {f"{name}{place}.safetensors": partial(_save, group) for name, group in groups.items()}


def state_values(progress: Progress, environment: Mapping[str, str], learnt: Mapping[str, object]) -> dict[str, object]:
    """The content of `state.json`; `learnt` is the part of run.json that decides what is learnt."""
    return {
        "version": VERSION,
        "progress": asdict(progress),
        "environment": dict(environment),
        "learnt": {"sha256": learnt_sha256(learnt), "values": dict(learnt)},
    }


def learnt_sha256(learnt: Mapping[str, object]) -> str:
    """Hash of the settings that decide what is learnt, independent of the order of fields."""
    return hashlib.sha256(json.dumps(learnt, sort_keys=True, allow_nan=False).encode()).hexdigest()


def learnt_in(folder: Path) -> tuple[int, dict[str, Any] | None] | None:
    """The step of the newest readable checkpoint and the settings that decided what was learnt.

    The settings are None for a checkpoint of an older version. Returns None if there is no checkpoint.
    """
    for step in reversed(steps_in(folder) if folder.is_dir() else []):
        try:
            values = cast(dict[str, Any], read_json(folder / name_of(step) / STATE))
            return step, values["learnt"]["values"] if "learnt" in values else None
        except (OSError, ValueError, KeyError, TypeError):  # damaged; reported by `restore`
            continue
    return None


def load_checkpoint(path: Path, state: TrainState) -> dict[str, str]:
    """Load a verified checkpoint into the state; returns the environment it was saved in."""
    values = cast(dict[str, Any], read_json(path / STATE))
    require(isinstance(values, dict), f"{path / STATE} is not an object")
    version = values.get("version")
    require(version == VERSION, f"{path} has format version {version!r}; this vitlab reads {VERSION}")
    state.load(open_parts(path) if (path / LAYOUT).exists() else open_whole(path), progress_from(values["progress"]))
    return values["environment"]


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)


# -- Damage ------------------------------------------------------------------------------------------


def verify_checkpoint(path: Path, part: tuple[int, int] = (0, 1)) -> None:
    """Raise unless every file of the checkpoint is intact; with `part` (i, n) this process checks a share of them."""
    required = ["model.safetensors", "optimizer.safetensors", STATE]
    if (path / LAYOUT).exists():
        required = [LAYOUT, STATE, *files_of(read_layout(path))]
    verify_folder(path, required, part)


def set_aside(path: Path) -> Path:
    """Rename a damaged file or folder so that its name says so; returns the new path."""
    return path.rename(_free(path.with_name(f"{DAMAGED}{path.name}")))


def damaged_in(folder: Path) -> list[str]:
    """The names of all damaged checkpoints that were renamed."""
    return sorted(path.name for path in folder.glob(f"{DAMAGED}*"))


def _free(path: Path) -> Path:
    tries = (path.with_name(f"{path.name}-{n}") if n else path for n in range(10_000))
    return next(candidate for candidate in tries if not candidate.exists())
