"""The fastest engine for a model on this machine: measured once, checked against the plain model, remembered."""

import hashlib
import importlib.metadata
import json
import random
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

import torch

from vitlab.engines.agreement import agreement, probe
from vitlab.engines.engine import Engine, EngineName
from vitlab.engines.graphs import REVISION, cache_folder
from vitlab.engines.machine import machine
from vitlab.engines.making import make_engine, missing_packages
from vitlab.engines.networks import is_untouched
from vitlab.models.build import Model
from vitlab.models.fingerprint import fingerprint_of
from vitlab.store import make_folder, write_json
from vitlab.strict_json import parse_json
from vitlab.user_files import read_regular

CANDIDATES: tuple[EngineName, ...] = ("torch", "onnxruntime", "openvino")  # exact ones that open within seconds
ROUNDS, SECONDS = 7, 10.0  # of measuring all candidates, at most
CLEARLY = 1.05  # times as fast as torch, or torch is taken, which opens at once: less is no difference


def fastest(model: Model, batch: int) -> Engine:
    """Open the fastest installed engine for batches of this size."""
    weight = next(model.parameters())
    if (
        weight.device.type != "cpu"
        or weight.dtype != torch.float32
        or not is_untouched(model)
        or not model.spec.classes
    ):
        return replace(make_engine(model, "torch"), note="auto: no other engine can compute this model")
    there = [name for name in CANDIDATES if not missing_packages(name)]
    if there == ["torch"]:
        return replace(make_engine(model, "torch"), note="auto: no other engine is installed")
    path = cache_folder() / f"{_key(model, batch, there)}.json"
    known = _read(path)
    if known is None:
        engines, known = _measure(model, batch, there)
        make_folder(path.parent)
        write_json(path, known)
        engine = engines[_best(known)]
    else:
        engine = make_engine(model, _best(known))
    speeds = ", ".join(f"{name} {speed:.1f}" for name, speed in known.items())
    return replace(engine, note=f"auto: fastest for batches of {batch}, in images/s: {speeds}")


def _measure(model: Model, batch: int, names: list[EngineName]) -> tuple[dict[str, Engine], dict[str, float]]:
    """Open engines and time them on random images, interleaved; one that disagrees with the plain model is left out."""
    images, engines = probe(model, batch), {}
    for name in names:
        try:
            engine = make_engine(model, name)
        except (ValueError, RuntimeError):  # it cannot convert this model, or disagrees with it
            continue
        found = agreement(engine, model, images)  # also the first call, which is slow
        if name == "torch" or found.is_exact:
            engines[name] = engine
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    begin = time.monotonic()
    for number in range(ROUNDS):
        for name in random.Random(number).sample(list(engines), len(engines)):
            start = time.perf_counter()
            engines[name](images)
            seconds[name].append(time.perf_counter() - start)
        if time.monotonic() - begin > SECONDS:
            break
    return engines, {name: round(batch / statistics.median(taken), 2) for name, taken in seconds.items()}


def _best(speeds: Mapping[str, float]) -> EngineName:
    name = max(speeds, key=lambda name: speeds[name])
    return cast(EngineName, name if speeds[name] > CLEARLY * speeds["torch"] else "torch")


def _key(model: Model, batch: int, names: list[EngineName]) -> str:
    """What the speed depends on: the model, the batch, the machine and the versions."""
    packages = ["torch", *(name for name in names if name != "torch")]
    versions = [importlib.metadata.version(package) for package in packages]
    asked = [REVISION, fingerprint_of(model), batch, torch.get_num_threads()]
    text = json.dumps([*asked, *versions, *machine()], allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(path: Path) -> dict[str, float] | None:
    """The remembered speeds; None if there are none, or if the file is damaged."""
    try:
        found = parse_json(read_regular(path, 2**16), "speeds")
    except (OSError, ValueError):
        return None
    speeds = cast(dict[str, float], found) if isinstance(found, dict) else {}
    is_valid = "torch" in speeds and all(name in get_args(EngineName) for name in speeds)
    return speeds if is_valid and all(isinstance(speed, float) for speed in speeds.values()) else None
