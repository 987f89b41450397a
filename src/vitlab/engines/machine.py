"""The machine that engines run on: what their speed depends on, and which way of a product is faster there."""

import hashlib
import json
import os
import platform
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import cast

import torch

from vitlab.engines.dense import Dense, PackedDense
from vitlab.engines.graphs import cache_folder
from vitlab.engines.streams import Streams
from vitlab.files.store import make_folder, write_json
from vitlab.files.strict_json import parse_json
from vitlab.files.user_files import read_lines, read_regular

CPUINFO = Path("/proc/cpuinfo")  # Linux
ROWS, WIDTH, MLP = 788, 384, 1536  # four pictures in a layer of ViT-S/16
ROUNDS = 12
KINDS = {"plain": Dense, "packed": PackedDense}


def machine() -> list[str | int | None]:
    """What the speed of an engine depends on besides the model and the threads."""
    return [platform.machine(), processor(), torch.backends.cpu.get_cpu_capability(), os.cpu_count()]


@cache
def is_packing_faster() -> bool:
    """Whether oneDNN's products with weights laid out for it are faster here than torch's usual ones, which are MKL's.

    Which one is depends on the processor (docs/log.md). An MLP is measured in both ways on one core, and the result is
    remembered in the cache, so that later processes compute the same bits.
    """
    known = remembered_packing()
    if known is not None:
        return known
    seconds = Streams[None, dict[str, float]](1).submit(lambda _: _mlp_seconds(), [None])[0].result()
    with suppress(OSError):  # of a home that cannot be written to: measured again next time
        make_folder(_packing().parent)
        write_json(_packing(), seconds)
    return seconds["packed"] < seconds["plain"]


def remembered_packing() -> bool | None:
    """The answer of `is_packing_faster` if it is in the cache; None if it has not been measured."""
    try:
        known = parse_json(read_regular(_packing(), 2**16), "seconds")
    except (OSError, ValueError):
        return None
    if not (isinstance(known, dict) and all(isinstance(known.get(name), float) for name in KINDS)):
        return None
    seconds = cast(dict[str, float], known)
    return seconds["packed"] < seconds["plain"]


def _packing() -> Path:
    """The file that remembers both times on a machine like this one."""
    key = json.dumps([str(torch.__version__), *machine()], allow_nan=False)
    return cache_folder() / "packing" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _mlp_seconds() -> dict[str, float]:
    """The shortest time of an MLP with a residual for either kind of dense layer, measured in turns.

    Processor time of this thread, so that other programs on the same core do not decide for all later processes.
    """
    x = torch.linspace(-1, 1, ROWS * WIDTH).view(ROWS, WIDTH)
    up, down = (torch.full(shape, 0.01) for shape in ((MLP, WIDTH), (WIDTH, MLP)))
    layers = {name: (kind(up, up[:, 0]), kind(down, down[:, 0])) for name, kind in KINDS.items()}
    seconds = dict.fromkeys(KINDS, float("inf"))
    with torch.inference_mode():
        for _ in range(ROUNDS):
            for name, (first, second) in layers.items():
                start = time.thread_time()
                second.plus(first.gelu(x, "none"), x)
                seconds[name] = min(seconds[name], time.thread_time() - start)
    return seconds


def processor() -> str:
    """The name of the processor, where the system says it."""
    try:
        lines = read_lines(CPUINFO, 2**24)
    except (OSError, ValueError):
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
