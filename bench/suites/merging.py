"""Token merging: accuracy against speed for every number of tokens merged per layer.

Accuracy and agreement are measured with the ViT-Ti/16 and the 200 photographs in VITLAB_REFERENCE, speed also
with a ViT-B/16 of random weights. All are timed in one process, interleaved in shuffled order; `0 again` is the null:
what differs less is no difference.
    VITLAB_REFERENCE=DIR python bench/suites/merging.py
writes bench/results/merging.json, .md and .svg.
"""

import argparse
import csv
import json
import os
import random
import statistics
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor

import vitlab
from vitlab.counting import count_spec
from vitlab.errors import WeightsWarning
from vitlab.models.vit import ViT

MERGES = range(17)
ROUNDS = 9
CASES = (("ViT-Ti/16", 8), ("ViT-B/16", 8), ("ViT-B/16", 1))  # model and batch
WEIGHTS = "weights/ViT-Ti_16-augreg-in1k-224.npz"
RESULTS = Path(__file__).parent.parent / "results"
AGAIN = "0 again"


def measure(rounds: int = ROUNDS) -> dict[str, object]:
    """Everything: accuracy on real photographs, and speed of each case, by tokens merged per layer."""
    torch.manual_seed(0)
    speed = [{"model": name, "batch": batch, "rows": speeds(name, batch, rounds)} for name, batch in CASES]
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rounds": rounds}
    return {"machine": machine, "accuracy": accuracies(Path(os.environ["VITLAB_REFERENCE"])), "speed": speed}


@torch.inference_mode()
def accuracies(reference: Path) -> list[dict[str, float]]:
    """Top-1 of the real ViT-Ti/16, and its agreement with the same model without merging, in percent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeightsWarning)
        model = vitlab.load_model(reference / WEIGHTS, conventions="timm")
    assert isinstance(model, ViT)
    folder = reference / "imagenet_val_200"
    with (folder / "labels.csv").open() as file:
        listed = list(csv.DictReader(file))
    images = vitlab.preprocess(model, [folder / row["file"] for row in listed])
    labels = torch.tensor([int(row["class_index"]) for row in listed])
    plain, rows = predictions(model, images, 0), []
    for merge in MERGES:
        answers = predictions(model, images, merge)
        top1, agreement = (100 * (answers == other).double().mean().item() for other in (labels, plain))
        rows.append({"merge": merge, "top1": top1, "agreement": agreement} | cost(model))
    return rows


def predictions(model: ViT, images: Tensor, merge: int) -> Tensor:
    """(n, 3, H, W) -> (n,)."""
    model.set_merge(merge)
    return torch.cat([model(batch).argmax(dim=-1) for batch in images.split(20)])


def cost(model: ViT) -> dict[str, float]:
    """GMACs of an image, and the tokens after the last layer."""
    return {"gmacs": count_spec(model.spec).macs / 1e9, "tokens": model.spec.layer_tokens[-1]}


@torch.inference_mode()
def speeds(name: str, batch: int, rounds: int) -> list[dict[str, object]]:
    """Images per second relative to merging nothing; the weights are random, which speed does not depend on."""
    model = vitlab.build_model(name, head="linear", conventions="timm").eval()
    assert isinstance(model, ViT)
    images = torch.randn(batch, 3, *model.spec.image)
    merges = {str(merge): merge for merge in MERGES} | {AGAIN: 0}
    seconds: dict[str, list[float]] = {label: [] for label in merges}
    for number in range(-1, rounds):  # the first is to warm up
        for label in random.Random(number).sample(list(merges), len(merges)):
            model.set_merge(merges[label])
            start = time.perf_counter()
            model(images)
            seconds[label].append(time.perf_counter() - start)
    median = {label: statistics.median(times[1:]) for label, times in seconds.items()}
    rows: list[dict[str, object]] = []
    for label, merge in merges.items():
        model.set_merge(merge)
        found = {"images_per_second": batch / median[label], "ratio": median["0"] / median[label]}
        rows.append({"merge": label} | found | cost(model))
    return rows


def markdown(found: dict[str, object]) -> str:
    """One table: a row for each number of tokens merged per layer."""
    accuracy = {str(row["merge"]): row for row in found["accuracy"]}
    cases = [(f"{case['model']}, batch {case['batch']}", case["rows"]) for case in found["speed"]]
    heading = ["merge", "tokens left", "top-1 %", "agreement %", "GMACs", *(title for title, _ in cases)]
    lines = [f"| {' | '.join(heading)} |", f"|{'---:|' * len(heading)}"]
    for number, row in enumerate(cases[0][1]):
        own = accuracy.get(row["merge"])
        scores = [f"{own['top1']:.1f}", f"{own['agreement']:.1f}"] if own else ["", ""]
        ratios = [f"{rows[number]['ratio']:.2f}" for _, rows in cases]
        cells = [row["merge"], str(row["tokens"]), *scores, f"{row['gmacs']:.2f}", *ratios]
        lines.append(f"| {' | '.join(cells)} |")
    how = found["machine"]
    note = (
        "Top-1 and agreement with merge 0: the real ViT-Ti/16 on 200 photographs (standard error of top-1 about 3 "
        "points). GMACs: ViT-Ti/16. Last columns: images per second relative to merge 0, plain medians of "
        f"{how['rounds']} interleaved rounds, torch {how['torch']}, {how['threads']} threads; `{AGAIN}` is the null."
    )
    return "\n".join([*lines, "", note, ""])


def plot(found: dict[str, object], path: Path) -> None:
    """Accuracy against speed of the real ViT-Ti/16."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = found["speed"][0]["rows"]
    points = [(row["ratio"], one["top1"], one["agreement"]) for row, one in zip(rows, found["accuracy"], strict=False)]
    speed, top1, agreement = zip(*points, strict=True)
    with matplotlib.rc_context({"svg.hashsalt": "vitlab", "svg.fonttype": "path"}):
        figure = Figure(figsize=(6.4, 4.0))
        axes = figure.subplots()
        axes.plot(speed, agreement, "o-", color="0.6", label="agreement with merge 0")
        axes.plot(speed, top1, "o-", label="top-1")
        for merge in range(0, len(points), 4):
            axes.annotate(f"r={merge}", points[merge][:2], textcoords="offset points", xytext=(4, 6), fontsize=8)
        axes.set(xlabel="images per second relative to merge 0", ylabel="% of 200 photographs")
        axes.set_title("Token merging: ViT-Ti/16, r tokens per layer")
        axes.grid(alpha=0.25)
        axes.legend()
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def main() -> None:
    """Measure, print the table, and write the results."""
    parser = argparse.ArgumentParser(description="token merging: accuracy against speed")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = measure(given.rounds)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "merging.json").write_text(json.dumps(found, indent=1) + "\n")
    (given.out / "merging.md").write_text(markdown(found))
    plot(found, given.out / "merging.svg")
    print(markdown(found))


if __name__ == "__main__":
    main()
