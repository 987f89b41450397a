"""Artefacts: models that run in another runtime, from decoded pictures on, opened from files that may be untrusted."""

import hashlib
import importlib.util
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitlab.artefacts.card import CARD, FILES, INPUT, README, REPORT, Card, read_card
from vitlab.artefacts.programs import open_program
from vitlab.engines.engine import EngineName, Pending
from vitlab.engines.graphs import messages
from vitlab.files.store import sha256, verify_folder
from vitlab.files.strict_json import parse_json, read_json
from vitlab.files.user_files import check_regular
from vitlab.require import require
from vitlab.spec import ExportOutput, ExportTarget

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
WEIGHTS: dict[ExportTarget, tuple[str, ...]] = {"onnx": (), "openvino": ("model.bin",), "torch": ()}  # always there
SMALL = (1, 8, 8, 3)  # shape of the pictures that an artefact is tried with when it is opened
DOMAINS = {"", "ai.onnx", "com.microsoft"}  # of ONNX operators


class Artefact:
    """A model in a file of another runtime, with its preprocessing.

    It is called with decoded pictures (B, H, W, 3) of uint8, of any H and W, and returns its outputs by name.
    """

    def __init__(self, path: Path, card: Card, fingerprint: str, run: Run) -> None:
        self.path, self.card, self.fingerprint = path, card, fingerprint
        self.spec, self.task, self.class_names = card.model, card.task, card.class_names
        self._run = run
        self._try()

    def _try(self) -> None:
        """Raise unless the model runs and its logits have the classes of the card."""
        try:
            made = self(torch.zeros(SMALL, dtype=torch.uint8))
        except Exception as error:  # a runtime raises whatever a wrong graph leads to
            raise ValueError(f"cannot be run by {self.engine}: {_line(error)}") from None
        classes = self.card.model.classes
        for name, one in made.items():
            shape = tuple(one.shape)
            is_right = shape == (1, classes) if name == "logits" else shape[:1] == (1,)
            expected = f"(1, {classes})" if name == "logits" else "(1, ...)"
            require(is_right, f"returns {name} {shape} for one picture, where {CARD} promises {expected}")

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
        hashes = verify_folder(folder, (CARD, file.name, *WEIGHTS[card.target]))
        parts = {name: value for name, value in sorted(hashes.items()) if name not in (CARD, REPORT, README)}
        fingerprint = hashlib.sha256("".join(f"{name} {value}\n" for name, value in parts.items()).encode())
        return open_parts(file, card, fingerprint.hexdigest(), tuple(parts))
    except ValueError as error:
        said = str(error)
        raise ValueError(said if said.startswith(str(folder)) else f"{path}: {said}") from None


def open_parts(path: Path, card: Card, fingerprint: str, parts: Collection[str]) -> Artefact:
    """Open the file of an artefact; `parts` are the names of the files in its folder that it may read."""
    return Artefact(path, card, fingerprint, OPENERS[card.target](path, card, parts))


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
    graph = _read_onnx(path)
    properties = {one.key: one.value for one in graph.metadata_props}
    unknown = (
        "was not written by vitlab export: it does not say how its images are preprocessed or what its classes are"
    )
    require("vitlab" in properties, unknown)
    card = read_card(parse_json(properties["vitlab"].encode(), path.name), path.name)
    require(card.target == "onnx", f"is an ONNX graph with the card of an artefact for {card.target}")
    return Artefact(path, card, sha256(path), _run_onnx(path, card, graph, ()))


# -- Runtimes ------------------------------------------------------------------------------------------------


def _open_onnx(path: Path, card: Card, parts: Collection[str]) -> Run:
    check_packages("onnx")
    return _run_onnx(path, card, _read_onnx(path), parts)


def _run_onnx(path: Path, card: Card, graph: "ModelProto", parts: Collection[str]) -> Run:
    """Open a graph that was read from a file; its weights may be in `parts` of the file's folder."""
    import onnxruntime

    _check_onnx(graph, parts)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no other class in common
        raise ValueError(f"cannot be opened by ONNX Runtime: {_line(error)}") from None

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
        raise ValueError(f"is not an ONNX graph: {_line(error)}") from None


def _check_onnx(graph: "ModelProto", parts: Collection[str]) -> None:
    """Raise unless a graph has operators of ONNX and of its runtime only, and weights only in itself and in `parts`."""
    import onnx

    domains, places = {one.domain for one in graph.opset_import}, set()
    for one in messages(graph):
        if isinstance(one, onnx.NodeProto):
            domains.add(one.domain)
        elif isinstance(one, onnx.TensorProto):
            places |= {place.value for place in one.external_data if place.key == "location"}
    strange = sorted(domains - DOMAINS)
    require(not strange, f"has operators of {strange!r:.80}, which vitlab does not write")
    require(not graph.functions, "has functions, which vitlab does not write")
    outside = sorted(place for place in places if Path(place).name != place)
    require(not outside, f"has weights outside its folder: {outside!r:.80}")
    other = sorted(places - set(parts))
    require(
        not other, f"has weights in {other!r:.80}, which cannot be checked; give the folder that vitlab export wrote"
    )


def _open_openvino(path: Path, card: Card, _: Collection[str]) -> Run:
    check_packages("openvino")
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    try:
        compiled: Any = core.compile_model(core.read_model(path), "CPU", settings | {"ENABLE_CPU_PINNING": False})
    except RuntimeError as error:
        raise ValueError(f"cannot be opened by OpenVINO: {_line(error)}") from None

    def run(pictures: Tensor) -> dict[str, Tensor]:
        found = compiled({INPUT: pictures.numpy()})
        return {name: torch.from_numpy(found[name].copy()) for name in card.outputs}

    return run


def _open_torch(path: Path, card: Card, _: Collection[str]) -> Run:
    program = open_program(path)
    return lambda pictures: dict(zip(card.outputs, program(pictures), strict=True))


def _line(error: Exception) -> str:
    """An error's message on one line."""
    return f"{' '.join(str(error).split()):.200}"


OPENERS: dict[ExportTarget, Callable[[Path, Card, Collection[str]], Run]] = {
    "onnx": _open_onnx,
    "openvino": _open_openvino,
    "torch": _open_torch,
}
