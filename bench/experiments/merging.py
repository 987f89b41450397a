"""Token merging: accuracy for every number of tokens merged per layer, beside the speed that `bench run merging` found.

    VITLAB_REFERENCE=DIR python -m bench.experiments.merging > evidence/merging.txt

The model is the ViT-Ti/16 in that folder, on its 200 photographs; the figure is docs/figures/merging.svg.
"""

import csv
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
    """Images per second relative to merge 0, from the suite's results; empty without them."""
    path = results.RESULTS / "merging.json"
    if not path.exists():
        return {}
    case = results.load(path).cases[0]
    taken = {row.name: row.median for row in case.rows if row.name.startswith("merge ")}
    return {int(name.split()[1]): taken["merge 0"] / median for name, median in taken.items()}


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
    print("| merge | tokens left | GMACs | top-1 % | agreement % | images/s to merge 0 |")
    print("| --- | --- | --- | --- | --- | --- |")
    for one in found:
        speed = "" if one.speed is None else f"{one.speed:.2f}"
        print(f"| {one.merge} | {one.tokens} | {one.gmacs:.2f} | {one.top1:.1f} | {one.agreement:.1f} | {speed} |")
    if all(one.speed is not None for one in found):
        draw(found)


if __name__ == "__main__":
    main()
