"""Models as ONNX graphs, which other engines run; kept in the user's cache, because a conversion takes seconds."""

import contextlib
import hashlib
import importlib.metadata
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vitlab.engines.engine import OUTPUTS
from vitlab.engines.networks import prepared
from vitlab.engines.quantisation import quantise
from vitlab.files.store import remove_folder, verify_folder, write_folder
from vitlab.models.build import Model
from vitlab.models.fingerprint import fingerprint_of

if TYPE_CHECKING:
    from onnx import ModelProto

GRAPH, INPUT = "graph.onnx", "images"
LARGEST_CACHE = 4 * 2**30  # bytes of graphs that are kept; the oldest go first
REVISION = 4  # of what a graph contains; a new one makes the cached ones useless


def cache_folder() -> Path:
    """The folder VITLAB_ENGINE_CACHE, or `vitlab/engines` in the user's cache."""
    if own := os.environ.get("VITLAB_ENGINE_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vitlab" / "engines"


def check_cache() -> None:
    """Raise unless the cache can be written to: called before a conversion, which takes long."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".", dir=folder):
            pass
    except OSError as error:
        is_file = os.path.isfile(folder)  # noqa: PTH113 - Path raises where a folder above may not be entered
        why = "it is a file" if is_file else (error.strerror or error)
        advice = "set VITLAB_ENGINE_CACHE to a folder that can be, or use engine 'torch'"
        raise OSError(f"converted models are kept in {folder}, which cannot be written to ({why}); {advice}") from None


def cached_graph(model: Model, *, is_int8: bool = False) -> Path:
    """The graph of a model from the cache, converted first if it is not there or is damaged."""
    versions = [importlib.metadata.version(package) for package in ("torch", "onnx", "onnxscript")]
    key = "/".join([fingerprint_of(model), str(REVISION), *versions, *(["int8"] if is_int8 else [])])
    folder = cache_folder() / hashlib.sha256(key.encode()).hexdigest()[:32]
    if _is_whole(folder):
        with contextlib.suppress(OSError):
            os.utime(folder)  # the oldest are removed first
        return folder / GRAPH
    check_cache()
    with contextlib.suppress(OSError):  # not there, or another process is removing it
        remove_folder(folder)
    with TemporaryDirectory() as made:
        write_graph(model, Path(made) / GRAPH)
        if is_int8:
            quantise(Path(made) / GRAPH)
        files = {file.name: partial(shutil.copyfile, file) for file in sorted(Path(made).iterdir())}
        try:
            write_folder(folder, files)
        except OSError:
            if not _is_whole(folder):  # else another process was faster
                raise
    _shrink(cache_folder())
    return folder / GRAPH


def _is_whole(folder: Path) -> bool:
    try:
        verify_folder(folder, [GRAPH])
    except (OSError, ValueError):
        return False
    return True


def write_graph(model: Model, path: Path) -> None:
    """Convert a model: from images (B, 3, H, W), preprocessed, to features (B, D) and logits (B, K), for any B.

    The weights are in a second file, `path` with .data appended.
    """
    images = torch.zeros(2, 3, *model.spec.image, dtype=next(model.parameters()).dtype)  # 1 would be taken as fixed
    write_traced(prepared(model), {INPUT: images}, OUTPUTS, path, sides={0: "batch"})


def write_traced(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    path: Path,
    sides: Mapping[int, str] | None = None,
) -> None:
    """Convert a module to ONNX by running it on examples of its inputs, with its weights in `path` + .data.

    `sides` are the sides of the inputs that may have any length, with their names; an example's must be 2 or more. The
    converter's notes on the code that made each node are left out: they name files of this machine.
    """
    import onnx

    lengths = {side: torch.export.Dim(name, min=1) for side, name in (sides or {}).items()}
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            module,
            tuple(inputs.values()),
            dynamo=True,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=(lengths,) * len(inputs) if lengths else None,
            verbose=False,
        )
        assert program is not None
        program.save(str(path), external_data=True)
    graph = onnx.load(path, load_external_data=False)
    for one in messages(graph):
        for note in ("metadata_props", "doc_string"):
            if note in one.DESCRIPTOR.fields_by_name:
                one.ClearField(note)
    path.write_bytes(graph.SerializeToString())


def traced_graph(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    sides: Mapping[int, str] | None = None,
) -> "ModelProto":
    """The graph that `write_traced` writes, with its weights inside."""
    import onnx

    with TemporaryDirectory() as scratch:
        write_traced(module, inputs, outputs, Path(scratch) / GRAPH, sides)
        return onnx.load(Path(scratch) / GRAPH)


def messages(part: Any) -> Iterator[Any]:
    """Yield every part of a graph: nodes, attributes and tensors, also those of the graphs inside nodes and functions.

    The numbers of a tensor are not read.
    """
    import onnx

    yield part
    if isinstance(part, onnx.TensorProto):
        return
    for field, value in part.ListFields():
        if field.message_type is not None:
            for one in (value,) if hasattr(value, "ListFields") else value:
                yield from messages(one)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what the converters say about themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _shrink(folder: Path) -> None:
    """Remove the graphs that were not used for longest until the rest is small enough.

    Other processes may write and remove graphs meanwhile: what they write has a hidden name until it is complete, and
    what they have removed is passed over.
    """
    found = [_last_use(path) for path in folder.iterdir() if not path.name.startswith(".") and (path / GRAPH).exists()]
    graphs = sorted(one for one in found if one is not None)
    total = sum(size for _, size, _ in graphs)
    for _, size, path in graphs[:-1]:
        if total <= LARGEST_CACHE:
            return
        with contextlib.suppress(OSError):
            remove_folder(path)
        total -= size


def _last_use(path: Path) -> tuple[float, int, Path] | None:
    """When a graph was last used, its bytes and its folder; None for other files and for one that is being removed."""
    try:
        return path.stat().st_mtime, sum(file.stat().st_size for file in path.iterdir()), path
    except OSError:
        return None
