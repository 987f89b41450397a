"""Where a measurement was taken: the processor, the memory, the versions and the settings that change speed."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")
PACKAGES = (
    *("vitlab", "torch", "numpy", "pillow", "timm", "torchvision", "transformers"),
    *("onnx", "onnxruntime", "openvino"),
)
SETTINGS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MKL_NUM_THREADS", "KMP_BLOCKTIME")
ROOT = Path(__file__).resolve().parents[1]


def facts() -> dict[str, object]:
    """Return what a reader of the numbers must know; read before anything is measured."""
    load = os.getloadavg()  # first, because torch's import is a load of its own
    import torch

    processor = _cpuinfo()
    flags = set(processor.get("flags", "").split())
    return {
        "processor": processor.get("model name", platform.processor() or platform.machine()),
        "instructions": [flag for flag in FLAGS if flag in flags] or "none of " + ", ".join(FLAGS),
        "cores": os.cpu_count(),
        "memory GB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "torch threads": torch.get_num_threads(),
        "settings": {name: os.environ.get(name, "unset") for name in SETTINGS},
        "load before the start": [round(one, 2) for one in load],
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _cpuinfo() -> dict[str, str]:
    """The first processor of /proc/cpuinfo; empty where there is none."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    lines = path.read_text().split("\n\n")[0].splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The commit, and whether the files differ from it; results and documents do not count."""
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    if found.returncode:
        return "unknown"
    code = subprocess.run([*git, "status", "--porcelain", "--", "src", "bench/*.py"], capture_output=True, check=False)
    return found.stdout.strip() + (" with changes" if code.stdout.strip() else "")
