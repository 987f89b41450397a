"""Models as ONNX graphs, which other engines run; kept in the user's cache, because a conversion takes seconds."""

import contextlib
import hashlib
import importlib.metadata
import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from vitlab.engines.engine import OUTPUTS
from vitlab.engines.networks import prepared
from vitlab.engines.quantisation import quantise
from vitlab.models.build import Model
from vitlab.models.fingerprint import fingerprint_of
from vitlab.store import remove_folder, verify_folder, write_folder

GRAPH, INPUT = "graph.onnx", "images"
LARGEST_CACHE = 4 * 2**30  # bytes of graphs that are kept; the oldest go first
REVISION = 2  # of what a graph contains; a new one makes the cached ones useless


def cache_folder() -> Path:
    """The folder VITLAB_ENGINE_CACHE, or `vitlab/engines` in the user's cache."""
    if own := os.environ.get("VITLAB_ENGINE_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vitlab" / "engines"


def cached_graph(model: Model, *, is_int8: bool = False) -> Path:
    """The graph of a model from the cache, converted first if it is not there or is damaged."""
    versions = [importlib.metadata.version(package) for package in ("torch", "onnx", "onnxscript")]
    key = "/".join([fingerprint_of(model), str(REVISION), *versions, *(["int8"] if is_int8 else [])])
    folder = cache_folder() / hashlib.sha256(key.encode()).hexdigest()[:32]
    try:
        verify_folder(folder, [GRAPH])
        os.utime(folder)
    except (OSError, ValueError):
        if folder.exists():
            remove_folder(folder)
        with TemporaryDirectory() as made:
            write_graph(model, Path(made) / GRAPH)
            if is_int8:
                quantise(Path(made) / GRAPH)
            files = {file.name: partial(shutil.copyfile, file) for file in sorted(Path(made).iterdir())}
            with contextlib.suppress(FileExistsError):  # another process was faster
                write_folder(folder, files)
        _shrink(cache_folder())
    return folder / GRAPH


def write_graph(model: Model, path: Path) -> None:
    """Convert a model: from images (B, 3, H, W), preprocessed, to features (B, D) and logits (B, K), for any B.

    The weights are in a second file, `path` with .data appended.
    """
    network = prepared(model)
    images = torch.zeros(2, 3, *model.spec.image, dtype=next(model.parameters()).dtype)  # 1 would be taken as fixed
    batch = {INPUT: {0: torch.export.Dim("batch")}}
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            network,
            (images,),
            dynamo=True,
            input_names=[INPUT],
            output_names=OUTPUTS,
            dynamic_shapes=batch,
            verbose=False,
        )
        assert program is not None
        program.save(str(path), external_data=True)


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
    """Remove the graphs that were not used for longest until the rest is small enough."""
    graphs = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    sizes = [sum(file.stat().st_size for file in path.iterdir()) for path in graphs]
    for path, _ in zip(graphs[:-1], sizes, strict=False):
        if sum(sizes) <= LARGEST_CACHE:
            return
        remove_folder(path)
        sizes.pop(0)
