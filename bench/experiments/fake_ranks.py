"""One FSDP2 step of ViT-H/14 and ViT-G/14 at ranks of 1,024 that are not there: tracked memory beside the prediction.

    python -m bench.experiments.fake_ranks > evidence/fake_ranks.txt       # the table of docs/scale.md, two minutes
    python -m bench.experiments.fake_ranks ViT-H/14 0                      # one rank, as JSON

The step is the project's own: `shard` wraps the model, and `Update` computes loss, gradients, clipping and AdamW. The
process group is torch's fake one, which exchanges nothing, and the tensors are fake: they have shapes, but no memory.
Torch's FSDP memory tracker counts the tensors that a rank holds, without the rounding of an allocator.
"""

import json
import subprocess
import sys
from typing import Any

from bench.experiments.scale import BATCH
from bench.experiments.scaling import activations, state_bytes
from vitlab.paper.models import model_spec
from vitlab.world.group import World

MODELS, RANKS, CHOSEN = ("ViT-H/14", "ViT-G/14"), 1024, (0, 511, 1023)
CLASSES = 18_291  # of JFT-300M
HALF = 2  # bytes of an activation in bf16
STATE = ("Sharded Param", "Sharded Grad", "OptState")
GATHERED = ("Unsharded Param", "Unsharded Grad", "All Gather", "Reduce Scatter")


class FakeRanks(World):
    """Ranks that all have as many images as this one; a sum is this rank's part."""

    def counts(self, value: int) -> list[int]:
        return [value] * self.ranks


def predicted(name: str) -> dict[str, float]:
    """The bytes of docs/scale.md, by what they are for."""
    spec = model_spec(name, classes=CLASSES)
    alone, many = (state_bytes(spec, devices, "fsdp", HALF) for devices in (1, RANKS))
    state = (alone - many) / (RANKS - 1)  # the share of weights, gradients and moments
    return {"state": state, "gathered": many - state, "activations": BATCH // RANKS * activations(spec, HALF)}


def tracked(name: str, rank: int) -> dict[str, Any]:
    """What the second step of a rank holds at its peak: the first makes the moments of Adam."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    with FakeTensorMode(), Scalars():
        state, update, forward, examples = training(name, rank)
        update(state, forward, examples)
        state.optimizer.zero_grad()
        tracker = FSDPMemTracker(state.module, state.optimizer)
        tracker.track_inputs((examples.inputs, examples.targets))
        with tracker:
            step = update(state, forward, examples)
        assert step.images == BATCH, step
        assert not step.skipped, step
        peak, end = (tracker.get_tracker_snapshot(when)[torch.device("cpu")] for when in ("peak", "current"))
        own = sum(p.to_local().numel() for p in state.module.parameters())
    return {"parameters": own, "peak": _plain(peak), "end": _plain(end)}


def training(name: str, rank: int) -> tuple[Any, Any, Any, Any]:
    """The state, the update, the module to call and the examples of one rank, all fake."""
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from vitlab.models.build import empty_model
    from vitlab.spec.recipe import AdamW, Execution, Recipe, Schedule
    from vitlab.train.optimizers import make_optimizer
    from vitlab.train.state import TrainState
    from vitlab.train.update import Examples, Update
    from vitlab.world.parallel import own_part, shard, wrapped

    device, world = torch.device("cpu"), FakeRanks(rank, RANKS)
    with unset_fake_temporarily():
        dist.init_process_group("fake", rank=rank, world_size=RANKS, store=FakeStore())
        module = empty_model(model_spec(name, classes=CLASSES)).train()
        shard(module, device, is_half=True)
        shapes = {tensor: own_part(tensor).shape for tensor in module.parameters()}
    fill(module, shapes)
    schedule = Schedule(peak=1e-3, total=2, warmup=0, decay="constant")
    optimizer = AdamW(clip=1.0)
    recipe = Recipe("one step", __file__, BATCH, module.spec.image, schedule, optimizer, loss="sigmoid")
    parallel = wrapped(module, world)
    execution = Execution(precision="bf16", parallel="fsdp")
    update = Update(recipe, execution, seed=0, prepare=_prepared, world=world, parallel=parallel)
    images = BATCH // RANKS
    pixels = torch.zeros(images, 3, *module.spec.image, dtype=torch.uint8)
    examples = Examples(pixels, torch.zeros(images, CLASSES))
    return TrainState(module, make_optimizer(module, optimizer), None), update, parallel.forward, examples


def fill(module: Any, shapes: Any) -> None:
    """Give every sharded parameter fake rows of this rank, as `to_empty` gives it real ones."""
    import torch

    from vitlab.world.parallel import like

    for part in module.modules():
        for name, tensor in part._parameters.items():
            if tensor is not None:
                part._parameters[name] = torch.nn.Parameter(like(tensor, torch.empty(shapes[tensor])))


def Scalars() -> Any:  # noqa: N802 - a class, made where torch is imported
    """A mode that reads 1 from every fake tensor, which has no value."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return 1.0 if func is torch.ops.aten._local_scalar_dense.default else func(*args, **(kwargs or {}))

    return Mode()


def _prepared(pixels: Any) -> Any:
    return pixels.float() / 255


def _plain(snapshot: Any) -> dict[str, int]:
    return {getattr(kind, "value", str(kind)): count for kind, count in snapshot.items()}


def table() -> list[str]:
    """Markdown: a row for the prediction of each model, and one for each of its ranks."""
    lines = [
        "| model | rank | parameters held | weights, gradients, moments | gathered | activations and the rest | peak |"
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    for name in MODELS:
        said = predicted(name)
        lines.append(_row(name, "predicted", said["state"] / 16, *said.values()))
        for rank in CHOSEN:
            found = in_child(name, rank)
            peak, end = found["peak"], found["end"]
            total, gathered = peak["Total"], sum(peak[kind] for kind in GATHERED)
            state = sum(end[kind] for kind in STATE)
            held = sum(peak[kind] for kind in STATE)
            lines.append(_row(name, f"{rank:,}", found["parameters"], state, gathered, total - gathered - held, total))
    return lines


def in_child(name: str, rank: int) -> dict[str, Any]:
    """Track one rank in a process of its own: a process has one group."""
    command = [sys.executable, "-m", "bench.experiments.fake_ranks", name, str(rank)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _row(name: str, rank: str, parameters: float, *parts: float) -> str:
    total = parts[3] if len(parts) == 4 else sum(parts)
    shown = " | ".join(f"{part / 1e6:,.1f} MB" for part in (*parts[:3], total))
    return f"| {name} | {rank} | {parameters:,.0f} | {shown} |"


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(tracked(sys.argv[1], int(sys.argv[2]))))
    else:
        print("\n".join(table()))
