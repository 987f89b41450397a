"""Make an engine: prepare or convert a model, and check the result against it."""

import hashlib
import importlib.util
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.engines.agreement import agreement_of, probe
from vitlab.engines.engine import Engine, EngineName, Function, Output
from vitlab.engines.graphs import cached_graph
from vitlab.engines.machine import is_packing_faster
from vitlab.engines.networks import can_pack, is_untouched, prepared
from vitlab.engines.runtimes import GRAPH_ENGINES, network_function, plain_function
from vitlab.models.build import Model
from vitlab.require import require

PACKAGES = {  # that an engine needs besides torch, and the extra that installs them
    "onnxruntime": (("onnx", "onnxscript", "onnxruntime"), "onnxruntime"),
    "onnxruntime-int8": (("onnx", "onnxscript", "onnxruntime"), "onnxruntime"),
    "openvino": (("onnx", "onnxscript", "openvino"), "openvino"),
}
CHANGED = "the model has hooks, replaced parts or a wrapper, which only the plain engine calls"
_made: WeakKeyDictionary[nn.Module, dict[EngineName, tuple[bytes, Engine]]] = WeakKeyDictionary()


def make_engine(model: Model, engine: EngineName) -> Engine:
    """Make the engine of this name; `auto` is chosen elsewhere.

    Engines other than `plain` are kept as long as the model, and made again when its weights or the threads changed.
    """
    weight = next(model.parameters())
    if engine == "plain" or (engine == "torch" and not is_untouched(model)):
        note = f"plain instead of torch: {CHANGED}" if engine == "torch" else ""
        return Engine("plain", plain_function(model), device=weight.device, dtype=weight.dtype, note=note)
    require(is_untouched(model), f"{CHANGED}; use engine 'plain' instead of {engine!r}")
    digest, threads = _digest(model), torch.get_num_threads()
    found, kept = _made.setdefault(model, {}).get(engine, (b"", None))
    if kept is None or found != digest or kept.streams.number != threads:
        kept = new_engine(model, engine)
        _made[model][engine] = (digest, kept)
    return kept


def new_engine(model: Model, engine: EngineName) -> Engine:
    """Make an engine other than `plain`, whether or not there is one already."""
    weight = next(model.parameters())
    place = {"device": weight.device, "dtype": weight.dtype}
    if engine in GRAPH_ENGINES:
        return _graph_engine(model, engine, weight)
    if engine == "compiled":
        return Engine(engine, network_function(cast(nn.Module, torch.compile(prepared(model, own=True)))), **place)
    is_packed = can_pack(model) and is_packing_faster()
    function = network_function(prepared(model, pack=is_packed, own=True))
    return Engine(engine, function, function if weight.device.type == "cpu" else None, **place)


def missing_packages(engine: EngineName) -> str:
    """Why an engine cannot be used here, with what to install; empty if it can."""
    packages, extra = PACKAGES.get(engine, ((), ""))
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return f"engine {engine!r} needs {', '.join(missing)}: pip install 'vitlab[{extra}]'" if missing else ""


def _digest(model: Model) -> bytes:
    """A hash that changes with the spec and with any weight; reads the weights once."""
    digest = hashlib.sha256(repr(model.spec).encode())
    for tensor in [*model.parameters(), *model.buffers()]:
        digest.update(f"{tensor.dtype} {tensor.device} {tuple(tensor.shape)}".encode())
        rows = tensor.detach().flatten(1) if tensor.dim() > 1 else tensor.detach().reshape(1, -1)
        sums = rows.float() @ _factors(rows.shape[1], rows.device)
        digest.update(cast(np.ndarray, sums.cpu().numpy()).tobytes())
    return digest.digest()


@lru_cache(maxsize=64)
def _factors(length: int, device: torch.device) -> Tensor:
    """Different ones for each place of a row: the order of the weights would not change a plain sum."""
    return torch.arange(length, dtype=torch.float32, device=device).cos()


def _graph_engine(model: Model, engine: EngineName, weight: Tensor) -> Engine:
    if why := missing_packages(engine):
        raise ModuleNotFoundError(why)
    given = f"the model is {weight.dtype} on {weight.device}"
    is_usual = weight.device.type == "cpu" and weight.dtype == torch.float32
    require(is_usual, f"engine {engine!r} computes in float32 on the CPU, and {given}; use engine 'torch'")
    require(model.spec.classes > 0, f"engine {engine!r} needs a model with classes; use engine 'torch'")
    is_int8 = engine == "onnxruntime-int8"
    wide, narrow = GRAPH_ENGINES[engine](cached_graph(model, is_int8=is_int8), torch.get_num_threads())
    images = probe(model, 2)
    theirs = Engine("plain", plain_function(model))(images)  # not the model itself, which an engine must not keep alive

    def check(function: Function) -> None:
        found = agreement_of(Engine(engine, function)(images), theirs)
        require(is_int8 or found.is_exact, f"engine {engine!r} disagrees with the model: {found}; use engine 'torch'")

    check(narrow)
    return Engine(engine, _checked_first(wide, check), narrow)


def _checked_first(function: Function, check: Callable[[Function], None]) -> Function:
    """The same function, checked before its first batch: building it takes long, and not every job needs it."""
    checking, checked = threading.Lock(), threading.Event()

    def run(images: Tensor, output: Output) -> Tensor:
        with checking:
            if not checked.is_set():
                check(function)
                checked.set()
        return function(images, output)

    return run
