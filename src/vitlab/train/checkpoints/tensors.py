"""Tensor files of a checkpoint: whole tensors, or the rows of each rank, readable on any number of ranks.

layout.json: {"ranks": N, "groups": {"model": {"head.logits.weight": [10, 768], ...}, ...}}; a tensor whose shape is
null is not split and is in the file of rank 0. `rows_of_rank` gives the rows of a rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from vitlab.require import require
from vitlab.strict_json import from_json, read_json
from vitlab.train.state import Read
from vitlab.world.group import World
from vitlab.world.parallel import is_sharded, rows_of_rank

LAYOUT = "layout.json"


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


def open_whole(path: Path) -> dict[str, tuple[list[str], Read]]:
    """The groups of a checkpoint of whole tensors: tensor names, and a function that reads one or some rows of it."""
    files = sorted(path.glob("*.safetensors"))
    opened: dict[str, Any] = {
        file.name.removesuffix(".safetensors"): safe_open(file, "pt", device="cpu") for file in files
    }

    def reader(file: Any) -> Read:
        return lambda name, rows: file.get_tensor(name) if rows is None else _rows(file, name, rows)

    return {group: (list(file.keys()), reader(file)) for group, file in opened.items()}


def open_parts(path: Path) -> dict[str, tuple[list[str], Read]]:
    """The groups of a checkpoint of split tensors; only the requested rows are read."""
    layout = read_layout(path)
    return {group: (list(shapes), _reader(path, group, layout)) for group, shapes in layout.groups.items()}


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
            whole = file(0).get_tensor(name)
            return whole if rows is None else whole[rows.start : rows.stop]
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


def _rows(file: Any, name: str, rows: range) -> Tensor:
    return file.get_slice(name)[rows.start : rows.stop]
