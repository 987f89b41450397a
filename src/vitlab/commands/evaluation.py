"""The commands that measure a model: evaluate, features, fewshot, report."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.text import Text

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
    size_of,
)

Models = Annotated[tuple[Path, ...], tyro.conf.Positional, shown_as("MODEL ...")]
Specs = Annotated[tuple[str, ...], shown_as("SPEC ...")]
Seeing = Literal["own", "few-shot", "paper", "timm", "hf", "torchvision", "deit"]


def evaluate(
    models: Models,
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
    """Score models on data, every image exactly once: accuracy, loss, calibration, classes, confusion.

    A model that was trained on several labels per image is scored by mean average precision and F1 instead.
    Interrupted and started again with the same folder, it continues.

    Args:
        models: Weights of any supported format, or names that vitlab download lists.
        data: The data, such as folder:photos?split=val or imagenet:DIR?labels=FILE.
        out: Folder for the table (CSV, Markdown, JSON), the classes, the confusions and the progress.
        real: The real.json of the ReaL labels, for ImageNet's validation images.
        label_map: A JSON object from the data's classes to the model's, for other sets of ImageNet's family.
        restrict: Let only the classes of the label map compete.
        by_number: Take the data's class numbers for the model's without comparing names.
        max_bad: Share of the images that may be bad; the table then says how many were not evaluated.
        max_pixels: Pixels that an image may have; each format has its own limit if left out.
        threshold: Probability from which on a multi-label model predicts a class, for F1, precision and recall.
        preprocessing: How pictures are resized and normalised, if not as the model says.
        conventions: Whose GELU, epsilon and preprocessing to use; the file's own if left out.
        image: Resolution to run at; the model's own if left out.
        batch: Images at a time.
        workers: Processes that decode.
        device: Such as cpu or cuda:1; auto is a GPU where there is one.
        ledger: Add the results to this ledger.
        expected: What the accuracy, or the mean average precision, ought to be in percent, for the ledger.
        expected_from: Where that number stands.
    """
    from vitlab.data.sources.catalogue import with_max_pixels
    from vitlab.report.ledger import check_ledger
    from vitlab.runs.measure.evaluate import EvaluateOptions
    from vitlab.runs.measure.evaluate import evaluate as run
    from vitlab.runs.measure.evaluation_table import record
    from vitlab.runs.measure.model_options import ModelOptions
    from vitlab.runs.training.launch import together

    data = tuple(with_max_pixels(spec, max_pixels) for spec in data)
    loading = ModelOptions(conventions, size_of(image), preprocessing, device)
    options = EvaluateOptions(loading, real, label_map, restrict, by_number, batch, workers, max_bad, threshold)
    check_ledger(ledger, expected, expected_from, rows=len(models) * len(data) * (1 if real is None else 2))
    with together(device, console()) as (world, screen):
        rows = run(models, data, out, options, screen, world)
        if ledger is not None and world.leads:
            record(rows, ledger, command_line(), expected, expected_from)
        _tell_where(screen, out, "results", "each row's classes and confusions")
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
    """Write what the model makes of every image, before its head, in shards with ids and labels.

    Interrupted and started again with the same folder, it makes the shards that are missing.

    Args:
        model: Weights of any supported format, or a name that vitlab download lists.
        data: The data, such as folder:photos?split=train.
        out: Folder for the shards, .npz files with features, labels, ids, sample numbers and bad samples.
        preprocessing: How pictures are resized and normalised, if not as the model says.
        conventions: Whose GELU, epsilon and preprocessing to use; the file's own if left out.
        image: Resolution to run at; the model's own if left out.
        max_bad: Share of the images that may be bad.
        shard: Samples of a shard.
        batch: Images at a time.
        workers: Processes that decode.
        device: Such as cpu or cuda:1; auto is a GPU where there is one.
    """
    from vitlab.runs.measure.features import features as run
    from vitlab.runs.measure.model_options import ModelOptions
    from vitlab.runs.training.launch import together

    loading = ModelOptions(conventions, size_of(image), preprocessing, device)
    how = {"batch": batch, "workers": workers, "max_bad": max_bad, "shard": shard}
    with together(device, console()) as (world, screen):
        run(model, data, out, loading, screen, **how, world=world)


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
    """Accuracy of a linear classifier learnt from a few samples a class on frozen features, as the paper has it.

    Args:
        train: Data (with --model), or features: FILE.npz, FILE.npy?y=LABELS.npy, FILE.parquet, a features folder.
        test: What to test on, one for each training set.
        model: Weights of any supported format, if the sets are images.
        shots: Samples of every class to learn from.
        seeds: Draw the samples by these seeds; without one the first of every class are taken.
        draw: How a seed draws: big-vision has one generator for all classes, by-class starts it anew for each.
        l2: The rule that picks the strength of regularisation, or the strength itself; big_vision's is 1024.
        neighbours: Also the accuracy of so many nearest neighbours.
        probe: Also a linear classifier trained for so many steps, with a grid of learning rates; 1000 is usual.
        out: Folder for the table and the features.
        preprocessing: How pictures are resized; few-shot stretches to 256 and crops 224, own is the model's.
        conventions: Whose GELU, epsilon and preprocessing to use; the file's own if left out.
        image: Resolution to run at; the model's own if left out.
        max_bad: Share of a set's images that may be bad; the next of its class takes the place of a bad shot.
        batch: Images at a time.
        workers: Processes that decode.
        device: Such as cpu or cuda:1; auto is a GPU where there is one.
    """
    from vitlab.runs.measure.fewshot import FewShotOptions
    from vitlab.runs.measure.fewshot import fewshot as run
    from vitlab.runs.measure.model_options import ModelOptions
    from vitlab.runs.training.launch import together

    loading = ModelOptions(conventions, size_of(image), preprocessing, device)
    options = FewShotOptions(loading, shots, seeds, draw, l2, neighbours, probe, batch, workers, max_bad)
    with together(device, console()) as (world, screen):
        for name in (name for name, other in zip(train, test, strict=False) if name == other and world.leads):
            complain(f"{printable(name)} is learnt from and tested on: the accuracy says little of other samples")
        run(model, train, test, out, options, screen, world)
        _tell_where(screen, out, "fewshot", "with the features, if they were made here")


def _tell_where(screen: Console, out: Path, name: str, more: str) -> None:
    """The last line: what was printed is kept, with more than that."""
    screen.print(Text(f"{printable(str(out))}: the table as {name}.csv, .md and .json; {more}"), soft_wrap=True)


def report(ledger: Path = Path("results/ledger.jsonl"), out: MaybePath = None, json: bool = False) -> int:
    """Show what was measured beside what was expected and what the paper published.

    Args:
        ledger: The file that commands with --ledger add to.
        out: Folder for the report as Markdown, HTML, CSV and JSON.
        json: Print JSON instead of tables.
    """
    from vitlab.report.ledger import read
    from vitlab.report.report import render, write

    entries, remarks = read(ledger)
    table = render(entries)
    if json:
        sys.stdout.write(table.to_json())
    else:
        console().print(table.terminal())
    for remark in remarks:
        complain(remark)
    if out is not None:
        write(out, table)
        console().print(Text(f"{out / 'report.html'}: the same to look at; also .md, .csv, .json"))
    return 1 if remarks else 0


EVALUATION: dict[str, Any] = {
    "evaluate": evaluate,
    "features": features,
    "fewshot": fewshot,
    "report": report,
}
