"""What is read off the trained models of a study: one job for each cell and seed, which writes a row of the ledger."""

import math
import statistics
import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from torch import Tensor

from vitlab.data.loading.batches import evaluation_batches
from vitlab.data.sources.catalogue import open_source
from vitlab.data.splits import take
from vitlab.data.transforms.evaluation import normalised
from vitlab.engines.machine import processor
from vitlab.files.store import write_json
from vitlab.files.strict_json import read_json, to_json
from vitlab.inspection.attention import attention_distance
from vitlab.inspection.weights import likeness, position_similarity
from vitlab.models.build import Model, build_from_spec
from vitlab.paper.models import name_of
from vitlab.report.ledger import versions
from vitlab.run_dir import MODEL, RESULT, RunDir
from vitlab.runs.measure.cost import cost
from vitlab.runs.measure.cost_table import Cost
from vitlab.runs.measure.evaluate import evaluate
from vitlab.runs.measure.fewshot import fewshot_table
from vitlab.runs.progress import say
from vitlab.runs.study.trainings import Lab, is_usable
from vitlab.studies.claims import Row
from vitlab.studies.study import LARGEST, Accuracy, Cell, FewShot, Inside, Real, Speed
from vitlab.studies.study_file import ROW
from vitlab.weights.load import load_model

BATCH = 64
AGAIN = 2  # times that a speed is measured again, each with twice the time, if no larger batch was slower


@dataclass(frozen=True)
class CellRun:
    """One cell of a study with one seed, and where its row belongs."""

    lab: Lab
    study: str
    scale: str
    cell: Cell
    seed: int
    command: str
    folder: Path


def measure(cell_run: CellRun, console: Console) -> int:
    """Measure one cell of a study as a job, and write its row; a run that diverged has no values."""
    cell, lab = cell_run.cell, cell_run.lab
    values: dict[str, float] = {}
    run = None if cell.training is None else lab.folder(cell.training, cell_run.seed)
    if run is None or is_usable(run):
        with torch.random.fork_rng(devices=[]):
            values = _values(cell_run, run, console)
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    row = Row(
        study=cell_run.study,
        scale=cell_run.scale,
        levels=dict(cell.levels),
        seed=cell_run.seed,
        measure=cell.measurement.value,
        values=finite,
        published=cell.published,
        command=cell_run.command,
        versions={**versions(), "processor": processor()},  # whose arithmetic may differ in the last bits
        when=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_json(cell_run.folder / ROW, to_json(_with_training(row, cell_run)))
    return 0


def _with_training(row: Row, cell_run: CellRun) -> Row:
    """The row with what is known of the trainings behind it."""
    training, how = cell_run.cell.training, cell_run.cell.measurement
    if training is None:
        return replace(row, model=name_of(how.model)) if isinstance(how, Speed) else row
    folders = [cell_run.lab.folder(one, cell_run.seed) for one in training.chain]
    sha = cast(dict[str, Any], read_json(folders[-1] / RESULT)).get("model_sha256", "") if row.values else ""
    return replace(
        row,
        model=name_of(training.model),
        recipe=" then ".join(one.recipe.name for one in training.chain),
        data=" then ".join(one.data for one in training.chain),
        images=sum(one.images for one in training.chain),
        exaflops=training.chain[0].exaflops,
        seconds=round(sum(map(_seconds, folders)), 1),
        weights=sha,
    )


def _seconds(folder: Path) -> float:
    """The time from the first event of a run to its last, without the breaks of one that was continued."""
    if not is_usable(folder):
        return 0.0
    total, before = 0.0, None
    for event in RunDir.open(folder).events():
        if before is not None and event["event"] != "resumed":
            total += max(event["time"] - before, 0.0)
        before = event["time"]
    return total


def _values(cell_run: CellRun, run: Path | None, console: Console) -> dict[str, float]:
    """The values of a cell, that of its measurement first."""
    how, lab = cell_run.cell.measurement, cell_run.lab
    match how:
        case Speed():
            return _speed(cell_run.cell.name, how, lab, console)
        case Accuracy():
            numbers = cast(dict[str, Any], read_json(cast(Path, run) / RESULT))["test"]
            return {how.value: 100 * numbers["top1"], "test images": float(numbers["count"])}
        case Real():
            labels = lab.expanded(how.labels)
            scored = evaluate(cast(Path, run) / MODEL, lab.expanded(how.data), real=labels, quiet=True)
            (found,) = (row.numbers for row in scored.rows if row.labels == "ReaL")
            return {how.value: 100 * found["top1"]}
        case FewShot():
            return _few_shot(how, lab, cast(Path, run))
        case Inside():
            return _inside(how, lab, cast(Path, run))


def _few_shot(how: FewShot, lab: Lab, run: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        table = fewshot_table(
            lab.expanded(how.train),
            lab.expanded(how.test),
            run / MODEL,
            folder,
            shots=(how.shots,),
            seeds=tuple(range(how.draws)),
            preprocessing=how.preprocessing,
            batch=BATCH,
            device=lab.execution.device,
            engine="plain",
            quiet=True,
        )
    place = table.columns.index("accuracy %")
    scores = [float(cast(float, row[place])) for row in table.rows]
    return {how.value: statistics.fmean(scores), "shots": float(how.shots), "draws": float(len(scores))}


def _inside(how: Inside, lab: Lab, run: Path) -> dict[str, float]:
    model = load_model(run / MODEL)
    images = _images(model, lab.expanded(how.data), how.images)
    near, _, far = likeness(position_similarity(model))
    layers = 100 * attention_distance(model, images).mean(dim=1) / model.spec.image[0]  # (L,) in percent of the side
    found = {how.value: (near or 0.0) - (far or 0.0), "distance gain": float(layers[-1] - layers[0])}
    return found | {f"distance, layer {number}": float(far) for number, far in enumerate(layers, 1)}


def _images(model: Model, data: str, most: int) -> Tensor:
    """The first images of a set, as the model takes them."""
    source = open_source(data)
    part = take(source, range(min(most, len(source))))
    preprocessing = model.spec.conventions.preprocessing
    batches = evaluation_batches(part, batch=BATCH, size=model.spec.image, preprocessing=preprocessing)
    return torch.cat([normalised(batch.pixels, preprocessing) for batch in batches])


def _speed(name: str, how: Speed, lab: Lab, console: Console) -> dict[str, float]:
    """Images per second and the largest batch; nothing if time ran out before a larger batch was slower."""
    found = _settled(name, how, lab, console)
    if found is None:
        return {}
    best, largest = found.best, found.largest
    values = {} if best is None else {how.value: best.images_per_second, "batch": float(best.batch)}
    return values | ({} if largest is None else {LARGEST: float(largest)})


def _settled(name: str, how: Speed, lab: Lab, console: Console) -> Cost | None:
    """Measure a model until its fastest batch is certain, `AGAIN` times more at most; None if it stays uncertain."""
    model = build_from_spec(how.model)
    for again in range(AGAIN + 1):
        seconds = how.seconds * 2**again
        found = _cost(model, how, seconds, lab)
        if found.is_settled:
            return found
        then = f"measuring again with {2 * seconds:g} s" if again < AGAIN else "no speed is recorded"
        say(console, f"{name}: {seconds:g} s do not suffice to find the fastest batch; {then}")
    return None


def _cost(model: Model, how: Speed, seconds: float, lab: Lab) -> Cost:
    """Measure a model once, in at most `seconds`."""
    (found,) = cost(
        model,
        image=[how.model.image],
        seconds=seconds,
        memory=how.memory or None,
        device=lab.execution.device,
        quiet=True,
    ).rows
    return found
