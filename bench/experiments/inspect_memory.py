"""Peak memory of a whole `vitlab inspect` at 384 pixels, against the number of pictures.

Each number of pictures runs in a process of its own, from fresh weights to the written report; the figure is that
process's largest resident size.
    python -m bench.experiments.inspect_memory ViT-L/16 1 4 16 > evidence/inspection_memory.txt
    python -m bench.experiments.inspect_memory ViT-Ti/16 1 16 128 >> evidence/inspection_memory.txt
The small model shows what a picture itself costs, for as many as the large one would need hours for.
"""

import os
import subprocess
import sys
import tempfile
import time

from vitlab.paper.models import model_spec

SIDE, LIMIT = 384, 4e9
CHILD = """
import sys
from pathlib import Path
import numpy as np
from PIL import Image
from rich.console import Console
from vitlab import build_model
from vitlab.runs.measure.inspection import inspect
folder, name, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
numbers = np.random.default_rng(0)
pictures = [folder / f"{i}.png" for i in range(number)]
for picture in pictures:
    Image.fromarray(numbers.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(picture)
model = build_model(name, image=SIDE).eval()
done = inspect(model, pictures, folder / "out", maps=4, console=Console(quiet=True))
assert done.images == number
""".replace("SIDE", str(SIDE))


def peak(name: str, number: int) -> tuple[float, float]:
    """Bytes and seconds."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        child = subprocess.Popen([sys.executable, "-c", CHILD, folder, name, str(number)])
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return 1024 * usage.ru_maxrss, time.perf_counter() - start


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    spec = model_spec(name, image=(SIDE, SIDE))
    layer = 4 * spec.heads * spec.tokens**2 / 1e6
    print(f"{name} at {SIDE} pixels, fresh weights, {spec.heads} heads, {spec.tokens} tokens")
    print(
        f"one layer's attention of one image: {layer:.1f} MB; of all {spec.layers} layers: {spec.layers * layer:.0f} MB"
    )
    for number in map(int, numbers):
        memory, seconds = peak(name, number)
        verdict = "within" if memory <= LIMIT else "OVER"
        print(f"{number:4} pictures: peak {memory / 1e9:.2f} GB, {verdict} 4 GB; {seconds:.0f} s", flush=True)
