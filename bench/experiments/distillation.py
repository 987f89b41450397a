"""Does a small student learn more from a better teacher beside the labels than from labels alone? Real data, 3 seeds.

    OMP_NUM_THREADS=1 python -m bench.experiments.distillation > evidence/distillation.txt
    OMP_NUM_THREADS=1 python -m bench.experiments.distillation few > evidence/distillation_few.txt
    OMP_NUM_THREADS=1 python -m bench.experiments.distillation few 1000 > evidence/distillation_few_1000.txt

The 1,797 scans of scikit-learn's digits, four fifths of every class to train on. The teacher is larger and sees several
times as many pictures; with `few`, it also has ten times the labels: students get a tenth of the training scans. The
students are DeiTs with a distillation token: the same model, pictures, batch, steps and rate for all, without a teacher
and with hard (half of the loss is the teacher's) and soft distillation (a tenth, at temperature 3), which are DeiT's
weights. Without one, both heads learn from the labels, by the mean of their logits. The project's own commands, each
printed before its result.
"""

import contextlib
import json
import shlex
import statistics
import sys
import tempfile
from pathlib import Path

from vitlab.cli import main

SEEDS = 3
SHARED = """
--data digits?split=train --test digits?split=test --image 8 --batch 64 --loss softmax --label-smoothing 0 --dropout 0
--optimizer.weight-decay 0.05 --augmentation.smallest-area 0.5 --augmentation.flip false
"""
TEACHER = f"""
pretrain ViT-Ti/2 {SHARED} --schedule.total 1500 --schedule.warmup 150 --schedule.peak 1e-3 --model.layers 4
--model.width 64 --model.heads 4 --model.mlp 128
"""
STUDENT = f"""
pretrain DeiT-Ti/2-distilled {SHARED} BUDGET --schedule.peak 2e-3 --model.layers 2 --model.width 24 --model.heads 2
--model.mlp 48
"""
STEPS = {"all": 400, "few": 300}
SHARES = {"all": "", "few": "--held-out 0.9"}
WAYS = {
    "no teacher": "",
    "hard distillation": "--teacher teacher/model --distillation.kind hard --distillation.weight 0.5",
    "soft distillation": (
        "--teacher teacher/model --distillation.kind soft --distillation.weight 0.1 --distillation.temperature 3"
    ),
}


def run(command: str, out: str) -> float:
    """The share of test images that the model of a command gets right."""
    words = [*shlex.split(command), "--out", out]
    print("vitlab", " ".join(words), flush=True)
    with contextlib.redirect_stdout(sys.stderr):
        assert main(words) == 0
    test = json.loads((Path(out) / "result.json").read_text())["test"]
    print(f"  {test['top1']:.2%} right of {test['count']} test images, loss {test['loss']:.4f}", flush=True)
    return test["top1"]


def compare(share: str, steps: int) -> None:
    """Every way with every seed; then the table."""
    budget = f"--schedule.total {steps} --schedule.warmup {steps // 10} {SHARES[share]}"
    student = STUDENT.replace("BUDGET", budget)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        teacher = run(TEACHER, "teacher")
        found = {
            way: [run(f"{student} {words} --seed {seed}", f"{way}-{seed}".replace(" ", "-")) for seed in range(SEEDS)]
            for way, words in WAYS.items()
        }
    print(f"\nteacher: {teacher:.2%}")
    for way, shares in found.items():
        each = ", ".join(f"{share:.2%}" for share in shares)
        print(f"{way}: mean {statistics.mean(shares):.2%}, standard deviation {statistics.stdev(shares):.2%} ({each})")


if __name__ == "__main__":
    given = sys.argv[1:]
    share = given.pop(0) if given and given[0] in STEPS else "all"
    compare(share, int(given[0]) if given else STEPS[share])
