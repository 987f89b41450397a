"""Named tensors in untrusted files: shapes first, values on demand; no code in a file is ever run."""

import contextlib
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitlab.files.strict_json import read_json
from vitlab.files.user_files import check_regular, open_regular
from vitlab.npz import NpzError
from vitlab.weights.files.npz import NpzArchive, has_pickle


class WeightsError(ValueError):
    """Weights cannot be used; the message says why."""


@dataclass(frozen=True)
class Container:
    """Tensors by name: `read` reads one. `configs` are the JSON files beside them, by file name."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Tensor]
    configs: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        """Return the shape of a tensor; a WeightsError unless it has this rank and no empty side."""
        if name not in self.shapes:
            raise WeightsError(f"{self.path.name} has no tensor {name!r}")
        shape = self.shapes[name]
        if len(shape) != rank or 0 in shape:
            raise WeightsError(f"{self.path.name}: {name!r} has shape {shape}; expected {rank} non-empty sides")
        return shape

    def renamed(self, new_name: Callable[[str], str | None]) -> "Container":
        """Rename the tensors, and leave out those without a new name; two of one name are an error."""
        names: dict[str, str] = {}
        for name in self.shapes:
            new = new_name(name)
            if new in names:
                raise WeightsError(f"{self.path.name} has both {names[new]!r} and {name!r}")
            if new is not None:
                names[new] = name
        shapes = {new: self.shapes[name] for new, name in names.items()}
        return replace(self, shapes=shapes, read=lambda new: self.read(names[new]))


CONFIGS = ("vitlab.json", "config.json", "preprocessor_config.json")
INDEX = "model.safetensors.index.json"
ZIP = b"PK\x03\x04"
ARTEFACT, EXPORTED = "artefact.json", (".onnx", ".xml", ".pt2")  # what `vitlab export` writes


def open_container(path: Path) -> Container:
    """Open a weights file, or a folder that contains one; its content decides the format."""
    with explained(path):
        return _open_folder(path) if path.is_dir() else _open_file(path)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of the block into a WeightsError that names the file."""
    try:
        yield
    except WeightsError:
        raise
    except (SafetensorError, NpzError) as error:
        raise WeightsError(f"{path.name} is damaged or not what it claims to be: {error}") from None
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:  # a path with a NUL in it
        raise WeightsError(f"cannot read {str(path)!r}: {error}") from None


def _open_file(path: Path) -> Container:
    if path.suffix in EXPORTED:
        raise WeightsError(_exported(path))
    if is_pickle(path):
        raise WeightsError(_pickled(path))
    start = _start(path)
    if start.startswith(ZIP):
        arrays = NpzArchive(path)
        return Container(path, arrays.shapes, arrays.read)
    if len(start) > 8 and start[8:9] == b"{":
        # The usual name in a folder of the hub, whose config.json describes it; vitlab writes no file of this name.
        configs = read_configs(path.parent, CONFIGS[1:]) if path.name == "model.safetensors" else {}
        return _open_safetensors(path, configs=configs)
    known = ".npz of Google, .safetensors of timm, Hugging Face, torchvision or DeiT, and folders of these or of vitlab"
    raise WeightsError(f"{path.name} contains no weights that vitlab can read; supported are {known}")


def _exported(path: Path) -> str:
    can = "which vitlab predict and vitlab evaluate run"
    return f"{path} is for another runtime, {can}; for anything else give the model that it was exported from"


def _pickled(path: Path) -> str:
    command = f"vitlab convert {shlex.quote(str(path))} OUT"
    return f"{path.name} is a PyTorch pickle, which can run code when opened; convert it first: {command}"


def is_pickle(path: Path) -> bool:
    """Whether the content of a file is a pickle: an archive of torch.save, or a stream as in old .pt files."""
    start = _start(path)
    if start.startswith(ZIP):
        return has_pickle(path)
    return len(start) > 1 and start[0] == 0x80 and start[1] <= 5


