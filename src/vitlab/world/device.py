"""The device that computes, the properties that decide the bits of a result, and random seeds."""

import hashlib
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend

from vitlab.require import require

MOST_WORKERS = 8  # chosen; a user may have more
DEVICES = ("auto", "cpu", "cuda", "mps")
TF32_SINCE = 8, 0  # compute capability
OUT_OF_MEMORY = "out of memory", "allocate memory", "not enough memory"  # in messages of torch


def pick_device(name: str) -> torch.device:
    """The device with a name such as `auto`, `cpu`, `cuda`, `cuda:1` or `mps`; raises if it is not available."""
    kind = name.partition(":")[0]
    require(kind in DEVICES, f"no device is named {name!r}; known are {', '.join(DEVICES)}")
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = kind = next(device for device in ("cuda", "mps", "cpu") if there[device])
    available = ", ".join(device for device in there if there[device])
    require(there[kind], f"device {name!r} is not available here; available are {available}")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"no device is named {name!r}: {error}") from None
    count = torch.cuda.device_count() if kind == "cuda" else 1
    require((device.index or 0) < count, f"device {name!r} does not exist; there are {count} of its kind")
    return device


def check_precision(precision: str, device: torch.device) -> None:
    """Raise a ValueError if the device cannot compute in this precision."""
    if precision == "tf32" and (lack := why_not_tf32(device)):
        raise ValueError(f"precision 'tf32' cannot be used: {lack}; give precision='fp32', or 'bf16'")


def why_not_tf32(device: torch.device) -> str:
    """Why the device has no TF32; empty if it has."""
    if device.type != "cuda" or torch.version.hip is not None:
        return f"only NVIDIA GPUs have TF32, and the device is {'an AMD GPU' if device.type == 'cuda' else device.type}"
    has = torch.cuda.get_device_capability(device)
    needs = "TF32 needs compute capability {}.{}".format(*TF32_SINCE)
    return "" if has >= TF32_SINCE else f"{needs}, and {torch.cuda.get_device_name(device)} has {has[0]}.{has[1]}"


@contextmanager
def products_in(precision: str, device: torch.device) -> Iterator[None]:
    """Compute float32 products and convolutions inside the block in TF32 if the precision is tf32, else in float32.

    Torch allows TF32 in convolutions by default. Its flags belong to the process, so they are given back at the end:
    vitlab may be one library of several.
    """
    check_precision(precision, device)
    if device.type != "cuda":
        yield
        return
    # Not torch's newer `fp32_precision`: once it is set, reading the flags below raises, which other code does.
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of the machine or of the device was not enough; torch raises a RuntimeError for both."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in OUT_OF_MEMORY)


def attention_kernel(device: torch.device, dtype: torch.dtype, *, has_bias: bool = False) -> str:
    """The kernel that PyTorch chooses for the attention of a ViT-B/16 in training, such as `flash attention`."""
    try:
        q = torch.zeros(1, 12, 197, 64, device=device, dtype=dtype, requires_grad=True)
        bias = torch.zeros(1, 12, 197, 197, device=device, dtype=dtype, requires_grad=True) if has_bias else None
        chosen = SDPBackend(torch._fused_sdp_choice(q, q, q, bias))
    except (RuntimeError, TypeError):  # devices whose kernels or dtypes torch does not know
        return "an unknown kernel"
    return {SDPBackend.MATH: "plain operators"}.get(chosen, chosen.name.replace("_", " ").lower())


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
