"""The page that `vitlab demo` writes: accuracy against labels, curves, confusions, and what the model looks at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from vitlab.data.source import Source
from vitlab.data.sources.catalogue import open_source
from vitlab.data.sources.digits import DigitsSource
from vitlab.drawing.charts import draw_confusion, draw_curves, draw_pictures, draw_spread, smoothed
from vitlab.drawing.page import Section, page
from vitlab.metrics.scores import Scores
from vitlab.models.vit import ViT
from vitlab.run_dir import RunDir
from vitlab.runs.measure.inspection import sections_of

Accuracies = Mapping[str, Mapping[int, Sequence[float]]]  # way, labels per class -> % of each seed
Rows = list[tuple[str, ...]]  # the first is the heading

ALL = 144  # labels per class when every training digit has one: 1,442 digits of 10 classes, rounded
IN_A_ROW = 14  # pictures


@dataclass(frozen=True)
class Story:
    """What the demo made; `scores` and `runs` are those of the first seed with all labels."""

    model: ViT
    pictures: list[Path]
    accuracies: Accuracies
    scores: Scores
    pretraining: RunDir
    runs: Mapping[str, RunDir]
    few_steps: int


def report(story: Story) -> str:
    """One HTML page with everything that was measured."""
    about = (
        "A small Vision Transformer is pre-trained on printed letters, then fine-tuned on handwritten digits at a "
        "higher resolution. The same model is also trained on the digits from scratch."
    )
    sections = [_few_labels(story), _pretraining(story), _all_labels(story), _confusion(story)]
    return page("Does pre-training help?", about, [*sections, *sections_of(story.model, story.pictures)])


def shots_name(shots: int) -> str:
    """The number of labels per class in words."""
    return "all" if shots == ALL else str(shots)


def accuracy_rows(accuracies: Accuracies) -> Rows:
    """One row per number of labels, with the mean and standard deviation of each way and their difference."""
    pretrained, scratch = accuracies.values()
    rows: Rows = [("labels per class", *accuracies, "difference")]
    for shots in pretrained:
        cells = (f"{mean(of[shots]):.1f} ± {stdev(of[shots]):.1f} %" for of in accuracies.values())
        rows.append((shots_name(shots), *cells, f"{mean(pretrained[shots]) - mean(scratch[shots]):+.1f}"))
    return rows


def who_is_ahead(accuracies: Accuracies) -> str:
    """A sentence that compares the means of both ways."""
    pretrained, scratch = accuracies.values()
    ahead = [shots for shots in pretrained if mean(pretrained[shots]) > mean(scratch[shots])]
    others = [shots for shots in pretrained if shots not in ahead]
    if not others:
        return "The pre-trained model is more accurate at every number of labels."
    if not ahead:
        return "Pre-training did not help: training from scratch is as accurate or better at every number of labels."
    some = f"with {_listed(ahead)} labels per class, but not with {_listed(others)}"
    return f"The pre-trained model is more accurate {some}."


def _few_labels(story: Story) -> Section:
    seeds = len(next(iter(next(iter(story.accuracies.values())).values())))
    names = {shots: shots_name(shots) for shots in next(iter(story.accuracies.values()))}
    figure = draw_spread(story.accuracies, names, x="labels per class", y="accuracy on unseen digits (%)")
    steps = next(iter(story.runs.values())).spec().recipe.schedule.total
    return Section(
        "Accuracy against labels",
        f"{who_is_ahead(story.accuracies)} Points are means of {seeds} runs, bars are standard deviations. Each seed "
        f"draws other labelled digits; every run is tested on the same {story.scores.count} unseen digits. All runs "
        f"take {story.few_steps} steps, or {steps} with all labels, and all pre-trained runs start from the same "
        "weights. The paper asks the same question in its figure 4.",
        table=accuracy_rows(story.accuracies),
        figures=[("accuracy against labels per class", figure.svg)],
    )


def _all_labels(story: Story) -> Section:
    spec = next(iter(story.runs.values())).spec()
    losses = {way: smoothed(run.history("step", "loss")) for way, run in story.runs.items()}
    size = "x".join(map(str, spec.recipe.image))
    return Section(
        "Training with all labels",
        f"The training loss of the first seed: {spec.recipe.schedule.total} batches of {spec.recipe.batch} of the "
        f"1,442 training digits at {size} pixels.",
        figures=[("loss while the digits are learned", draw_curves(losses, x="step", y="loss").svg)],
    )


def _pretraining(story: Story) -> Section:
    spec = story.pretraining.spec()
    loss = {"pre-training": smoothed(story.pretraining.history("step", "loss"))}
    letters, digits = open_source(spec.data), DigitsSource("train")
    shown = draw_pictures([_row(letters, 0), _row(letters, 1), _row(letters, 2), _row(digits, 0)])
    size = "x".join(map(str, spec.recipe.image))
    return Section(
        "What it was pre-trained on",
        f"{spec.recipe.schedule.total:,} batches of {spec.recipe.batch} letters at {size} pixels, drawn from 22 fonts "
        "with random affine maps and stroke widths. Digits, and letters that look like one, are left out. The last row "
        "shows the handwritten digits for fine-tuning.",
        figures=[
            ("letters of pre-training, digits of fine-tuning", shown.svg),
            ("loss of pre-training", draw_curves(loss, x="step", y="loss").svg),
        ],
    )


def _confusion(story: Story) -> Section:
    counts = np.zeros((10, 10), dtype=int)
    for (truth, answer), number in story.scores.confusion.items():
        counts[truth, answer] = number
    return Section(
        "Which digits it confuses",
        f"The answers of the fine-tuned model (all labels, first seed) for the {story.scores.count} unseen digits.",
        figures=[("confusion of digits", draw_confusion(counts, tuple("0123456789")).svg)],
    )


def _row(source: Source, row: int) -> list[np.ndarray]:
    return [np.asarray(source[row * IN_A_ROW + place][0]) for place in range(IN_A_ROW)]


def _listed(shots: Sequence[int]) -> str:
    *first, last = map(shots_name, shots)
    return f"{', '.join(first)} and {last}" if first else last
