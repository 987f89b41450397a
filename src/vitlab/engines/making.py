"""Make an engine: prepare or convert a model, and check the result against it."""

import hashlib
import importlib.util
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.engines.agreement import agreement, probe
from vitlab.engines.engine import Engine, EngineName
from vitlab.engines.graphs import cached_graph
from vitlab.engines.networks import is_untouched, prepared
from vitlab.engines.runtimes import GRAPH_ENGINES, network_function, plain_function
from vitlab.models.build import Model
from vitlab.require import require

PACKAGES = {  # that an engine needs besides torch, and the extra that installs them
    "onnxruntime": (("onnx", "onnxscript", "onnxruntime"), "onnxruntime"),
    "onnxruntime-int8": (("onnx", "onnxscript", "onnxruntime"), "onnxruntime"),
    "openvino": (("onnx", "onnxscript", "openvino"), "openvino"),
}
CHANGED = "the model has hooks, replaced parts or a wrapper, which only the plain engine calls"
_made: WeakKeyDictionary[nn.Module, tuple[bytes, Engine]] = WeakKeyDictionary()


def make_engine(model: Model, engine: EngineName) -> Engine:
    """Make the engine of this name; `auto` is chosen elsewhere."""
    weight = next(model.parameters())
    if engine in GRAPH_ENGINES:
        return _graph_engine(model, engine, weight)
    if engine == "torch" and is_untouched(model):
        return _torch_engine(model, weight)
    place = {"device": weight.device, "dtype": weight.dtype}
    if engine == "compiled":
        require(is_untouched(model), f"{CHANGED}; use engine 'plain'")
        return Engine(engine, network_function(cast(nn.Module, torch.compile(prepared(model)))), **place)
    note = f"plain instead of torch: {CHANGED}" if engine == "torch" else ""
    return Engine("plain", plain_function(model), note=note, **place)


def missing_packages(engine: EngineName) -> str:
    """Why an engine cannot be used here, with what to install; empty if it can."""
    packages, extra = PACKAGES.get(engine, ((), ""))
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return f"engine {engine!r} needs {', '.join(missing)}: pip install 'vitlab[{extra}]'" if missing else ""


def _torch_engine(model: Model, weight: Tensor) -> Engine:
    """Streams over packed weights on a CPU, kept for the next call with the same weights; elsewhere the network."""
    if weight.device.type != "cpu":
        return Engine("torch", network_function(prepared(model)), device=weight.device, dtype=weight.dtype)
    digest = _digest(model)
    found, engine = _made.get(model, (b"", None))
    if engine is None or found != digest or engine.streams.number != torch.get_num_threads():
        function = network_function(prepared(model, pack=True))
        engine = Engine("torch", function, function, dtype=weight.dtype)
        _made[model] = (digest, engine)
    return engine


def _digest(model: Model) -> bytes:
    """A hash that changes with the spec and with any weight; reads the weights once."""
    digest = hashlib.sha256(repr(model.spec).encode())
    for tensor in [*model.parameters(), *model.buffers()]:
        rows = tensor.detach().flatten(1) if tensor.dim() > 1 else tensor.detach().reshape(1, -1)
        sums = rows.float() @ torch.cos(torch.arange(rows.shape[1], dtype=torch.float32))  # differ by position
        digest.update(cast(np.ndarray, sums.numpy()).tobytes())
    return digest.digest()


def _graph_engine(model: Model, engine: EngineName, weight: Tensor) -> Engine:
    if why := missing_packages(engine):
        raise ModuleNotFoundError(why)
    given = f"the model is {weight.dtype} on {weight.device}"
    is_usual = weight.device.type == "cpu" and weight.dtype == torch.float32
    require(is_usual, f"engine {engine!r} computes in float32 on the CPU, and {given}; use engine 'torch'")
    require(is_untouched(model), f"{CHANGED}; use engine 'plain' instead of {engine!r}")
    require(model.spec.classes > 0, f"engine {engine!r} needs a model with classes; use engine 'torch'")
    is_int8 = engine == "onnxruntime-int8"
    made = Engine(engine, *GRAPH_ENGINES[engine](cached_graph(model, is_int8=is_int8), torch.get_num_threads()))
    found = agreement(made, model, probe(model, 2))
    require(is_int8 or found.is_exact, f"engine {engine!r} disagrees with the model: {found}; use engine 'torch'")
    return made
