"""How OpenMP's threads wait: what a passive policy, and vitlab's choice, save beside busy loops and cost without.

Every measurement is a process of its own, because the policy is read once, before torch is imported; the figure is the
median time of its steps. `chosen by vitlab` is what the command line sets at its start, by what other programs use.
"""

import os
import subprocess
import sys
from collections.abc import Iterator

from bench.runner import Case, Contestant
from vitlab.process.busy import SETTINGS

ROUNDS = 3
CHILD = """
import time
if {is_chosen}:
    from vitlab.process.busy import choose_before_torch
    choose_before_torch()
import torch
from vitlab import build_model
model = build_model("ViT-Ti/16", image={image}, classes=10)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
images, labels = torch.randn({batch}, 3, {image}, {image}), torch.arange({batch}) % 10
def training():
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
@torch.inference_mode()
def forward():
    model(images)
{kind}()
times, begin = [], time.perf_counter()
while len(times) < {steps} and time.perf_counter() - begin < 20:
    start = time.perf_counter()
    {kind}()
    times.append(time.perf_counter() - start)
print(sorted(times)[len(times) // 2])
"""
SIZES = ((32, 8, 40), (224, 4, 5))  # pixels, batch, steps
POLICIES = {"default": {}, "passive": {"OMP_WAIT_POLICY": "PASSIVE"}, "chosen by vitlab": {}}


def cases(is_quick: bool) -> Iterator[Case]:
    for beside in (0, 2):
        for kind in ("forward", "training"):
            for image, batch, steps in SIZES[:1] if is_quick else SIZES:
                where = f"beside {beside} busy loops" if beside else "alone"
                yield Case(
                    title=f"ViT-Ti/16 at {image}, batch {batch}, {kind}, {where}",
                    contestants=[_contestant(name, kind, image, batch, steps) for name in POLICIES],
                    images=batch,
                    is_reported=True,
                    beside=beside,
                )


def _contestant(name: str, kind: str, image: int, batch: int, steps: int) -> Contestant:
    given = {"kind": kind, "image": image, "batch": batch, "steps": steps, "is_chosen": name == "chosen by vitlab"}
    environment = {key: value for key, value in os.environ.items() if key not in (*SETTINGS, "OMP_NUM_THREADS")}
    command = [sys.executable, "-c", CHILD.format(**given)]

    def measured() -> float:
        done = subprocess.run(command, env=environment | POLICIES[name], capture_output=True, text=True, check=True)
        return float(done.stdout)

    return Contestant(name, lambda: measured, is_compared=False)
