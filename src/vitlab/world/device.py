"""The device that computes, the properties that decide the bits of a result, and random seeds."""

import hashlib
import os
import platform

import torch

from vitlab.require import require

MOST_WORKERS = 8  # chosen; a user may have more
DEVICES = ("auto", "cpu", "cuda", "mps")


def pick_device(name: str) -> torch.device:
    """The device with a name such as `auto`, `cpu`, `cuda`, `cuda:1` or `mps`; raises if it is not available."""
    kind = name.partition(":")[0]
    require(kind in DEVICES, f"no device is named {name!r}; known are {', '.join(DEVICES)}")
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(device for device in ("cuda", "mps", "cpu") if there[device]))
    available = ", ".join(device for device in there if there[device])
    require(there[kind], f"device {name!r} is not available here; available are {available}")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"no device is named {name!r}: {error}") from None
    count = torch.cuda.device_count() if kind == "cuda" else 1
    require((device.index or 0) < count, f"device {name!r} does not exist; there are {count} of its kind")
    return device


def default_workers(device: torch.device) -> int:
    """How many processes decode images for each rank: none on a CPU, whose cores the model needs; else those it has."""
    if device.type == "cpu":
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1), MOST_WORKERS)


def environment(device: torch.device) -> dict[str, str]:
    """Versions and hardware on which the bits of a result depend."""
    return {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processor": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "mkl": str(torch.backends.mkl.is_available()),
    }


def differences(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """What differs between two environments, as text."""
    names = sorted(set(before) | set(now))
    return [
        f"{name} was {before.get(name, 'unknown')} and is {now.get(name, 'unknown')}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def seed_of(*key: object) -> int:
    """Hash a key such as (seed, step, shard) to 63 bits: each key has its own stream of random numbers."""
    text = "/".join(map(str, key)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def seed_device(seed: int, step: int, *piece: int) -> None:
    """Seed the device's generators, which dropout draws from, for one micro-batch."""
    torch.manual_seed(seed_of("device", seed, step, *piece))
