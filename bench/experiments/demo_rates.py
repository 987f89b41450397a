"""Learning rates for `vitlab demo`, picked without the test digits: python -m bench.experiments.demo_rates [PRETRAINED]

Trains both ways with each rate on a few labelled digits and scores the training digits that were not drawn. Seeds and
draws are others than the demo's. PRETRAINED is the model that a demo left (demo-out/1-pretrained/model); without it,
pre-training comes first.
"""

import io
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from rich.console import Console

from vitlab.data.sources.digits import DigitsSource
from vitlab.runs import demo

RATES, SHOTS, SEEDS = (1e-3, 2e-3, 4e-3), (5, 50), (10, 11)


def development(shots: int, seed: int, folder: Path) -> str:
    """The training digits that this draw leaves out, as an npz file; returns its data spec."""
    drawn, every = DigitsSource("train", shots, seed), DigitsSource("train")
    rest = ~np.isin(every.numbers, drawn.numbers)
    path = folder / f"development-{shots}-{seed}.npz"
    np.savez(path, images=np.repeat(every.scans[rest][..., None], 3, axis=3), labels=every.labels.numbers[rest])
    return f"npz:{path}"


def main() -> None:
    torch.set_num_threads(1)
    quiet = Console(file=io.StringIO())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pretrained = Path(sys.argv[1]).absolute() if sys.argv[1:] else folder / "pretrained" / "model"
        if not sys.argv[1:]:
            demo.train((pretrained.parent, demo.pretraining()), quiet)
        print(f"{demo.STEPS} steps; accuracy in % on training digits that were not drawn, mean of seeds", *SEEDS)
        print("labels per class, way, rate: accuracy")
        for shots in SHOTS:
            for way, start in (("pre-trained", pretrained), ("from scratch", None)):
                for rate in RATES:
                    found = []
                    for seed in SEEDS:
                        spec = demo.reading(start, shots, seed)
                        recipe = replace(spec.recipe, schedule=replace(spec.recipe.schedule, peak=rate))
                        spec = replace(spec, recipe=recipe, test=development(shots, seed, folder))
                        run = folder / f"{shots}-{way}-{rate}-{seed}"
                        demo.train((run, spec), quiet)
                        found.append(demo._accuracy(run))
                    print(f"{shots:3d}  {way:13s} {rate:g}: {mean(found):.1f}", flush=True)


if __name__ == "__main__":
    main()
