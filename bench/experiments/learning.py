"""Does training learn? Real data, the project's own commands, every result printed with the command that made it.

    python -m bench.experiments.learning digits > evidence/learning_digits.txt
    python -m bench.experiments.learning cifar PACKAGE WEIGHTS > evidence/learning_cifar.txt

`digits`: a small ViT on the 1,797 scans of scikit-learn, four fifths of every class to train on, five seeds.
`cifar`: ViT-Ti/16 from WEIGHTS (Google's npz) fine-tuned on 1,000 CIFAR-10 images, against fresh weights with the same
images, batch and steps, both tested on 1,000 held-out test images. PACKAGE: see bench/experiments/real_data.py.
"""

import contextlib
import json
import shlex
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.experiments.real_data import NAMES, write_cifar
from vitlab.cli import main
from vitlab.data.sources.catalogue import open_source

SEEDS = 5
DIGITS = """
pretrain ViT-Ti/2 --data digits?split=train --test digits?split=test --image 8 --batch 64 --schedule.total 3000
--schedule.warmup 300 --schedule.peak 1e-3 --loss softmax --label-smoothing 0.1 --dropout 0.1 --average 0.998
--augmentation.crop none --augmentation.flip false --model.layers 4 --model.width 96 --model.heads 4 --model.mlp 192
"""
CIFAR_EACH = 100  # images of a class, to train on and to test on
CIFAR = (
    "--data folder:train --test folder:test --image 224 --held-out 0 --batch 64 --micro-batch 16 --schedule.total 100"
)
TUNED = f"finetune WEIGHTS {CIFAR} --recipe quick --schedule.warmup 10 --schedule.peak 0.01"
# From scratch Adam learns faster than SGD: the kinder choice.
SCRATCH = f"pretrain ViT-Ti/16 {CIFAR} --schedule.warmup 10 --schedule.peak 1e-3 --loss softmax --dropout 0"


def run(command: str, out: str, weights: str = "") -> dict:
    """The result of a command in this folder."""
    words = [*shlex.split(command), "--out", out]
    print("vitlab", " ".join(words), flush=True)
    assert main([weights if word == "WEIGHTS" else word for word in words]) == 0
    return json.loads((Path(out) / "result.json").read_text())


def digits() -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        results = [run(f"{DIGITS} --seed {seed}", f"seed-{seed}") for seed in range(SEEDS)]
    shares = [result["test"]["top1"] for result in results]
    for seed, result in enumerate(results):
        print(
            f"seed {seed}: {result['test']['top1']:.2%} of {result['test']['count']} after {result['images']:,} images"
        )
    print(f"mean {statistics.mean(shares):.2%}, standard deviation {statistics.stdev(shares):.2%}")


def write_folder(source, folder: Path) -> None:
    """The first images of every class, as PNG files in class folders."""
    from PIL import Image

    counts = np.zeros(len(NAMES), int)
    for number in range(len(source)):
        sample = source.item(number)
        (label,) = sample.labels
        if counts[label] < CIFAR_EACH:
            path = folder / NAMES[label] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(sample.data).save(path)
            counts[label] += 1


def cifar(package: str, weights: str) -> None:
    package, weights = str(Path(package).resolve()), str(Path(weights).resolve())
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_cifar(Path(package), Path())
        for split in ("train", "test"):
            write_folder(open_source(f"cifar10:.?split={split}"), Path(split))
        tuned = run(TUNED, "tuned", weights)
        scratch = run(SCRATCH, "scratch")
    for title, result in (("fine-tuned from ImageNet", tuned), ("from scratch", scratch)):
        test = result["test"]
        print(f"{title}: {test['top1']:.2%} of {test['count']:,} test images, after {result['images']:,} images")


if __name__ == "__main__":
    {"digits": digits, "cifar": cifar}[sys.argv[1]](*sys.argv[2:])
