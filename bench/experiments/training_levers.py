"""Levers of a training step on a CPU, each against the step without it: time by the clock and by CPU, and peak memory.

All steps run in one process, interleaved in shuffled order; `plain again` is the null: what differs less is no
difference. Ratios above 1 are faster. Memory is the peak of a process of its own after some steps. Then MKL against
oneDNN for the three products of a dense layer, one thread.
    OMP_WAIT_POLICY=PASSIVE python bench/experiments/training_levers.py > evidence/training_levers.txt
"""

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import torch
from torch.nn import functional as F

from vitlab.models.build import build_from_spec
from vitlab.models.vit import make_lean
from vitlab.spec import ViTSpec
from vitlab.spec.recipe import AdamW, Execution, Recipe, Schedule
from vitlab.train.optimizers import make_optimizer
from vitlab.train.state import TrainState
from vitlab.train.update import Examples, Update

SMALL = ViTSpec(patch=4, layers=9, width=192, mlp=768, heads=3, image=(32, 32), classes=10, head="linear")
CASES = {
    "ViT-Ti/16 at 224": (ViTSpec(patch=16, layers=12, width=192, mlp=768, heads=3, head="linear"), 16),
    "patch 4, width 192, 9 layers at 32": (SMALL, 128),
}
Step = Callable[[], object]


def step_of(case: str, *, is_lean: bool = False, is_short: bool = False, streams: int = 0, pieces: int = 1) -> Step:
    """A step of `Update`, with the paper's GELU; `is_short` is for the last layer of a lean model."""
    spec, batch = CASES[case]
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, *spec.image, generator=generator)
    targets = F.one_hot(torch.randint(spec.classes, (batch,), generator=generator), spec.classes).float()
    schedule = Schedule(peak=1e-3, total=1_000_000, warmup=0, decay="constant")
    recipe = Recipe("bench", "bench", batch, spec.image, schedule, AdamW())
    module = build_from_spec(spec)
    if is_lean:
        make_lean(module)
        module.is_lean = is_short
    state = TrainState(module, make_optimizer(module, recipe.optimizer))
    execution = Execution(streams=streams, micro_batch=batch // pieces)
    update = Update(recipe, execution, seed=0, prepare=lambda inputs: inputs)
    return lambda: update(state, module, Examples(images, targets))


LEVERS: dict[str, Callable[[str], Step]] = {
    "plain": step_of,
    "lean MLP": lambda case: step_of(case, is_lean=True),
    "2 streams": lambda case: step_of(case, streams=2),
    "2 streams, lean MLP": lambda case: step_of(case, streams=2, is_lean=True),
    "2 streams, lean, short last": lambda case: step_of(case, streams=2, is_lean=True, is_short=True),
    "4 streams, lean MLP": lambda case: step_of(case, streams=4, is_lean=True),
    "2 pieces, 2 streams, lean": lambda case: step_of(case, streams=2, is_lean=True, pieces=2),
}


def timed(steps: Mapping[str, Step], rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """Seconds by the clock and of the processor."""
    found: dict[str, tuple[list[float], list[float]]] = {label: ([], []) for label in steps}
    for number in range(rounds + 1):  # the first is not counted
        for label in random.Random(number).sample(list(steps), len(steps)):
            start, start_used = time.perf_counter(), time.process_time()
            steps[label]()
            if number:
                found[label][0].append(time.perf_counter() - start)
                found[label][1].append(time.process_time() - start_used)
    return found


def measure_speed(case: str, rounds: int) -> None:
    steps = {label: make(case) for label, make in LEVERS.items()}
    found = timed(steps | {"plain again": steps["plain"]}, rounds)
    print(f"\n{case}, batch {CASES[case][1]}, {rounds} rounds: median and best s, to plain; the same by CPU")
    plain = found["plain"]
    for label, times in found.items():
        parts = [
            f"{statistics.median(own):6.3f} {min(own):6.3f}  {statistics.median(of) / statistics.median(own):.2f} "
            f"{min(of) / min(own):.2f} "
            for own, of in zip(times, plain, strict=True)
        ]
        print(f"  {label:28}", *parts, flush=True)


def measure_memory(case: str) -> None:
    print(f"\n{case}, batch {CASES[case][1]}: peak memory in MB")
    for label in LEVERS:
        command = [sys.executable, __file__, "--memory", case, label]
        peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]
        print(f"  {label:28} {peak:>5}", flush=True)


@torch.no_grad()
def measure_products(rows: int, rounds: int) -> None:
    torch.set_num_threads(1)
    linear = torch.ops.mkldnn._linear_pointwise
    print(f"\ndense layers, {rows} rows, 1 thread: CPU time of MKL / oneDNN, median of {rounds}")
    for inputs, outputs in ((192, 576), (192, 192), (192, 768), (768, 192)):
        x, w, g = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs)
        b = torch.randn(outputs)
        pairs: dict[str, tuple[Step, Step]] = {
            "forward": (lambda x=x, w=w, b=b: F.linear(x, w, b), lambda x=x, w=w, b=b: linear(x, w, b, "none", [], "")),
            "of the input": (lambda g=g, w=w: g @ w, lambda g=g, w=w: linear(g, w.mT, None, "none", [], "")),
            "of the weight": (lambda g=g, x=x: g.mT @ x, lambda g=g, x=x: linear(g.mT, x.mT, None, "none", [], "")),
        }
        for name, (mkl, onednn) in pairs.items():
            found = timed({"mkl": mkl, "again": mkl, "onednn": onednn}, rounds)
            ours, null, theirs = (statistics.median(used) for _, used in found.values())
            print(
                f"  {inputs:4} -> {outputs:4} {name:14} {ours / theirs:.2f}   MKL again {ours / null:.2f}", flush=True
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--memory", nargs=2, metavar=("CASE", "LEVER"), help="print one peak and stop")
    arguments = parser.parse_args()
    if arguments.memory:
        step = LEVERS[arguments.memory[1]](arguments.memory[0])
        for _ in range(4):
            step()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)  # Linux counts in kB
    else:
        policy = os.environ.get("OMP_WAIT_POLICY", "default")
        load = os.getloadavg()[0]
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, wait policy {policy}, load {load:.1f}")
        for case in CASES:  # first, because Linux starts a child's peak at its parent's
            measure_memory(case)
        for case in CASES:
            measure_speed(case, arguments.rounds)
        for rows in (1576, 4160):
            measure_products(rows, arguments.rounds * 3)
