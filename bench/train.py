"""Images per second and peak memory of a training step against timm and Hugging Face, as ratios to timm eager.

A step is forward, backward and AdamW, in fp32. vitlab's is its own `Update`, which also measures the gradient's norm
and checks that all is finite; the others' is the shortest loop that trains. All run in one process, interleaved in
shuffled order; `timm again` is the null: what differs less is no difference. `matmuls alone` are the products of the
blocks' dense layers and of their gradients: no step that multiplies as torch does is faster. Time is taken by the clock
and as the processor's, which other programs on the machine disturb less. Memory is the peak of a process of its own.
    OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE python bench/train.py > evidence/train.txt
"""

import argparse
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.build import build_from_spec
from vitlab.recipe import AdamW, Execution, Recipe, Schedule
from vitlab.spec import CONVENTIONS, ViTSpec
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import TrainState
from vitlab.train.update import Examples, Update

ROUNDS = 15
SMALL = ViTSpec(patch=4, layers=9, width=192, mlp=768, heads=3, image=(32, 32), classes=10, head="linear")
CASES = {
    "ViT-Ti/16 at 224": (ViTSpec(patch=16, layers=12, width=192, mlp=768, heads=3, head="linear"), 16),
    "patch 4, width 192, 9 layers at 32": (SMALL, 128),
}
Step = Callable[[], object]


def batch_for(spec: ViTSpec, batch: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(spec.classes, (batch,), generator=generator)
    return torch.randn(batch, 3, *spec.image, generator=generator), labels


def vitlab_step(spec: ViTSpec, batch: int) -> Step:
    """As `vitlab pretrain` makes a step, on images that are already normalised, like the others'."""
    images, labels = batch_for(spec, batch)
    schedule = Schedule(peak=1e-3, total=1_000_000, warmup=0, decay="constant")
    recipe = Recipe("bench", "bench/train.py", batch, spec.image, schedule, AdamW())
    module = build_from_spec(spec)
    state = TrainState(module, make_optimizer(module, recipe.optimizer))
    update = Update(recipe, Execution(), seed=0, prepare=lambda inputs: inputs)
    examples = Examples(images, F.one_hot(labels, spec.classes).float())
    return lambda: update(state, module, examples)


def exact_gelu_step(spec: ViTSpec, batch: int) -> Step:
    return vitlab_step(replace(spec, conventions=CONVENTIONS["timm"]), batch)


def plain_step(module: Callable[[Tensor], Tensor], parameters: list[Tensor], data: tuple[Tensor, Tensor], fused: bool):
    images, labels = data
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1, fused=fused)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(module(images), labels).backward()
        optimizer.step()

    return step


def timm_step(spec: ViTSpec, batch: int, *, fused: bool = False, compiled: bool = False) -> Step:
    import peers

    module = peers.TimmViT(
        img_size=spec.image,
        patch_size=spec.patch,
        embed_dim=spec.width,
        depth=spec.layers,
        num_heads=spec.heads,
        num_classes=spec.classes,
    ).train()
    forward = torch.compile(module) if compiled else module
    return plain_step(forward, [*module.parameters()], batch_for(spec, batch), fused)


def fused_timm_step(spec: ViTSpec, batch: int) -> Step:
    return timm_step(spec, batch, fused=True)


def compiled_timm_step(spec: ViTSpec, batch: int) -> Step:
    return timm_step(spec, batch, fused=True, compiled=True)


def hugging_face_step(spec: ViTSpec, batch: int) -> Step:
    import peers

    config = peers.ViTConfig(
        hidden_size=spec.width,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        intermediate_size=spec.mlp,
        image_size=spec.image[0],
        patch_size=spec.patch,
        num_labels=spec.classes,
    )
    module = peers.ViTForImageClassification(config).train()
    return plain_step(lambda x: module(x).logits, [*module.parameters()], batch_for(spec, batch), fused=False)


def matmul_step(spec: ViTSpec, batch: int) -> Step:
    """The three products of every dense layer of the blocks."""
    shapes = [(spec.width, 3 * spec.width), (spec.width, spec.width), (spec.width, spec.mlp), (spec.mlp, spec.width)]
    rows = batch * spec.tokens
    dense = [(nn.Linear(i, o), torch.randn(rows, i), torch.randn(rows, o)) for i, o in shapes]

    @torch.no_grad()
    def step() -> None:
        for layer, x, gradient in dense * spec.layers:
            layer(x)
            gradient @ layer.weight
            gradient.mT @ x

    return step


CONTESTANTS: dict[str, Callable[[ViTSpec, int], Step]] = {
    "timm": timm_step,
    "timm, fused AdamW": fused_timm_step,
    "timm compiled, fused AdamW": compiled_timm_step,
    "Hugging Face": hugging_face_step,
    "vitlab, exact GELU": exact_gelu_step,
    "vitlab, tanh GELU (paper)": vitlab_step,
}


def measure_speed(case: str, rounds: int) -> None:
    spec, batch = CASES[case]
    steps = {label: make(spec, batch) for label, make in CONTESTANTS.items()}
    steps |= {"timm again": steps["timm"], "matmuls alone": matmul_step(spec, batch)}
    for step in steps.values():
        step()
    wall, used = ({label: [] for label in steps} for _ in range(2))
    for number in range(rounds):
        for label in random.Random(number).sample(list(steps), len(steps)):
            start, start_used = time.perf_counter(), time.process_time()
            steps[label]()
            wall[label].append(time.perf_counter() - start)
            used[label].append(time.process_time() - start_used)
    print(
        f"\n{case}, batch {batch}, {rounds} rounds: images/s; by the clock: to timm, to the matmuls; by CPU: the same"
    )
    clock, processor = ({label: statistics.median(own) for label, own in t.items()} for t in (wall, used))
    for label in steps:
        ratios = [times[to] / times[label] for times in (clock, processor) for to in ("timm", "matmuls alone")]
        print(f"  {label:28} {batch / clock[label]:6.1f}", *(f"  {ratio:.2f}" for ratio in ratios), flush=True)


def measure_memory(case: str) -> None:
    print(f"\n{case}, batch {CASES[case][1]}: peak memory in MB, of it before the model was made")
    for label in CONTESTANTS:
        command = [sys.executable, __file__, "--memory", case, label]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peak, before = map(int, done.stdout.split()[-2:])
        print(f"  {label:28} {peak:5}  {before:5}", flush=True)


def peak_memory(case: str, label: str) -> None:
    """In a process of its own: the peak after two steps, and before the model was made."""
    if not label.startswith("vitlab"):
        import peers  # noqa: F401 - all that the peers need, before the first reading
    before = resident()
    step = CONTESTANTS[label](*CASES[case])
    for _ in range(2):  # the second has the optimizer's averages from the start
        step()
    print(resident(), before)


def resident() -> int:
    """MB at most so far; Linux counts in kB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--memory", nargs=2, metavar=("CASE", "CONTESTANT"), help="print one peak and stop")
    arguments = parser.parse_args()
    if arguments.memory:
        peak_memory(*arguments.memory)
    else:
        packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "timm", "transformers"))
        policy = os.environ.get("OMP_WAIT_POLICY", "default")
        print(
            f"{packages}, Python {platform.python_version()}, {torch.get_num_threads()} threads, wait policy {policy}"
        )
        for case in CASES:  # first, because Linux starts a child's peak at its parent's
            measure_memory(case)
        for case in CASES:
            measure_speed(case, arguments.rounds)