def _start(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read(16)


def _open_safetensors(path: Path, *others: Path, configs: Mapping[str, dict[str, Any]] | None = None) -> Container:
    files, shapes, metadata = {}, {}, {}
    for part in (path, *others):
        check_regular(part)
        file = safe_open(part, framework="pt")
        metadata |= file.metadata() or {}
        for name in file.keys():  # noqa: SIM118 - not a dict
            if name in files:
                raise WeightsError(f"tensor {name!r} is in two files of {path.parent.name}")
            files[name] = file
            shapes[name] = tuple(file.get_slice(name).get_shape())
    return Container(path, shapes, partial(_cloned, files), configs or {}, metadata)


def _cloned(files: Mapping[str, Any], name: str) -> Tensor:
    return files[name].get_tensor(name).clone()  # independent of the file, which may change later


def _open_folder(path: Path) -> Container:
    if (path / ARTEFACT).is_file():
        raise WeightsError(_exported(path))
    configs = read_configs(path)
    for name in ("weights.safetensors", "model.safetensors"):
        if (path / name).is_file():
            return _open_safetensors(path / name, configs=configs)
    if (path / INDEX).is_file():
        parts = _object(path / INDEX).get("weight_map")
        names = parts.values() if isinstance(parts, dict) else ()
        if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise WeightsError(f"{INDEX} has no usable weight_map of plain file names")
        return _open_safetensors(*(path / name for name in sorted(set(names))), configs=configs)
    for file in sorted(path.glob("*.bin")) + sorted(path.glob("*.pt*")):
        raise WeightsError(_pickled(file))
    raise WeightsError(f"{path} contains neither weights.safetensors nor model.safetensors")


def read_configs(folder: Path, names: tuple[str, ...] = CONFIGS) -> dict[str, dict[str, Any]]:
    """Read the JSON files that describe a model. A file that exists but cannot be read is an error."""
    return {name: _object(folder / name) for name in names if os.path.lexists(folder / name)}


def _object(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
        if not isinstance(value, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        advice = "it describes the weights beside it: restore it, or remove it if it does not belong to them"
        raise WeightsError(f"{path} cannot be read: {reason}; {advice}") from None
    return cast(dict[str, Any], value)


def fitting(
    container: Container, expected: Mapping[str, tuple[int, ...]], unmapped: Iterable[str] = (), *, allow_partial: bool
) -> set[str]:
    """Return the names of the tensors that have their expected shape.

    Raise a WeightsError that lists all others, and the `unmapped` tensors of the model that no file contains, unless
    `allow_partial`.
    """
    shapes = container.shapes
    fits = {name for name, shape in expected.items() if shapes.get(name) == shape}
    misshaped = [name for name in expected if name in shapes and name not in fits]
    lists = {
        "missing": [repr(name) for name in (*(n for n in expected if n not in shapes), *sorted(unmapped))],
        "mis-shaped": [f"{name!r} is {shapes[name]}, not {expected[name]}" for name in misshaped],
        "unexpected": [repr(name) for name in sorted(set(shapes) - set(expected))],
    }
    problems = [f"{len(items)} {kind}: {', '.join(items)}" for kind, items in lists.items() if items]
    if problems and not allow_partial:
        advice = f"{container.path.name} does not fit the model it describes (allow_partial loads the tensors that fit)"
        raise WeightsError("; ".join([advice, *problems]))
    return fits


def usable(tensors: Mapping[str, Tensor], *, keep_half: bool) -> dict[str, Tensor]:
    """Return float tensors of one precision: half precision, unless kept, and mixtures become float32."""
    kinds = {tensor.dtype for tensor in tensors.values()}
    if unknown := kinds - {torch.float16, torch.bfloat16, torch.float32, torch.float64}:
        name = next(name for name, tensor in tensors.items() if tensor.dtype in unknown)
        raise WeightsError(f"{name!r} is {tensors[name].dtype}; weights must be float16, bfloat16, float32 or float64")
    if kinds == {torch.float64} or (keep_half and len(kinds) == 1):
        return dict(tensors)
    return {name: tensor.float() for name, tensor in tensors.items()}
