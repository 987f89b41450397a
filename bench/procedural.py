"""How fast the built-in sources draw, beside decoding a JPEG of the same picture with Pillow.

    OMP_NUM_THREADS=1 python bench/procedural.py

Drawing and decoding take turns in rounds, so whatever else the machine does slows both; the ratio is the number to
compare between machines. Fractal classes are searched for before the clock starts, except in the rows that say so.
"""

import io
import time

import numpy as np
from PIL import Image

from vitlab.data.source import Sample
from vitlab.data.sources.digits import DigitsSource
from vitlab.data.sources.drawn.fractals import FractalSource
from vitlab.data.sources.drawn.shapes import ShapeSource

ROUNDS, SECONDS = 8, 0.25  # of each kind of work in a round
CLASSES = 50


def main() -> None:
    sources = [("digits", 8, DigitsSource())]
    for size in (32, 64, 224):
        sources.append(("fractals", size, FractalSource(classes=CLASSES, size=size)))
        sources.append(("shapes", size, ShapeSource(size=size)))
    sources.append(("fractals, every class new", 64, FractalSource(classes=10**6, size=64, seed=1)))
    print(f"{'source':<26}{'size':>5}{'images/s':>10}{'JPEG/s':>9}{'ratio':>8}")
    for name, size, source in sources:
        warm = [source.item(i) for i in range(CLASSES)]
        files = [jpeg(sample) for sample in warm]
        drawn, decoded = rates(
            lambda i, s=source: s.item(CLASSES + i % (len(s) - CLASSES)), lambda i, f=files: decode(f[i % CLASSES])
        )
        print(f"{name:<26}{size:>5}{drawn:>10.0f}{decoded:>9.0f}{drawn / decoded:>8.2f}")


def rates(*jobs):
    """Calls per second of each job, run in turns."""
    calls, seconds = [0] * len(jobs), [0.0] * len(jobs)
    for _ in range(ROUNDS):
        for which, job in enumerate(jobs):
            start = time.perf_counter()
            while (spent := time.perf_counter() - start) < SECONDS:
                job(calls[which])
                calls[which] += 1
            seconds[which] += spent
    return [n / s for n, s in zip(calls, seconds, strict=True)]


def jpeg(sample: Sample) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.asarray(sample.data)).save(file, "JPEG", quality=90)
    return file.getvalue()


def decode(file: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))


if __name__ == "__main__":
    main()
