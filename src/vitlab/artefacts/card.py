"""What an artefact says about itself: its model, inputs, outputs, classes and origin, as JSON in artefact.json."""

from dataclasses import dataclass
from typing import Literal

from vitlab.files.strict_json import from_json
from vitlab.require import require
from vitlab.spec import ExportOutput, ExportTarget, ModelSpec, Task

CARD, REPORT, README = "artefact.json", "report.json", "README.md"
FILES: dict[ExportTarget, str] = {"onnx": "model.onnx", "openvino": "model.xml", "torch": "model.pt2"}
INPUT = "pictures"
VERSION = 1


@dataclass(frozen=True)
class Card:
    """Everything that a program needs to know about an artefact, apart from its file."""

    format: Literal["vitlab-artefact"]
    version: int
    target: ExportTarget
    name: str  # of the architecture
    model: ModelSpec
    outputs: tuple[ExportOutput, ...]
    task: Task
    class_names: tuple[str, ...]
    class_names_from: str
    input: str  # in words
    preprocessing: str  # in words
    int8: bool
    provenance: dict[str, str]
    versions: dict[str, str]  # of the programs that wrote it


def read_card(value: object, of: str) -> Card:
    """Check a card that was read from an untrusted file; `of` names the file in messages."""
    version = value.get("version") if isinstance(value, dict) else None
    is_known = not isinstance(version, int) or version <= VERSION
    require(is_known, f"{of} has format version {version}, this vitlab reads up to {VERSION}; update vitlab")
    card = from_json(Card, value, of)
    names, classes = len(card.class_names), card.model.classes
    require(names == classes, f"{of} has {names:,} class names for {classes:,} classes")
    require(bool(card.outputs), f"{of} lists no outputs")
    return card
