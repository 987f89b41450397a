"""vitlab's own folder: weights.safetensors, vitlab.json with everything else, manifest.json with the hashes."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from vitlab.files.store import MANIFEST, json_writer, verify_folder, write_folder
from vitlab.files.strict_json import from_json, read_json, to_json
from vitlab.spec import ModelSpec, Task, ViTSpec
from vitlab.weights.files.containers import Container, WeightsError

CARD = "vitlab.json"
WEIGHTS = "weights.safetensors"
VERSION = 1


@dataclass(frozen=True)
class Card:
    """Everything that a model folder states apart from the weights."""

    format: Literal["vitlab-model"]
    version: int
    model: ModelSpec
    class_names: tuple[str, ...] | None = None
    provenance: dict[str, str] | None = None
    task: Task = "single-label"  # not written if it is the default


def verified_card(path: Path, container: Container) -> Card:
    """Read the card of the folder at `path` after checking every field, and that every byte is what was written."""
    if not (path / MANIFEST).is_file():
        raise WeightsError(f"{path} has no {MANIFEST}; the folder is incomplete")
    value: dict[str, Any] = container.configs[CARD]
    version = value.get("version")
    try:
        verify_folder(path, (CARD, WEIGHTS))
        if isinstance(version, int) and version > VERSION:
            raise ValueError(f"{CARD} has format version {version}, this vitlab reads up to {VERSION}; update vitlab")
        card = from_json(Card, value, CARD)
    except ValueError as error:
        raise WeightsError(str(error)) from None
    if card.version < 1:
        raise WeightsError(f"{CARD} has format version {card.version}; versions start at 1")
    if card.class_names is not None and len(card.class_names) != card.model.classes:
        raise WeightsError(f"{CARD} has {len(card.class_names)} class names for {card.model.classes} classes")
    return card


def verified_hashes(path: Path) -> dict[Path, str]:
    """The SHA-256 of every file of a folder that `verified_card` has checked; empty for another library's folder."""
    if not (path / CARD).is_file():
        return {}
    return {path / name: entry["sha256"] for name, entry in cast(dict[str, Any], read_json(path / MANIFEST)).items()}


def _write_weights(tensors: dict[str, Tensor], file: Path) -> None:
    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk, for one
        raise OSError(f"{file.name} could not be written: {error}") from None


def save(path: Path, tensors: dict[str, Tensor], card: Card) -> None:
    """Write the folder completely or not at all."""
    value = to_json(card)
    if card.task == "single-label":
        del value["task"]  # so that versions of vitlab without this field can read the folder
    if isinstance(card.model, ViTSpec) and not card.model.merge:
        del cast(dict[str, object], value["model"])["merge"]  # likewise
    write_folder(path, {WEIGHTS: partial(_write_weights, tensors), CARD: json_writer(value)})
