"""Does masked patch prediction help where labels are few? Real data, three seeds, the project's own commands.

    python -m bench.experiments.masked > evidence/masked_patches.txt

A small ViT learns the 1,442 training scans of scikit-learn's digits without their labels. Then it is fine-tuned on a
few labelled scans of every class, and so are fresh weights of the same seed: the same command, labels, steps and batch.
Both arms have the same two learning rates, and the table has both. 355 other scans test. Two numbers as arguments are
the steps of both trainings instead of those below; `tiny` is a rehearsal.
"""

import contextlib
import json
import shlex
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

from vitlab.cli import main
from vitlab.data.sources.catalogue import open_source
from vitlab.data.splits import seeded_shots
from vitlab.models.build import build_from_spec
from vitlab.weights.load import load_model
from vitlab.weights.save import save_model

SEEDS = 3
LABELS = (10,)  # scans of every class
RATES = (3e-4, 1e-3)
STEPS = {"masked": 1000, "tuned": 100}
PLAIN = "--augmentation.crop none --augmentation.flip false"
MASKED = f"""
pretrain ViT-Ti/2 --objective masked-patches --data digits?split=train --image 8 --batch 64
--schedule.warmup 100 --schedule.peak 1e-3 --model.layers 3 --model.width 64 --model.heads 4 --model.mlp 128 {PLAIN}
"""
# Adam for both arms: fresh weights learn faster with it than with the SGD of table 4, the kinder choice.
TUNED = f"""
finetune WEIGHTS --data npz:FEW --test digits?split=test --recipe quick --held-out 0 --image 8 --batch 50
--optimizer adamw --optimizer.clip 1 --optimizer.weight-decay 0.1 --schedule.warmup 10 {PLAIN}
"""


def run(command: str, out: str, **words: str) -> dict:
    """The result of a command in this folder."""
    given = [words.get(word, word) for word in shlex.split(command)]
    given = [word.replace("FEW", words.get("FEW", "")) for word in given] + ["--out", out]
    print("vitlab", shlex.join(given), flush=True)
    with contextlib.redirect_stdout(sys.stderr):
        assert main(given) == 0
    return json.loads((Path(out) / "result.json").read_text())


def write_few(shots: int, seed: int, file: str) -> None:
    """So many labelled scans of every class, drawn by the seed."""
    source = seeded_shots(open_source("digits?split=train"), shots, seed)
    samples = [source.item(number) for number in range(len(source))]
    np.savez(file, images=np.stack([s.data for s in samples]), labels=np.array([s.labels[0] for s in samples]))


def both_starts(seed: int) -> dict[str, str]:
    """Weights that have seen all scans without labels, and those they started from."""
    masked = run(f"{MASKED} --schedule.total {STEPS['masked']} --seed {seed}", f"masked-{seed}")
    print(f"seed {seed}: masked patches after {masked['images']:,} images", flush=True)
    model = load_model(f"masked-{seed}/model")
    save_model(build_from_spec(model.spec, seed=seed), f"fresh-{seed}")
    return {"masked patches": f"masked-{seed}/model", "fresh weights": f"fresh-{seed}"}


def compare() -> None:
    found: dict[tuple[int, float, str], list[float]] = {}
    for seed in range(SEEDS):
        starts = both_starts(seed)
        for shots in LABELS:
            write_few(shots, seed, f"few-{shots}-{seed}.npz")
            for rate in RATES:
                for arm, weights in starts.items():
                    options = f"--schedule.total {STEPS['tuned']} --schedule.peak {rate:g} --seed {seed}"
                    out = f"tuned-{seed}-{shots}-{rate:g}-{arm.split()[0]}"
                    result = run(f"{TUNED} {options}", out, WEIGHTS=weights, FEW=f"few-{shots}-{seed}.npz")
                    found.setdefault((shots, rate, arm), []).append(result["test"]["top1"])
                    print(f"  {arm}: {result['test']['top1']:.2%} of {result['test']['count']}", flush=True)
    print("\nlabels a class | learning rate | start | test accuracy, mean and deviation over seeds | each seed")
    for (shots, rate, arm), shares in found.items():
        mean, deviation = statistics.mean(shares), statistics.stdev(shares)
        print(f"{shots} | {rate:g} | {arm} | {mean:.2%} ± {deviation:.2%} | {' '.join(f'{s:.2%}' for s in shares)}")
    print()
    for shots in LABELS:
        best = {
            arm: max((found[shots, rate, arm] for rate in RATES), key=statistics.mean)
            for arm in ("masked patches", "fresh weights")
        }
        gains = [a - b for a, b in zip(best["masked patches"], best["fresh weights"], strict=True)]
        print(
            f"{shots} labels a class, each arm at its better rate: masked patches minus fresh weights is "
            f"{statistics.mean(gains):+.2%} ± {statistics.stdev(gains):.2%}, above zero in "
            f"{sum(gain > 0 for gain in gains)} of {len(gains)} seeds"
        )


if __name__ == "__main__":
    if sys.argv[1:] == ["tiny"]:
        SEEDS, LABELS, RATES, STEPS = 2, (5,), (1e-3,), {"masked": 110, "tuned": 30}
    elif sys.argv[1:]:
        STEPS = dict(zip(STEPS, map(int, sys.argv[1:]), strict=True))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        compare()
