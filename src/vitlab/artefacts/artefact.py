"""Artefacts: models that run in another runtime, from decoded pictures on, opened from files that may be untrusted."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitlab.artefacts.card import CARD, FILES, INPUT, Card, read_card
from vitlab.artefacts.programs import open_program
from vitlab.engines.engine import EngineName, Pending
from vitlab.require import require
from vitlab.spec import ExportOutput, ExportTarget
from vitlab.store import sha256, verify_folder
from vitlab.strict_json import parse_json, read_json
from vitlab.user_files import check_regular

if TYPE_CHECKING:
    from onnx import ModelProto

Run = Callable[[Tensor], dict[str, Tensor]]  # pictures (B, H, W, 3) of uint8 -> outputs by name
SUFFIXES = {Path(name).suffix: target for target, name in FILES.items()}
PACKAGES: dict[ExportTarget, tuple[tuple[str, ...], str]] = {  # to write and to run it, and the extra that has them
    "onnx": (("onnx", "onnxscript", "onnxruntime"), "onnxruntime"),
    "openvino": (("onnx", "onnxscript", "openvino"), "openvino"),
    "torch": ((), ""),
}
ENGINES: dict[ExportTarget, EngineName] = {"onnx": "onnxruntime", "openvino": "openvino", "torch": "torch"}
LARGEST_FILE = 2**40  # bytes of weights beside a graph
DOMAINS = {"", "ai.onnx", "com.microsoft"}  # of ONNX operators


class Artefact:
    """A model in a file of another runtime, with its preprocessing.

    It is called with decoded pictures (B, H, W, 3) of uint8, of any H and W, and returns its outputs by name.
    """

    def __init__(self, path: Path, card: Card, fingerprint: str) -> None:
        self.path, self.card, self.fingerprint = path, card, fingerprint
        self.spec, self.task, self.class_names = card.model, card.task, card.class_names
        self._run = OPENERS[card.target](path, card)

    @property
    def engine(self) -> EngineName:
        """What computes it."""
        return "onnxruntime-int8" if self.card.int8 else ENGINES[self.card.target]

    def __call__(self, pictures: Tensor) -> dict[str, Tensor]:
        """(B, H, W, 3) of uint8 -> the outputs by name."""
        is_picture = pictures.dtype == torch.uint8 and pictures.dim() == 4 and pictures.shape[3] == 3
        found = f"{tuple(pictures.shape)} of {pictures.dtype}"
        require(is_picture and 0 not in pictures.shape, f"pictures are (B, H, W, 3) of uint8, not {found}")
        with torch.inference_mode():
            return self._run(pictures.contiguous())

    def outputs(self, pictures: Sequence[Tensor], name: ExportOutput = "logits") -> Tensor:
        """One output for decoded pictures (H, W, 3) of any sizes; those of one size are computed together."""
        offered = ", ".join(self.card.outputs)
        require(name in self.card.outputs, f"{self.path} has no output {name!r}, only {offered}; export it with {name}")
        by_size: dict[tuple[int, ...], list[int]] = {}
        for number, picture in enumerate(pictures):
            by_size.setdefault(tuple(picture.shape), []).append(number)
        found: dict[int, Tensor] = {}
        for numbers in by_size.values():
            made = self(torch.stack([pictures[number] for number in numbers]))[name]
            found |= dict(zip(numbers, made, strict=True))
        return torch.stack([found[number] for number in range(len(pictures))])

    def submit(self, pictures: Sequence[Tensor], name: ExportOutput = "logits") -> Pending:
        """The same, as an engine gives it."""
        return Pending(self.outputs(pictures, name))

    def probabilities(self, logits: Tensor) -> Tensor:
        """(B, K) -> (B, K): a softmax over classes, or for a multi-label model a sigmoid per class."""
        return logits.sigmoid() if self.task == "multi-label" else logits.softmax(dim=-1)


def is_artefact(path: object) -> bool:
    """Whether a path names an artefact: its folder, or its file."""
    if not isinstance(path, str | Path):
        return False
    try:
        return (Path(path).suffix in SUFFIXES and Path(path).is_file()) or (Path(path) / CARD).is_file()
    except (OSError, ValueError):
        return False


def open_artefact(given: str | Path) -> Artefact:
    """Open the folder that `vitlab.export` wrote, or the file in it; an ONNX file may also be somewhere else.

    Every file of a folder is checked by its hash. No code in a file is run.
    """
    path = Path(given)
    folder = path if path.is_dir() else path.parent
    try:
        if not (folder / CARD).is_file():
            return _open_alone(path)
        card = read_card(read_json(folder / CARD), CARD)
        file = folder / FILES[card.target]
        is_own = path in (folder, file)
        require(is_own, f"is not the file of the artefact in its folder, which is {file.name}; give the folder")
        verify_folder(folder, (CARD, file.name))
        return Artefact(file, card, sha256(file))
    except ValueError as error:
        said = str(error)
        raise ValueError(said if said.startswith(str(folder)) else f"{path}: {said}") from None


def missing_packages(target: ExportTarget) -> str:
    """Why a target cannot be written or run here, with what to install; empty if it can."""
    packages, extra = PACKAGES[target]
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return f"{target} needs {', '.join(missing)}: pip install 'vitlab[{extra}]'" if missing else ""


def check_packages(target: ExportTarget) -> None:
    """Raise a ModuleNotFoundError that names the extra if a target cannot be written or run here."""
    if why := missing_packages(target):
        raise ModuleNotFoundError(why)


def _open_alone(path: Path) -> Artefact:
    """Open an ONNX file that was copied out of its folder: it contains its card."""
    check_regular(path)
    require(SUFFIXES[path.suffix] == "onnx", f"has no {CARD} beside it; give the folder that vitlab export wrote")
    check_packages("onnx")
    properties = {one.key: one.value for one in _read_onnx(path).metadata_props}
    unknown = "is not of vitlab export: it does not say how its images are preprocessed and what its classes are"
    require("vitlab" in properties, unknown)
    return Artefact(path, read_card(parse_json(properties["vitlab"].encode(), path.name), path.name), sha256(path))


# -- Runtimes ------------------------------------------------------------------------------------------------


def _open_onnx(path: Path, card: Card) -> Run:
    check_packages("onnx")
    import onnxruntime

    _check_onnx(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(pictures: Tensor) -> dict[str, Tensor]:
        found = session.run(list(card.outputs), {INPUT: pictures.numpy()})
        return {name: torch.from_numpy(one) for name, one in zip(card.outputs, found, strict=True)}

    return run


def _read_onnx(path: Path) -> "ModelProto":
    """Read a graph without the weights beside it."""
    import onnx

    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # of protobuf
        raise ValueError(f"is no ONNX graph: {error}") from None


def _check_onnx(path: Path) -> None:
    """Raise unless a graph has operators of ONNX and of its runtime only, and weights in files beside it only."""
    graph = _read_onnx(path)
    strange = {one.domain for one in (*graph.opset_import, *graph.graph.node)} - DOMAINS
    require(
        not strange and not graph.functions, f"has operators of {sorted(strange)!r:.80}, which vitlab does not write"
    )
    outside = {
        place.value
        for one in graph.graph.initializer
        for place in one.external_data
        if place.key == "location" and Path(place.value).name != place.value
    }
    require(not outside, f"has weights outside its folder: {sorted(outside)!r:.80}")


def _open_openvino(path: Path, card: Card) -> Run:
    check_packages("openvino")
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    try:
        compiled: Any = core.compile_model(core.read_model(path), "CPU", settings | {"ENABLE_CPU_PINNING": False})
    except RuntimeError as error:
        raise ValueError(f"cannot be opened by OpenVINO: {' '.join(str(error).split()):.200}") from None

    def run(pictures: Tensor) -> dict[str, Tensor]:
        found = compiled({INPUT: pictures.numpy()})
        return {name: torch.from_numpy(found[name].copy()) for name in card.outputs}

    return run


def _open_torch(path: Path, card: Card) -> Run:
    program = open_program(path)
    return lambda pictures: dict(zip(card.outputs, program(pictures), strict=True))


OPENERS: dict[ExportTarget, Callable[[Path, Card], Run]] = {
    "onnx": _open_onnx,
    "openvino": _open_openvino,
    "torch": _open_torch,
}
