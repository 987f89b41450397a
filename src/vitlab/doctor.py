"""What is installed here and what torch can use: the first thing to look at when something does not work."""

import importlib.metadata as metadata
import os
import platform
import re
from collections.abc import Iterator


def findings() -> Iterator[tuple[str, str]]:
    """(what, how it is) lines, versions first."""
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
        yield f"[{extra}]", f"lacks {', '.join(missing)}: pip install 'vitlab[{extra}]'" if missing else "there"


def _torch() -> Iterator[tuple[str, str]]:
    """What torch can run on; imported here, so that doctor works where torch is missing."""
    import torch

    yield "device", _device()
    yield "threads", f"{torch.get_num_threads()} of {os.cpu_count()} processors"


def _device() -> str:
    import torch

    if torch.cuda.is_available():
        return f"cuda ({torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}), cpu"
    return "mps, cpu" if torch.backends.mps.is_available() else "cpu"


def _requirements() -> list[tuple[str, str]]:
    """(package, extra that asks for it or "") from the package's own metadata."""
    lines = metadata.requires("vitlab") or []
    parsed = (re.match(r"([A-Za-z0-9._-]+)[^;]*(?:;\s*extra == ['\"](\w+)['\"])?", line) for line in lines)
    return [(match[1], match[2] or "") for match in parsed if match]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
