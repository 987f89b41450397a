"""What training ViT-L/16 and ViT-H/14 at batch 4,096 would cost on 8 to 1,024 accelerators, and how far to trust it.

    python -m bench.experiments.scale tables   # the tables of docs/scale.md, in closed form
    python -m bench.experiments.scale checks   # the model beside the paper's core-days and what autograd keeps
    python -m bench.experiments.scale traffic  # bytes that 2 and 3 gloo ranks send for a step, by the kernel's count

The output of the last two is evidence/scale.txt.
"""

import socket
import sys
from pathlib import Path

from bench.experiments.scaling import Machine, activations, exchanged, step_cost
from vitlab.counting import count, exaflops
from vitlab.paper.models import model_spec

BATCH, JFT = 4096, 303e6
TPU_PEAK = 61.5e12  # a TPUv3 core, half a chip of 123 TFLOP/s
GPU = Machine(
    name="80 GB accelerator",
    flops=312e12,  # bf16 products of an A100, NVIDIA's data sheet
    utilisation=0.43,  # what the paper's ViT-L/16 reached on TPUv3: 26.7 of 61.5 TFLOP/s
    memory=80e9,
    inside=235e9,  # of 300 GB/s a direction
    outside=22e9,  # of 25 GB/s: 200 Gbit/s a device
    devices_per_node=8,
    decoding=3_200.0,  # 8 cores a device, 400 images a second each
)
RUNS = (("ViT-L/16", 14, 680.0), ("ViT-H/14", 14, 2500.0))  # epochs of JFT-300M, TPUv3 core-days of table 2


def tables() -> list[str]:
    """Markdown: a table a model, a row for each number of devices."""
    lines = []
    for name, epochs, _ in RUNS:
        spec = model_spec(name, classes=18_291)
        steps = epochs * JFT / BATCH
        lines += [f"**{name}**, batch {BATCH:,}, {epochs} epochs of JFT-300M = {steps:,.0f} steps", ""]
        lines += [
            "| devices | images each | way | compute | exchange | data | bound by | memory | sent a step | days |"
        ]
        lines += ["|---|---|---|---|---|---|---|---|---|---|"]
        for devices in (8, 16, 32, 64, 128, 256, 512, 1024):
            for way in ("ddp", "fsdp"):
                step = step_cost(spec, GPU, devices=devices, batch=BATCH, parallel=way, micro_batch=64)
                lines.append(
                    f"| {devices:,} | {step.images} | {way} | {_ms(step.compute)} | {_ms(step.exchange)} | "
                    f"{_ms(step.data)} | {step.bound} | {step.memory / 1e9:.1f} GB | {step.traffic / 1e9:.2f} GB | "
                    f"{step.seconds * steps / 86_400:,.1f} |"
                )
        lines.append("")
    return lines


def checks() -> list[str]:
    """The model beside numbers that it was not made from, and those that it was."""
    lines = ["TPUv3 core-days of table 2, from exaFLOPs and the share of the peak that ViT-L/16 reached"]
    reached = exaflops("ViT-L/16", epochs=14) * 1e18 / (680 * 86_400)
    lines.append(f"  share: {reached / 1e12:.1f} of {TPU_PEAK / 1e12:.1f} TFLOP/s a core = {reached / TPU_PEAK:.2f}")
    for name, epochs, printed in RUNS:
        days = exaflops(name, epochs=epochs) * 1e18 / reached / 86_400
        lines.append(f"  {name}: {days:,.0f} core-days, the paper prints {printed:,.0f} ({days / printed - 1:+.0%})")
    lines.append("bytes an image keeps for the way back, fp32, at 224 pixels: model, autograd's own books here")
    for name in ("ViT-Ti/16", "ViT-B/32", "ViT-B/16", "ViT-L/16"):
        spec = model_spec(name, classes=1000, head="linear")
        found = _kept(name)
        said = activations(spec)
        lines.append(f"  {name}: {said / 1e6:.1f} MB, {found / 1e6:.1f} MB ({said / found - 1:+.1%})")
    return lines


def traffic() -> list[str]:
    """What the loopback device carried for one backward pass of ViT-Ti/16 under DDP and FSDP2."""
    lines = ["bytes sent in one step of ViT-Ti/16 by all ranks: model, the kernel's books of the loopback device"]
    parameters = count("ViT-Ti/16", head="linear").parameters
    for ranks in (2, 3):
        for way in ("ddp", "fsdp"):
            said = ranks * exchanged(parameters, ranks, way)
            found = _sent(ranks, way)
            lines.append(f"  {ranks} ranks, {way}: {said / 1e6:.1f} MB, {found / 1e6:.1f} MB ({found / said - 1:+.1%})")
    return lines


def _kept(name: str, batch: int = 2) -> float:
    import torch

    from vitlab import build_model

    model = build_model(name, head="linear").train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, int] = {}
    alive = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.randn(batch, 3, 224, 224)).sum()
    return sum(found.values()) / batch


def _sent(ranks: int, way: str) -> float:
    import torch.multiprocessing as processes

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = processes.get_context("spawn").SimpleQueue()
    processes.spawn(_rank, (ranks, way, port, out), nprocs=ranks)
    return out.get()


def _rank(rank: int, ranks: int, way: str, port: int, out: object) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from vitlab import build_model

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    model = build_model("ViT-Ti/16", head="linear").train()
    if way == "ddp":
        model = DistributedDataParallel(model)
    else:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    images = torch.randn(1, 3, 224, 224)
    model(images).sum().backward()  # the first step also makes connections
    books = []
    for _ in range(2):
        dist.barrier()
        books.append(_loopback())
        model(images).sum().backward()
        dist.barrier()
        books.append(_loopback())
    if rank == 0:
        out.put(min(books[1] - books[0], books[3] - books[2]))  # pyrefly: ignore[missing-attribute] - a queue
    dist.destroy_process_group()


def _loopback() -> int:
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split()[9])  # bytes sent


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print("\n".join({"tables": tables, "checks": checks, "traffic": traffic}[name]()), flush=True)
