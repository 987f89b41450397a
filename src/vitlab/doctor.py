"""What is installed and what torch can use: the first thing to check when something does not work."""

import importlib.metadata as metadata
import os
import platform
import re
import time
from collections.abc import Iterator

from vitlab.process.busy import POLICY, SETTINGS, chosen, others_between, read


def findings() -> Iterator[tuple[str, str]]:
    """Yield (name, value) lines, versions first."""
    yield "vitlab", metadata.version("vitlab")
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    for package, extra in _requirements():
        if not extra:
            yield package, _version(package) or "missing: pip install vitlab"
    if _version("torch"):
        yield from _torch()
    extras = sorted({extra for _, extra in _requirements() if extra})
    for extra in extras:
        missing = [package for package, of in _requirements() if of == extra and not _version(package)]
        yield f"[{extra}]", f"lacks {', '.join(missing)}: pip install 'vitlab[{extra}]'" if missing else "installed"


def _torch() -> Iterator[tuple[str, str]]:
    """What torch can run on; torch is imported here, so that doctor works without it."""
    import torch

    yield "device", _device()
    yield from _acceleration()
    yield "threads", f"{torch.get_num_threads()} of {os.cpu_count()} processors"
    yield "waiting", _waiting()
    yield "others", _others()
    yield from _engines()


def _engines() -> Iterator[tuple[str, str]]:
    """Which engines can compute here, where converted models are kept, and how the engine torch multiplies."""
    from vitlab.engines.graphs import cache_folder, check_cache
    from vitlab.engines.machine import remembered_packing
    from vitlab.engines.making import missing_packages
    from vitlab.engines.runtimes import GRAPH_ENGINES

    there = [name for name in GRAPH_ENGINES if not missing_packages(name)]
    yield "engines", ", ".join(["torch", "plain", "compiled", *there])
    try:
        check_cache()
        yield "engine cache", f"{cache_folder()} (delete its .json files and engine auto measures again)"
    except OSError as error:
        yield "engine cache", str(error)
    packs = remembered_packing()
    ways = {None: "not measured yet", True: "oneDNN's packed weights are faster here", False: "MKL is faster here"}
    yield "packing", ways[packs]


def _acceleration() -> Iterator[tuple[str, str]]:
    """What PyTorch offers on the device that `auto` chooses, and what vitlab uses of it."""
    import torch

    from vitlab.data.loading.batches import is_pinned_for
    from vitlab.models.resnet import keeps_channels_last
    from vitlab.world.device import attention_kernel, pick_device, why_not_tf32

    device = pick_device("auto")
    full, half = (attention_kernel(device, dtype) for dtype in (torch.float32, torch.bfloat16))
    biased = attention_kernel(device, torch.float32, has_bias=True)
    plain = f"{full} in fp32 and bf16" if full == half else f"{full} in fp32, {half} in bf16"
    yield "attention", f"PyTorch chooses {plain}; with relative positions {biased}"
    if device.type != "cuda":
        layout = "not used: only CUDA devices convolve faster with it"
    elif keeps_channels_last(device):
        layout = "used by ResNets and hybrids"
    else:
        layout = f"not used: GroupNorm of torch {torch.__version__} does not keep it on CUDA"
    yield "channels last", layout
    pinned = "used: the next batch is copied, without blocking, while the device computes"
    yield "pinned memory", pinned if is_pinned_for(device) else f"not used: batches for {device.type} need none"
    lack = why_not_tf32(device)
    yield "tf32", f"not available: {lack}" if lack else "off unless a run is started with --precision tf32"


def _waiting() -> str:
    """What threads do while they wait for each other, and why."""
    if chosen:
        return f"threads sleep: {POLICY}=PASSIVE, chosen at the start because {chosen[0]}"
    given = [f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ]
    return f"as requested: {', '.join(given)}" if given else f"threads spin; {POLICY}=PASSIVE lets them sleep"


def _others() -> str:
    before = read()
    time.sleep(0.2)
    after = read()
    if before is None or after is None:
        return "unknown: this system does not report it"
    return f"other programs use {others_between(before, after):.1f} of {os.cpu_count()} processors"


def _device() -> str:
    import torch

    if torch.cuda.is_available():
        return f"cuda ({torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}), cpu"
    return "mps, cpu" if torch.backends.mps.is_available() else "cpu"


def _requirements() -> list[tuple[str, str]]:
    """(package, extra that requires it or "") from the package metadata."""
    lines = metadata.requires("vitlab") or []
    parsed = (re.match(r"([A-Za-z0-9._-]+)[^;]*(?:;\s*extra == ['\"](\w+)['\"])?", line) for line in lines)
    return [(match[1], match[2] or "") for match in parsed if match]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
