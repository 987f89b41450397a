"""The fastest engine for a model on this machine: measured once, checked against the plain model, remembered."""

import hashlib
import importlib.metadata
import json
import math
import random
import statistics
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast, get_args

import torch

from vitlab.engines.agreement import agreement, probe
from vitlab.engines.engine import Engine, EngineName
from vitlab.engines.graphs import REVISION, cache_folder, check_cache
from vitlab.engines.machine import machine
from vitlab.engines.making import keep_only, make_engine, missing_packages, new_engine
from vitlab.engines.networks import is_untouched
from vitlab.files.store import write_json
from vitlab.files.strict_json import parse_json
from vitlab.files.user_files import read_regular
from vitlab.models.build import Model
from vitlab.models.fingerprint import fingerprint_of

CANDIDATES: tuple[EngineName, ...] = ("torch", "onnxruntime", "openvino")  # exact ones, the soonest to open first
ROUNDS, SECONDS = 7, 10.0  # of measuring all candidates, at most
CLEARLY = 1.05  # times as fast as one that opens sooner, or that one is taken: less is no difference


class Measured(NamedTuple):
    """The speed of an engine, and the seconds that it takes to open once the model is converted."""

    speed: float  # images per second
    opening: float

    def seconds(self, images: int | None) -> float:
        """The time for so many images with opening it, or for one of very many."""
        return 1 / self.speed if images is None else self.opening + images / self.speed


def fastest(model: Model, batch: int, images: int | None = None) -> Engine:
    """Open the installed engine that takes the least time for so many images in batches of this size; None: very many.

    Without a cache to keep them in, models are not converted: that takes longer than any engine saves.
    """
    if why := _only_torch(model):
        return _torch(model, why)
    there = [name for name in CANDIDATES if not missing_packages(name)]
    if there == ["torch"]:
        return _torch(model, "no other engine is installed")
    path = cache_folder() / f"{_key(model, batch, there)}.json"
    known = _read(path)
    if known is None:
        try:
            check_cache()
        except OSError as error:
            return _torch(model, str(error))
        known, failed = _measure(model, batch, there)
        if not failed:
            with suppress(OSError):  # measured again next time
                write_json(path, known)
    best = _best(known, images)
    try:
        engine = make_engine(model, best)
    except Exception as error:  # of any library: such as no graph in a cache that cannot be written to
        if best == "torch":
            raise
        return _torch(model, f"{best} cannot be opened: {error}")
    keep_only(model, best)
    return replace(engine, note=f"auto: {_reason(known, batch, images)}")


def _only_torch(model: Model) -> str:
    """Why no other engine than `torch`, or `plain`, can compute a model; empty if others can."""
    weight = next(model.parameters())
    is_usual = weight.device.type == "cpu" and weight.dtype == torch.float32 and model.spec.classes > 0
    return "" if is_usual and is_untouched(model) else "no other engine can compute this model"


def _torch(model: Model, why: str) -> Engine:
    """The engine `torch`, or what computes instead of it; the note says why it is no other."""
    engine = make_engine(model, "torch")
    return replace(engine, note=f"auto: {engine.note or why}")


def _reason(known: Mapping[str, Measured], batch: int, images: int | None) -> str:
    """The numbers that decided, as text: images per second, or the time for all images with opening the engine."""
    if images is None:
        return f"images/s in batches of {batch}: {', '.join(f'{name} {one.speed:.1f}' for name, one in known.items())}"
    work = f"{images:,} image{'s' * (images != 1)} in batches of {batch}"
    each = (
        f"{name} {one.seconds(images):.2f} s (opens in {one.opening:.2f} s, {one.speed:.1f} images/s)"
        for name, one in known.items()
    )
    return f"estimated time for {work}: {', '.join(each)}"


def _measure(model: Model, batch: int, names: list[EngineName]) -> tuple[dict[str, Measured], bool]:
    """Open engines and time them on random images, interleaved; one that disagrees with the plain model is left out.

    Also returns whether one could not be opened for a reason that may pass, such as a full disk.
    """
    images, engines, opening, failed = probe(model, batch), {}, {}, False
    for name in names:
        try:
            engine = make_engine(model, name)
            found = agreement(engine, model, images)  # also the first call, which is slow
        except Exception as error:  # of any library
            if name == "torch":
                raise
            failed |= not isinstance(error, ValueError | RuntimeError)  # these: it cannot convert or compute this model
            continue
        if name == "torch" or found.is_exact:
            engines[name], start = engine, time.perf_counter()
            new_engine(model, name)  # again: the first time converts the model
            opening[name] = round(time.perf_counter() - start, 3)
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    begin = time.monotonic()
    for number in range(ROUNDS):
        for name in random.Random(number).sample(list(engines), len(engines)):
            start = time.perf_counter()
            engines[name](images)
            seconds[name].append(time.perf_counter() - start)
        if time.monotonic() - begin > SECONDS:
            break
    speeds = {name: round(batch / statistics.median(taken), 2) for name, taken in seconds.items()}
    return {name: Measured(speed, opening[name]) for name, speed in speeds.items()}, failed


def _best(known: Mapping[str, Measured], images: int | None = None) -> EngineName:
    best: EngineName = "torch"
    for name in (name for name in CANDIDATES if name in known):
        best = name if CLEARLY * known[name].seconds(images) < known[best].seconds(images) else best
    return best


def _key(model: Model, batch: int, names: list[EngineName]) -> str:
    """What the speed depends on: the model, the batch, the machine and the versions."""
    packages = ["torch", *(name for name in names if name != "torch")]
    versions = [importlib.metadata.version(package) for package in packages]
    asked = ["with seconds to open", REVISION, fingerprint_of(model), batch, torch.get_num_threads()]
    text = json.dumps([*asked, *versions, *machine()], allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(path: Path) -> dict[str, Measured] | None:
    """The remembered measurements; None if there are none, or if the file is damaged."""
    try:
        found = parse_json(read_regular(path, 2**16), "speeds")
    except (OSError, ValueError):
        return None
    given = cast(dict[str, object], found) if isinstance(found, dict) else {}
    is_valid = "torch" in given and all(name in get_args(EngineName) and _is_pair(one) for name, one in given.items())
    return {name: Measured(*cast(list[float], one)) for name, one in given.items()} if is_valid else None


def _is_pair(one: object) -> bool:
    """Whether it is a speed above 0 and a time, as `_measure` finds them."""
    is_list = isinstance(one, list) and len(one) == 2 and all(isinstance(number, float) for number in one)
    return is_list and 0 < cast(list[float], one)[0] < math.inf and 0 <= cast(list[float], one)[1] < math.inf
