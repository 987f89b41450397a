"""Make an engine: prepare or convert a model, and check the result against it."""

import hashlib
import importlib.util
import threading
import zlib
from collections.abc import Callable
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

CHANGED = "the model has hooks, replaced parts, changed settings or a wrapper, which only the plain engine computes"
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


def keep_only(model: Model, engine: EngineName) -> None:
    """Let the other engines of a model go, with their copies of its weights."""
    for name in [name for name in _made.get(model, {}) if name != engine]:
        del _made[model][name]


def new_engine(model: Model, engine: EngineName) -> Engine:
    """Make an engine other than `plain`, whether or not there is one already."""
    weight = next(model.parameters())
    place = {"device": weight.device, "dtype": weight.dtype, "size": model.spec.image}
    if engine in GRAPH_ENGINES:
        return _graph_engine(model, engine)
    if engine == "compiled":
        return Engine(engine, network_function(cast(nn.Module, torch.compile(prepared(model, own=True)))), **place)
    is_packed = can_pack(model) and is_packing_faster()
    function = network_function(prepared(model, pack=is_packed, own=True))
    return Engine(engine, function, function if weight.device.type == "cpu" else None, **place)


def packages_of(engine: EngineName) -> tuple[tuple[str, ...], str]:
    """The packages that an engine needs besides torch, and the extra that installs them."""
    if engine not in GRAPH_ENGINES:
        return (), ""
    return ("onnx", "onnxscript", GRAPH_ENGINES[engine].package), GRAPH_ENGINES[engine].package


def missing_packages(engine: EngineName) -> str:
    """Why an engine cannot be used here, with what to install; empty if it can."""
    packages, extra = packages_of(engine)
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return f"engine {engine!r} needs {', '.join(missing)}: pip install 'vitlab[{extra}]'" if missing else ""


def _digest(model: Model) -> bytes:
    """A hash that changes with the spec and with any bit of a weight; reads the weights once.

    Torch's version counters do not count changes through `.data`. CRC-32 reads 3 GB/s, ten times as many as SHA-256,
    and no change of a single number escapes it; of other changes of a tensor, one in 2**32 would.
    """
    digest = hashlib.sha256(repr(model.spec).encode())
    for tensor in [*model.parameters(), *model.buffers()]:
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        content = zlib.crc32(cast(np.ndarray, flat.numpy()).data)
        digest.update(f"{tensor.dtype} {tensor.device} {tuple(tensor.shape)} {content}".encode())
    return digest.digest()


def _graph_engine(model: Model, engine: EngineName) -> Engine:
    if why := missing_packages(engine):
        raise ModuleNotFoundError(why)
    weight = next(model.parameters())
    given = f"the model is {weight.dtype} on {weight.device}"
    is_usual = weight.device.type == "cpu" and weight.dtype == torch.float32
    require(is_usual, f"engine {engine!r} computes in float32 on the CPU, and {given}; use engine 'torch'")
    require(model.spec.classes > 0, f"engine {engine!r} needs a model with classes; use engine 'torch'")
    kind = GRAPH_ENGINES[engine]
    wide, narrow = kind.functions(cached_graph(model, is_int8=kind.is_int8), torch.get_num_threads())
    images = probe(model, 2)
    theirs = Engine("plain", plain_function(model))(images)  # not the model itself, which an engine must not keep alive

    def check(function: Function) -> None:
        found = agreement_of(Engine(engine, function)(images), theirs)
        require(
            kind.is_int8 or found.is_exact, f"engine {engine!r} disagrees with the model: {found}; use engine 'torch'"
        )

    check(narrow)
    return Engine(engine, _checked_first(wide, check), narrow, size=model.spec.image)


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
