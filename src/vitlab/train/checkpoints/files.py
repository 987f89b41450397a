"""Checkpoints on disk: names, files, marks, verification and reading.

checkpoints/step-00000100/  model.safetensors  optimizer.safetensors  [average.safetensors]  state.json  manifest.json
checkpoints/step-00000200/  model.rank-00000-of-00002.safetensors  ...  layout.json (a sharded model)
checkpoints/LATEST          the name of the newest
checkpoints/BEST            the name of the best by validation, if there is one

layout.json: {"ranks": N, "groups": {"model": {"head.logits.weight": [10, 768], ...}, ...}}; a tensor whose shape is
null is not split and is in the file of rank 0. `rows_of_rank` gives the rows of a rank.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitlab.files.store import Writer, replacing, verify_folder
from vitlab.files.strict_json import from_json, read_json
from vitlab.files.user_files import read_regular
from vitlab.require import require
from vitlab.train.state import Progress, Read, TrainState, progress_from
from vitlab.world.group import World
from vitlab.world.parallel import is_sharded, rows_of_rank

VERSION = 1
STATE, LAYOUT, LATEST, BEST = "state.json", "layout.json", "LATEST", "BEST"
DAMAGED = "damaged-"  # prefix of a damaged checkpoint that was renamed
NAME = re.compile(r"step-(\d{8,})")


def name_of(step: int) -> str:
    """The folder name of a step's checkpoint; names sort like steps."""
    return f"step-{step:08d}"


def steps_in(folder: Path) -> list[int]:
    """The steps of all complete checkpoints, ascending."""
    return sorted(int(match[1]) for path in folder.iterdir() if (match := NAME.fullmatch(path.name)))


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


def state_values(
    progress: Progress, environment: Mapping[str, str], learned: Mapping[str, object]
) -> dict[str, object]:
    """The content of `state.json`; `learned` is the part of run.json that decides what is learned."""
    return {
        "version": VERSION,
        "progress": asdict(progress),
        "environment": dict(environment),
        "learnt": {"sha256": learned_sha256(learned), "values": dict(learned)},
    }


def learned_sha256(learned: Mapping[str, object]) -> str:
    """Hash of the settings that decide what is learned, independent of the order of fields."""
    return hashlib.sha256(json.dumps(learned, sort_keys=True, allow_nan=False).encode()).hexdigest()


def learned_in(folder: Path) -> tuple[int, dict[str, Any] | None] | None:
    """The step of the newest readable checkpoint and the settings that decided what was learned.

    The settings are None for a checkpoint of an older version. Returns None if there is no checkpoint.
    """
    for step in reversed(steps_in(folder) if folder.is_dir() else []):
        try:
            verify_folder(folder / name_of(step), [STATE], only=STATE)
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
    state.load(open_groups(path), progress_from(values["progress"]))
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
    name = f"{DAMAGED}{path.name}"
    tries = (path.with_name(f"{name}-{number}" if number else name) for number in range(10_000))
    return path.rename(next(candidate for candidate in tries if not candidate.exists()))


def damaged_in(folder: Path) -> list[str]:
    """The names of all damaged checkpoints that were renamed."""
    return sorted(path.name for path in folder.glob(f"{DAMAGED}*"))


# -- Tensors: whole, or the rows of each rank --------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How a state is split: the number of ranks, and the full shape of every split tensor."""

    ranks: int
    groups: dict[str, dict[str, tuple[int, ...] | None]]

    def __post_init__(self) -> None:
        require(self.ranks >= 1, f"{LAYOUT} has {self.ranks} ranks; expected at least 1")


def part_name(rank: int, ranks: int) -> str:
    """The part of the file names that identifies a rank."""
    return f"rank-{rank:05d}-of-{ranks:05d}"


def layout_of(groups: Mapping[str, Mapping[str, Tensor]], world: World) -> dict[str, object]:
    """The layout of a state as JSON values."""
    cut = {
        group: {name: list(tensor.shape) if is_sharded(tensor) else None for name, tensor in tensors.items()}
        for group, tensors in groups.items()
    }
    return {"ranks": world.ranks, "groups": cut}


def read_layout(path: Path) -> Layout:
    """Read the layout in a checkpoint's folder."""
    return from_json(Layout, read_json(path / LAYOUT), LAYOUT)


def files_of(layout: Layout) -> list[str]:
    """The names of all tensor files."""
    return [
        f"{group}.{part_name(rank, layout.ranks)}.safetensors"
        for group in layout.groups
        for rank in range(layout.ranks)
    ]


def open_groups(path: Path) -> dict[str, tuple[list[str], Read]]:
    """The groups of a checkpoint: names of tensors, and a function that reads all of one or some rows of it."""
    if (path / LAYOUT).exists():
        layout = read_layout(path)
        return {group: (list(shapes), _reader(path, group, layout)) for group, shapes in layout.groups.items()}
    files = {file.stem: safe_open(file, "pt", device="cpu") for file in sorted(path.glob("*.safetensors"))}
    return {group: (list(file.keys()), partial(_rows, file)) for group, file in files.items()}


def _reader(path: Path, group: str, layout: Layout) -> Read:
    opened: dict[int, Any] = {}

    def file(rank: int) -> Any:
        if rank not in opened:
            name = f"{group}.{part_name(rank, layout.ranks)}.safetensors"
            opened[rank] = safe_open(path / name, "pt", device="cpu")
        return opened[rank]

    def read(name: str, rows: range | None) -> Tensor:
        shape = layout.groups[group][name]
        if shape is None:
            return _rows(file(0), name, rows)
        wanted = range(shape[0]) if rows is None else rows
        parts = []
        for rank in range(layout.ranks):
            there = rows_of_rank(shape[0], rank, layout.ranks)
            common = range(max(wanted.start, there.start), min(wanted.stop, there.stop))
            if common:
                parts.append(_rows(file(rank), name, range(common.start - there.start, common.stop - there.start)))
        if not parts:
            return file(0).get_tensor(name)[:0]
        found = parts[0] if len(parts) == 1 else torch.cat(parts)
        require(found.shape[1:] == torch.Size(shape[1:]), f"{path}: the shape of {name} does not match {LAYOUT}")
        return found

    return read


def _rows(file: Any, name: str, rows: range | None) -> Tensor:
    return file.get_tensor(name) if rows is None else file.get_slice(name)[rows.start : rows.stop]
