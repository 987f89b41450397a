"""Token merging: accuracy for every number of tokens merged per layer. Its speed is in `bench/results/merging.json`.

    VITLAB_REFERENCE=DIR python -m bench.experiments.merging > evidence/merging.txt

The model is the ViT-Ti/16 in that folder, on its 200 photographs; the figure is docs/figures/merging.svg.
"""

import csv
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

import vitlab
from bench import libraries, results
from vitlab.counting import count_spec

MERGES = range(17)
FIGURE = Path(__file__).parents[2] / "docs" / "figures" / "merging.svg"


class Found(NamedTuple):
    """Percentages of the photographs, and what the model costs."""

    merge: int
    top1: float
    agreement: float
    gmacs: float
    tokens: int
    speed: float | None  # relative to merge 0


def accuracies() -> list[Found]:
    """Top-1, and agreement with the same model without merging."""
    model, folder, speed = libraries.real_model(), libraries.photographs(), speeds()
    with (folder / "labels.csv").open() as file:
        listed = list(csv.DictReader(file))
    images = vitlab.preprocess(model, [folder / row["file"] for row in listed])
    labels = torch.tensor([int(row["class_index"]) for row in listed])
    found, plain = [], None
    for merge in MERGES:
        model.set_merge(merge)
        answers = vitlab.open_engine(model)(images).argmax(dim=-1)
        plain = answers if plain is None else plain
        top1, agreement = (100 * (answers == other).double().mean().item() for other in (labels, plain))
        cost = count_spec(model.spec).macs / 1e9, model.spec.layer_tokens[-1]
        found.append(Found(merge, top1, agreement, *cost, speed.get(merge)))
    return found


def speeds() -> dict[int, float]:
    """Images per second relative to merge 0, the median over the rounds of the suite's results; empty without them."""
    path = results.RESULTS / "merging.json"
    if not path.exists():
        return {}
    case = results.load(path).cases[0]
    rows = {int(row.name.split()[1]): row for row in case.rows if row.name.startswith("merge ")}
    against = replace(case, rows=(rows[0], *rows.values()))
    return {merge: ratio for merge, row in rows.items() if (ratio := against.ratio(row)) is not None}


def draw(found: list[Found]) -> None:
    """Accuracy against speed."""
    import matplotlib
    from matplotlib.figure import Figure

    points = [one for one in found if one.speed is not None]
    with matplotlib.rc_context({"svg.hashsalt": "vitlab", "svg.fonttype": "path"}):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        speed = [one.speed for one in points]
        axes.plot(speed, [one.agreement for one in points], "o-", color="0.6", label="agreement with merge 0")
        axes.plot(speed, [one.top1 for one in points], "o-", label="top-1")
        for one in points[::4]:
            axes.annotate(
                f"r={one.merge}", (one.speed, one.top1), textcoords="offset points", xytext=(4, 6), fontsize=8
            )
        axes.set(xlabel="images per second relative to merge 0", ylabel="% of 200 photographs")
        axes.set_title("Token merging: ViT-Ti/16, r tokens per layer")
        axes.grid(alpha=0.25)
        axes.legend()
        figure.savefig(FIGURE, metadata={"Date": None, "Creator": None})


def main() -> None:
    found = accuracies()
    print("| merge | tokens left | GMACs | top-1 % | agreement % |")
    print("| --- | --- | --- | --- | --- |")
    for one in found:
        print(f"| {one.merge} | {one.tokens} | {one.gmacs:.2f} | {one.top1:.1f} | {one.agreement:.1f} |")
    if all(one.speed is not None for one in found):
        draw(found)


if __name__ == "__main__":
    main()
