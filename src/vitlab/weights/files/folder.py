"""vitlab's own folder: weights.safetensors, vitlab.json with everything else, manifest.json with the hashes."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from vitlab.spec import ModelSpec, Task
from vitlab.store import json_writer, write_folder
from vitlab.strict_json import from_json, to_json
from vitlab.weights.files.containers import Container, WeightsError
from vitlab.weights.formats.hints import Hints
from vitlab.weights.formats.layouts import SAME, Entry

CARD = "vitlab.json"
WEIGHTS = "weights.safetensors"
VERSION = 1


@dataclass(frozen=True)
class Card:
    """Everything a model folder says beside the weights."""

    format: Literal["vitlab-model"]
    version: int
    model: ModelSpec
    class_names: tuple[str, ...] | None = None
    provenance: dict[str, str] | None = None
    task: Task = "single-label"  # written only where it is another


def matches(container: Container) -> bool:
    """Whether the tensors lie in a folder of ours."""
    return CARD in container.configs


def read_card(container: Container) -> Card:
    """The folder's card, checked field by field."""
    value: dict[str, Any] = container.configs[CARD]
    version = value.get("version")
    if isinstance(version, int) and version > VERSION:
        raise WeightsError(f"{CARD} has format version {version}, this vitlab reads up to {VERSION}; update vitlab")
    try:
        card = from_json(Card, value, CARD)
    except ValueError as error:
        raise WeightsError(str(error)) from None
    if card.version < 1:
        raise WeightsError(f"{CARD} has format version {card.version}; versions start at 1")
    if card.class_names is not None and len(card.class_names) != card.model.classes:
        raise WeightsError(f"{CARD} has {len(card.class_names)} class names for {card.model.classes} classes")
    return card


def describe(container: Container, hints: Hints) -> ModelSpec:
    """The model the card speaks of."""
    return read_card(container).model


def class_names(container: Container) -> object:
    """The card's class names."""
    return read_card(container).class_names


def task(container: Container) -> Task:
    """The card's task."""
    return read_card(container).task


def table(spec: ModelSpec, container: Container | None) -> list[Entry]:
    """Our names, unchanged."""
    names = list(container.shapes) if container is not None else []
    return [Entry(name, (name,), SAME) for name in names]


def _write_weights(tensors: dict[str, Tensor], file: Path) -> None:
    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk, for one
        raise OSError(f"{file.name} could not be written: {error}") from None


def save(path: Path, tensors: dict[str, Tensor], card: Card) -> None:
    """Write the folder whole or not at all."""
    value = to_json(card)
    if card.task == "single-label":
        del value["task"]  # versions of vitlab that do not know the field can read the folder
    write_folder(
        path,
        {
            WEIGHTS: partial(_write_weights, tensors),
            CARD: json_writer(value),
        },
    )
