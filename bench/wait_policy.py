"""What OMP_WAIT_POLICY=PASSIVE costs on an idle machine and saves beside busy programs.

Processes with and without it alternate; the figure is the median time of a forward pass, default / passive, so above 1
means that passive is faster.
    python bench/wait_policy.py > evidence/wait_policy.txt
"""

import os
import statistics
import subprocess
import sys

CHILD = """
import time, torch
from vitlab import build_model
model, images = build_model("{name}", image={image}, classes=10).eval(), torch.randn({batch}, 3, {image}, {image})
with torch.inference_mode():
    model(images)
    start = time.perf_counter()
    for _ in range({rounds}): model(images)
print((time.perf_counter() - start) / {rounds})
"""
CASES = [("ViT-Ti/16", 32, 8, 60), ("ViT-Ti/16", 224, 4, 5)]
REPEATS = 3


def seconds(case: tuple[str, int, int, int], policy: str | None) -> float:
    name, image, batch, rounds = case
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    environment |= {"OMP_WAIT_POLICY": policy} if policy else {}
    code = CHILD.format(name=name, image=image, batch=batch, rounds=rounds)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    for busy in (0, 2):
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            for case in CASES:
                times = {None: [], "PASSIVE": []}
                for _ in range(REPEATS):
                    for policy in times:
                        times[policy].append(seconds(case, policy))
                default, passive = (statistics.median(own) for own in times.values())
                spread = [f"{1000 * t:.1f}" for t in (*times[None], *times["PASSIVE"])]
                where = f"{case[0]} at {case[1]}, batch {case[2]}, beside {busy} busy programs"
                print(f"{where}: default / passive {default / passive:.2f} (ms: {' '.join(spread)})", flush=True)
        finally:
            for other in others:
                other.kill()
                other.wait()
