"""What is installed and what torch can use: the first thing to check when something does not work."""

import importlib.metadata as metadata
import os
import platform
import re
import time
from collections.abc import Iterator

from vitlab.busy import POLICY, SETTINGS, chosen, others_between, read


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
    yield "threads", f"{torch.get_num_threads()} of {os.cpu_count()} processors"
    yield "waiting", _waiting()
    yield "others", _others()


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
