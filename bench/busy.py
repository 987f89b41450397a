"""What choosing how threads wait saves beside busy programs, and costs without them.

Every figure is the median time of a training step in processes that alternate: as torch is without vitlab's command
line (default), with the choice that it makes at its start (chosen), and default / chosen, so that above 1 means that
choosing is faster. The first line says what other programs used before any of ours was started.
    python bench/busy.py > evidence/busy.txt
"""

import os
import statistics
import subprocess
import sys
import time

from vitlab.busy import SETTINGS, others_between, read

CHILD = """
import os, time
if {is_chosen}:
    from vitlab.busy import choose_before_torch
    choose_before_torch()
import torch
from vitlab import build_model
model = build_model("{name}", image={image}, classes=10).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
images, labels = torch.randn({batch}, 3, {image}, {image}), torch.arange({batch}) % 10
def step():
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
step()
times, begin = [], time.perf_counter()
while len(times) < {rounds} and time.perf_counter() - begin < 20:
    start = time.perf_counter()
    step()
    times.append(time.perf_counter() - start)
print(sorted(times)[len(times) // 2], os.environ.get("OMP_WAIT_POLICY", "default"))
"""
CASES = [("ViT-Ti/16", 32, 8, 20), ("ViT-Ti/16", 224, 4, 3)]
REPEATS = 3


def measured(case: tuple[str, int, int, int], *, is_chosen: bool) -> tuple[float, str]:
    """(seconds of a step, how threads waited)"""
    name, image, batch, rounds = case
    code = CHILD.format(name=name, image=image, batch=batch, rounds=rounds, is_chosen=is_chosen)
    environment = {k: v for k, v in os.environ.items() if k not in (*SETTINGS, "OMP_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    seconds, policy = done.stdout.split()
    return float(seconds), policy


def compare(case: tuple[str, int, int, int], busy: int) -> None:
    found = {False: [], True: []}
    for _ in range(REPEATS):
        for is_chosen, own in found.items():
            own.append(measured(case, is_chosen=is_chosen))
    default, chosen = (statistics.median(seconds for seconds, _ in own) for own in found.values())
    all_times = " ".join(f"{1000 * seconds:.0f}" for own in found.values() for seconds, _ in own)
    policies = ", ".join(policy for _, policy in found[True])
    where = f"{case[0]} at {case[1]}, batch {case[2]}, beside {busy} busy programs"
    print(f"{where}: default / chosen {default / chosen:.2f} (chosen: {policies}; ms: {all_times})", flush=True)


if __name__ == "__main__":
    before = read()
    time.sleep(5)
    after = read()
    if before is None or after is None:
        sys.exit("this system does not tell what other programs use, so vitlab chooses nothing here")
    print(f"before: other programs use {others_between(before, after):.1f} of {os.cpu_count()} processors", flush=True)
    for busy in (0, 2):
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            for case in CASES:
                compare(case, busy)
        finally:
            for other in others:
                other.kill()
                other.wait()
