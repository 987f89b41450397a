"""The commands that measure a model: evaluate, features, fewshot, report."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.text import Text

from vitlab.commands.flags import arguments
from vitlab.commands.terminal import (
    MaybeConventions,
    MaybeNumber,
    MaybePath,
    MaybeWhole,
    Size,
    Words,
    command_line,
    complain,
    console,
    printable,
    shown_as,
)

Models = Annotated[tuple[Path, ...], tyro.conf.Positional, shown_as("MODEL ...")]
Specs = Annotated[tuple[str, ...], shown_as("SPEC ...")]
Seeing = Literal["own", "few-shot", "paper", "timm", "hf", "torchvision", "deit"]


def evaluate(
    model: Models,
    data: Specs,
    out: Path = Path("evaluation"),
    real: MaybePath = None,
    label_map: MaybePath = None,
    restrict: bool = False,
    by_number: bool = False,
    max_bad: float = 0.0,
    max_pixels: MaybeWhole = None,
    threshold: float = 0.5,
    preprocessing: Seeing = "own",
    conventions: MaybeConventions = None,
    image: Size = "",
    batch: int = 32,
    workers: int = 2,
    device: str = "auto",
    ledger: MaybePath = None,
    expected: MaybeNumber = None,
    expected_from: Words = "",
) -> int:
    """Score models on data, every image exactly once: accuracy, loss, calibration, classes, confusion matrix.

    A model trained with several labels per image is scored by mean average precision and F1 instead. An interrupted
    evaluation continues when you start it again with the same folder.

    Args:
        model: Weights of any supported format, or names that vitlab download lists.
        data: The data, such as folder:photos?split=val or imagenet:DIR?labels=FILE.
        out: Folder for the table (CSV, Markdown, JSON), the classes, the confusion matrices and the progress.
        real: The real.json of the ReaL labels, for ImageNet's validation images.
        label_map: JSON object that maps the data's classes to the model's, for variants of ImageNet.
        restrict: Let only the classes of the label map compete.
        by_number: Take the data's class numbers for the model's, without comparing names.
        max_bad: Share of the images that may be unreadable; the table says how many were not evaluated.
        max_pixels: Most pixels an image may have; default: the limit of each format.
        threshold: Probability from which a multi-label model predicts a class, for F1, precision and recall.
        preprocessing: How images are resized and normalised; own is the model's.
        conventions: Whose GELU, epsilon and preprocessing to use; default: the file's own.
        image: Resolution to run at; default: the model's own.
        batch: Images per batch.
        workers: Processes that decode images.
        device: Such as cpu or cuda:1; auto is a GPU if there is one.
        ledger: Append the results to this ledger.
        expected: Expected accuracy, or mean average precision, in percent, for the ledger.
        expected_from: Source of that number.
    """
    given = arguments(locals(), is_error=True) | {"command": command_line()}
    from vitlab.runs.measure.evaluate import evaluate as run

    found = run(**given)
    console().print(found.table.terminal())
    console().print(_where(out, "results", "the classes and confusion matrix of each row"), soft_wrap=True)
    return 0


def features(
    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    data: Annotated[str, tyro.conf.arg(metavar="SPEC")],
    out: Path,
    preprocessing: Seeing = "own",
    conventions: MaybeConventions = None,
    image: Size = "",
    max_bad: float = 0.0,
    shard: int = 4096,
    batch: int = 32,
    workers: int = 2,
    device: str = "auto",
) -> None:
    """Compute the features of every image, the input of the model's head, in shards with ids and labels.

    Started again with the same folder, it computes the shards that are missing.

    Args:
        model: Weights of any supported format, or a name that vitlab download lists.
        data: The data, such as folder:photos?split=train.
        out: Folder for the shards, .npz files with features, labels, ids, sample numbers and unreadable samples.
        preprocessing: How images are resized and normalised; own is the model's.
        conventions: Whose GELU, epsilon and preprocessing to use; default: the file's own.
        image: Resolution to run at; default: the model's own.
        max_bad: Share of the images that may be unreadable.
        shard: Samples per shard.
        batch: Images per batch.
        workers: Processes that decode images.
        device: Such as cpu or cuda:1; auto is a GPU if there is one.
    """
    given = arguments(locals(), is_error=True)
    from vitlab.runs.measure.features import features as run

    found = run(**given)
    console().print(Text(f"{printable(str(out))}: {found.samples:,} samples, {found.width} features each"))


def fewshot(
    train: Specs,
    test: Specs,
    model: MaybePath = None,
    shots: tuple[int, ...] = (1, 5, 10, 25),
    seeds: Annotated[tuple[int, ...], shown_as("INT ...")] = (),
    draw: Literal["big-vision", "by-class"] = "big-vision",
    l2: Literal["mean-rank", "held-out"] | float = "mean-rank",
    neighbours: int = 0,
    probe: int = 0,
    out: Path = Path("fewshot"),
    preprocessing: Seeing = "few-shot",
    conventions: MaybeConventions = None,
    image: Size = "",
    max_bad: float = 0.0,
    batch: int = 32,
    workers: int = 2,
    device: str = "auto",
) -> None:
    """Measure frozen features by the accuracy of a linear classifier fitted to a few samples per class, as the paper.

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
        conventions: Whose GELU, epsilon and preprocessing to use; default: the file's own.
        image: Resolution to run at; default: the model's own.
        max_bad: Share of a set's images that may be unreadable; the next one of its class replaces an unreadable shot.
        batch: Images per batch.
        workers: Processes that decode images.
        device: Such as cpu or cuda:1; auto is a GPU if there is one.
    """
    given = arguments(locals(), is_error=True)
    from vitlab.runs.measure.fewshot import fewshot_table

    table = fewshot_table(**given)
    console().print(table.terminal())
    console().print(_where(out, "fewshot", "the features, if they were computed here"), soft_wrap=True)


def _where(out: Path, name: str, more: str) -> Text:
    return Text(f"{printable(str(out))}: the table as {name}.csv, .md and .json; {more}")


def report(ledger: Path = Path("results/ledger.jsonl"), out: MaybePath = None, json: bool = False) -> int:
    """Show measured results beside the expected and the published ones.

    Args:
        ledger: The file that commands with --ledger append to.
        out: Folder for the report as Markdown, HTML, CSV and JSON.
        json: Print JSON instead of a table.
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
    "report": report,
}
