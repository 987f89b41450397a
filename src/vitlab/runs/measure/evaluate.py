"""Score models on data sets and collect the results in one table: `vitlab.evaluate`, `vitlab evaluate`."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text
from torch import nn

from vitlab.busy import Crowding, advice
from vitlab.data.class_names import numbers_of
from vitlab.data.fingerprint import fingerprint, state
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import data_name
from vitlab.deploy.predict import class_names
from vitlab.metrics.multilabel import THRESHOLD
from vitlab.metrics.targets import REAL_CLASSES, OwnLabels, Target, read_label_map, read_real
from vitlab.models.build import Model
from vitlab.paper.imagenet import imagenet_classes
from vitlab.paper.models import name_of
from vitlab.pixels import Preprocessing
from vitlab.report.ledger import check_ledger
from vitlab.report.tables import printable
from vitlab.require import require
from vitlab.runs.measure.evaluation_table import Evaluation, Row, record
from vitlab.runs.measure.model_options import (
    ImageSize,
    ModelLike,
    ModelOptions,
    PreprocessingName,
    label_of,
    load,
    match_classes,
)
from vitlab.runs.measure.scoring import SAVE, fingerprint_of, score_source
from vitlab.runs.measure.session import DataLike, listed, measuring, open_set, optional_path
from vitlab.runs.progress import Images, announced, say
from vitlab.spec import ConventionName
from vitlab.store import locked, refuse_strange, sha256
from vitlab.strict_json import to_json
from vitlab.weights.load import located
from vitlab.world.group import World


@dataclass(frozen=True)
class EvaluateOptions:
    """How to score; see `evaluate`."""

    real: Path | None = None
    label_map: Path | None = None
    restrict: bool = False
    by_number: bool = False
    batch: int = 32
    workers: int = 0
    max_bad: float = 0.0
    threshold: float = THRESHOLD
    save_every: float = SAVE  # seconds

    def __post_init__(self) -> None:
        require(0 <= self.max_bad <= 1, f"max_bad {self.max_bad} is a share of the images, between 0 and 1")
        require(0 < self.threshold < 1, f"threshold {self.threshold} is a probability between 0 and 1")
        require(self.label_map is not None or not self.restrict, "restrict needs a label map")
        require(self.label_map is None or not self.by_number, "give either a label map or by_number, not both")


@dataclass(frozen=True)
class Truth:
    """The labels to score against by kind, the classes that compete (None: all of the model's), and a note on them.

    `numbers` are the model's class numbers of the data's classes, where they differ from the data's own.
    """

    targets: dict[str, Target]
    columns: tuple[int, ...] | None
    note: str
    numbers: tuple[int, ...] = ()


def evaluate(
    model: ModelLike | Sequence[ModelLike],
    data: DataLike | Sequence[DataLike],
    out: str | Path | None = None,
    *,
    real: str | Path | None = None,
    label_map: str | Path | None = None,
    restrict: bool = False,
    by_number: bool = False,
    max_bad: float = 0.0,
    max_pixels: int | None = None,
    threshold: float = THRESHOLD,
    preprocessing: PreprocessingName = "own",
    conventions: ConventionName | None = None,
    image: ImageSize | None = None,
    batch: int = 32,
    workers: int = 0,
    device: str = "auto",
    ledger: str | Path | None = None,
    expected: float | None = None,
    expected_from: str = "",
    command: str = "vitlab.evaluate",
    save_every: float = SAVE,
    console: Console | None = None,
    quiet: bool = False,
) -> Evaluation:
    """Score one or several models on one or several data sets, every image exactly once.

    `model` is a name of released weights, a path or a module; `data` is a spec such as "folder:photos?split=val", a
    source, or a map-style torch Dataset. The result holds a row for each pair, with accuracy, loss, calibration,
    per-class results, confusion matrix and the worst mistakes; a model of several labels per image is scored by mean
    average precision and F1. With `out`, tables and progress are written to that folder: an interrupted call continues
    there, and what is finished is not computed again.

    `real` is the real.json of the ReaL labels. `label_map` is a JSON file that maps the data's classes to the model's;
    with `restrict` only the mapped classes compete. `by_number` takes the data's class numbers for the model's without
    comparing names. `max_bad` is the share of images that may be unreadable, `threshold` the probability from which a
    multi-label model predicts a class. See `ModelOptions` for `preprocessing`, `conventions`, `image` and `device`.
    `ledger` is a file that the results are appended to, with the `expected` percentage, its source and the `command`.
    Under torchrun all ranks share the work and return the same result. `quiet` prints no progress.
    """
    real, label_map, ledger, folder = map(optional_path, (real, label_map, ledger, out))
    options = EvaluateOptions(real, label_map, restrict, by_number, batch, workers, max_bad, threshold, save_every)
    models, sets = listed(model), listed(data)
    require(bool(models), "no model was given; give at least one name or path of weights")
    require(bool(sets), "no data was given; give a spec such as folder:photos (vitlab data kinds lists all kinds)")
    check_ledger(ledger, expected, expected_from, rows=len(models) * len(sets) * (1 if real is None else 2))
    loading = ModelOptions(conventions, image, preprocessing, device)
    with measuring(device, console, quiet=quiet) as (world, screen), contextlib.ExitStack() as stack:
        for path in models:
            if not isinstance(path, nn.Module):
                located(path)  # raises before there is a folder
        if folder is not None:
            refuse_strange(folder, ("progress",))
            if world.leads:
                stack.enter_context(locked(folder))
        with announced(screen, f"opening {', '.join(printable(data_name(one)) for one in sets)} ..."):
            sources = [open_set(one, max_pixels) for one in sets]
        rows: list[Row] = []
        for given in models:
            opened, how = load(given, loading, screen)
            for name, source in sources:
                truth = truth_of(opened, source, options)
                screen.print(Text(f"{printable(name)}: {len(source):,} samples, {printable(truth.note)}", style="dim"))
                rows += _score(opened, label_of(given), how, name, source, truth, folder, options, screen, world)
        found = Evaluation(tuple(rows))
        if world.leads and folder is not None:
            found.save(folder)
        if world.leads and ledger is not None:
            record(rows, ledger, command, expected, expected_from)
    return found


def truth_of(model: Model, source: Source, options: EvaluateOptions) -> Truth:
    """Return the labels to score against; raises unless model and data have the same classes."""
    require(
        model.task == "single-label" or (options.real is None and options.label_map is None),
        "ReaL labels and label maps are for models that predict one class per image; this one is multi-label",
    )
    if options.label_map is not None:
        names = class_names(model)[0]
        mapped = read_label_map(options.label_map, source.class_names, names, numbers_of(names))
        if not options.restrict:
            return Truth({"mapped": mapped}, None, f"classes by {options.label_map.name}")
        note = f"classes by {options.label_map.name}, {len(mapped.used)} compete"
        return Truth({"mapped": mapped.restricted()}, mapped.used, note)
    numbers, note = match_classes(model, source.class_names, by_number=options.by_number)
    numbers = () if numbers == tuple(range(len(numbers))) else numbers
    targets: dict[str, Target] = {"own": OwnLabels(numbers)}
    if options.real is not None:
        is_imagenet = class_names(model)[0] == tuple(name for _, name in imagenet_classes())
        is_by_number = options.by_number and model.spec.classes == REAL_CLASSES
        require(is_imagenet or is_by_number, "ReaL labels need a model of ImageNet's 1000 classes; this one has others")
        targets["ReaL"] = read_real(options.real)
    return Truth(targets, None, note, numbers)


def _score(
    model: Model,
    label: str,
    how: Preprocessing,
    name: str,
    source: Source,
    truth: Truth,
    out: Path | None,
    options: EvaluateOptions,
    console: Console,
    world: World,
) -> Iterator[Row]:
    """Score one model on one data set; yields a row for each kind of labels."""
    identity, saved, outdated = {}, None, []
    if out is not None:
        identity = _identity(model, how, name, source, truth, options)
        files = state(source)
        stem = _short(json.dumps(identity, allow_nan=False))
        saved = out / "progress" / f"{stem}-{_short(files)}.json"
        identity |= {"files": files}
        outdated = [file for file in saved.parent.glob(f"{stem}-*.json") if file != saved]
        if outdated and not saved.exists():
            changed = f"{printable(name)}: files have changed since they were scored; all are scored again"
            console.print(Text(changed, style="yellow"))
    with _Scored(console, options.workers) as display:
        done = score_source(
            model,
            source,
            truth.targets,
            how=how,
            batch=options.batch,
            workers=options.workers,
            max_bad=options.max_bad,
            columns=truth.columns,
            task=model.task,
            threshold=options.threshold,
            saved=saved,
            identity=identity,
            save_every=options.save_every,
            world=world,
            display=display,
        )
    if world.leads:
        for file in outdated:
            file.unlink()
    if bad := len(done.account.quarantined):
        where = "the account of each row names them" if out is None else f"{out / 'quarantine.json'} names them"
        on = f"{printable(name)}, {printable(label)}"
        console.print(Text(f"{bad:,} of {len(source):,} not evaluated ({on}): {where}", style="yellow"))
    names = class_names(model)[0]
    competing = names if truth.columns is None else tuple(names[number] for number in truth.columns)
    for labels, scores in done.scores.items():
        mistakes = tuple(done.mistakes.get(labels, ()))
        yield Row(label, name_of(model.spec), name, labels, str(how), competing, scores, done.account, mistakes)


class _Scored(Images):
    """Shows how many images are scored, and warns once if other programs crowd the processors."""

    def __init__(self, console: Console, workers: int) -> None:
        super().__init__(console, "scored")
        self.crowding = Crowding(workers)

    def show(self, done: int, total: int) -> None:
        super().show(done, total)
        if why := self.crowding.notice():
            say(self.console, advice(why, "before the command"))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _identity(
    model: Model, how: Preprocessing, name: str, source: Source, truth: Truth, options: EvaluateOptions
) -> dict[str, object]:
    """Everything that determines the numbers, besides the state of the files.

    The name is part of it because drawn pictures of different seeds have the same ids.
    """
    identity: dict[str, object] = {
        "spec": name,
        "weights": fingerprint_of(model),
        "preprocessing": json.loads(json.dumps(to_json(how), allow_nan=False)),
        "data": fingerprint(source),
        "real": sha256(options.real) if options.real else "",
        "label_map": sha256(options.label_map) if options.label_map else "",
        "restrict": options.restrict,
        "by_number": options.by_number,
    }
    identity |= {"numbers": list(truth.numbers)} if truth.numbers else {}
    return identity | ({"task": model.task, "threshold": options.threshold} if model.task == "multi-label" else {})
