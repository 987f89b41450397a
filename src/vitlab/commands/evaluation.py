"""The commands that measure a model: evaluate, features, fewshot, cost, report."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.text import Text

from vitlab.commands import flags
from vitlab.commands.command_line import Flag
from vitlab.commands.terminal import command_line, complain, console
from vitlab.errors import printable

Seeing = Annotated[
    Literal["own", "few-shot", "paper", "timm", "hf", "torchvision", "deit"],
    Flag("{own,few-shot,paper,timm,hf,torchvision,deit}", "How images are resized and normalised; own is the model's."),
]

_NAMES = "Names such as ViT-B/16 (`vitlab models` lists them), or weights in any supported format."


def evaluate(
    model: flags.Models,
    data: flags.Specs,
    out: Path = Path("evaluation"),
    real: flags.MaybePath = None,
    label_map: flags.MaybePath = None,
    restrict: bool = False,
    by_number: bool = False,
    max_bad: flags.MaxBad = 0.0,
    max_pixels: flags.MaxPixels = None,
    threshold: float = 0.5,
    preprocessing: Seeing = "own",
    conventions: flags.Conventions = None,
    image: flags.RunningSize = "",
    merge: flags.Merge = None,
    attention: flags.Attention = None,
    batch: flags.Batch = 32,
    workers: flags.Workers = 2,
    device: flags.Device = "auto",
    engine: flags.Engine = "torch",
    ledger: flags.Ledger = None,
    expected: flags.Number = None,
    expected_from: flags.Text = "",
) -> int:
    """Score models on data, every image exactly once: accuracy, loss, calibration, classes, confusion matrix.

    A model trained with several labels per image is scored by mean average precision and F1 instead. An interrupted
    evaluation continues when you start it again with the same folder.

    Args:
        data: The data, such as folder:photos?split=val or imagenet:DIR?labels=FILE.
        out: Folder for the table (CSV, Markdown, JSON), the classes, the confusion matrices and the progress.
        real: The real.json of the ReaL labels, for ImageNet's validation images.
        label_map: JSON object that maps the data's classes to the model's, for variants of ImageNet.
        restrict: Let only the classes of the label map compete.
        by_number: Take the data's class numbers for the model's, without comparing names.
        threshold: Probability from which a multi-label model predicts a class, for F1, precision and recall.
        expected: Expected accuracy, or mean average precision, in percent, for the ledger.
        expected_from: Source of that number.
    """
    given = flags.arguments(locals(), console(is_error=True)) | {"command": command_line()}
    from vitlab.runs.measure.evaluate import evaluate as run

    found = run(**given)
    console().print(found.table.terminal())
    console().print(
        _where(out, "results", "the classes, confusion matrix and worst mistakes of each row"), soft_wrap=True
    )
    return 0


def features(
    model: flags.Model,
    data: flags.Spec,
    out: Path,
    preprocessing: Seeing = "own",
    conventions: flags.Conventions = None,
    image: flags.RunningSize = "",
    merge: flags.Merge = None,
    attention: flags.Attention = None,
    max_bad: flags.MaxBad = 0.0,
    shard: int = 4096,
    batch: flags.Batch = 32,
    workers: flags.Workers = 2,
    device: flags.Device = "auto",
    engine: flags.Engine = "torch",
) -> None:
    """Compute the features of every image, the input of the model's head, in shards with ids and labels.

    Started again with the same folder, it computes the shards that are missing.

    Args:
        data: The data, such as folder:photos?split=train.
        out: Folder for the shards, .npz files with features, labels, ids, sample numbers and unreadable samples.
        shard: Samples per shard.
    """
    given = flags.arguments(locals(), console(is_error=True))
    from vitlab.runs.measure.features import features as run

    found = run(**given)
    console().print(Text(f"{printable(str(out))}: {found.samples:,} samples, {found.width} features each"))


def fewshot(
    train: flags.Specs,
    test: flags.Specs,
    model: flags.MaybePath = None,
    shots: Annotated[tuple[int, ...], Flag("INT ...")] = (1, 5, 10, 25),
    seeds: Annotated[tuple[int, ...], Flag("INT ...")] = (),
    draw: Literal["big-vision", "by-class"] = "big-vision",
    l2: Literal["mean-rank", "held-out"] | float = "mean-rank",
    neighbours: int = 0,
    probe: int = 0,
    out: Path = Path("fewshot"),
    preprocessing: Seeing = "few-shot",
    conventions: flags.Conventions = None,
    image: flags.RunningSize = "",
    merge: flags.Merge = None,
    attention: flags.Attention = None,
    max_bad: flags.MaxBad = 0.0,
    batch: flags.Batch = 32,
    workers: flags.Workers = 2,
    device: flags.Device = "auto",
    engine: flags.Engine = "torch",
) -> None:
    """Measure frozen features by the accuracy of a linear classifier fitted to a few samples per class.

    Args:
        train: Data (with --model), or features: FILE.npz, FILE.npy?y=LABELS.npy, FILE.parquet, a features folder.
        test: The test sets, one for each training set.
        model: Weights of any supported format, if the sets are images.
        shots: Samples per class to learn from.
        seeds: Draw the samples with these seeds; default: the first ones of every class.
        draw: How a seed draws: big-vision uses one generator for all classes, by-class restarts it for each.
        l2: Rule that chooses the regularisation strength, or the strength itself (1024 in big_vision); mean-rank, the
            paper's rule, chooses on the test sets and is optimistic, held-out chooses on training samples.
        neighbours: Also measure the accuracy of this many nearest neighbours.
        probe: Also train a linear classifier for this many steps, with a grid of learning rates; 1000 is usual.
        out: Folder for the table and the features.
        preprocessing: How images are resized; few-shot stretches to 256 and crops 224, own is the model's.
        max_bad: Share of a set's images that may be unreadable; the next one of its class replaces an unreadable shot.
    """
    given = flags.arguments(locals(), console(is_error=True))
    from vitlab.runs.measure.fewshot import fewshot_table

    table = fewshot_table(**given)
    console().print(table.terminal())
    console().print(_where(out, "fewshot", "the features, if they were computed here"), soft_wrap=True)


def cost(
    model: Annotated[tuple[str, ...], Flag("MODEL ...", _NAMES, is_positional=True)],
    image: flags.Sizes = ("64", "128", "224", "384", "512"),
    mode: Literal["inference", "training", "both"] = "inference",
    batch: Annotated[tuple[int, ...], Flag("INT ...")] = (),
    memory: Annotated[str | None, Flag("SIZE")] = None,
    attention: Annotated[tuple[str, ...], Flag("PATTERN ...")] = (),
    merge: flags.Merge = None,
    seconds: float = 30.0,
    out: flags.MaybePath = None,
    device: flags.Device = "auto",
    engine: flags.InferenceEngine = None,
) -> int:
    """Measure images per second, memory and the largest batch against the image size, as in figure 12 of the paper.

    Args:
        image: Image sizes, such as 224 or 224x320.
        mode: A training step is forward, backward and AdamW, in the streams that a run would choose. Both modes
            compute in fp32.
        batch: Batches to time (default: powers of two until images per second fall).
        memory: Memory that a batch may take, such as 8GiB; batches run in processes that are killed above it
            (default: what is free now, minus a margin).
        attention: Patterns to compare, such as full window:7 bigbird; all is one of each kind (default: the model's
            own).
        seconds: Longest time for a model at one size, apart from starting its process.
        out: Folder for the table (CSV, Markdown, JSON) and the figure (SVG, PNG); started again, it continues, and
            rows of other models stay in it.
    """
    given = flags.arguments(locals(), console(is_error=True))
    from vitlab.runs.measure.cost import cost as run

    found = run(**given)
    console().print(found.table.terminal())
    if found.where_patterns_pay.rows:
        console().print(found.where_patterns_pay.terminal())
    if out is not None:
        console().print(_where(out, "cost", "the figure as cost.svg and .png"), soft_wrap=True)
    if not any(row.timings for row in found.rows):
        complain("nothing was measured; the column note says why")
        return 1
    return 0


def _where(out: Path, name: str, more: str) -> Text:
    return Text(f"{printable(str(out))}: the table as {name}.csv, .md and .json; {more}")


def report(ledger: Path = Path("results/ledger.jsonl"), out: flags.MaybePath = None, json: flags.Json = False) -> int:
    """Show measured results beside the expected and the published ones.

    Args:
        ledger: The file that commands with --ledger append to.
        out: Folder for the report as Markdown, HTML, CSV and JSON.
    """
    from vitlab.report.report import read_report

    found = read_report(ledger, out)
    if json:
        sys.stdout.write(found.table.to_json())
    else:
        console().print(found.table.terminal())
    for remark in found.remarks:
        complain(remark)
    if out is not None:
        console().print(Text(f"{out / 'report.html'}: the same as a page; also .md, .csv, .json"))
    return 1 if found.remarks else 0


EVALUATION: dict[str, Any] = {
    "evaluate": evaluate,
    "features": features,
    "fewshot": fewshot,
    "cost": cost,
    "report": report,
}
