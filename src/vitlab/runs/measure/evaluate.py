"""Score models on data sets and collect the results in one table: `vitlab.evaluate`, `vitlab evaluate`."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from torch import nn

from vitlab.artefacts.artefact import Artefact
from vitlab.data.class_names import are_whole, matched, numbers_of
from vitlab.data.fingerprint import fingerprint, state
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import data_name
from vitlab.engines.engine import EngineName
from vitlab.engines.runtimes import is_inexact
from vitlab.errors import printable
from vitlab.files.store import locked, refuse_strange, sha256
from vitlab.files.strict_json import to_json
from vitlab.metrics.multilabel import THRESHOLD
from vitlab.metrics.targets import REAL_CLASSES, LabelMap, OwnLabels, Target, read_label_map, read_real
from vitlab.models.build import Model
from vitlab.models.fingerprint import fingerprint_of
from vitlab.paper.imagenet import imagenet_classes
from vitlab.paper.models import name_of
from vitlab.process.busy import Crowding, advice
from vitlab.report.ledger import check_ledger
from vitlab.require import check_arguments, require
from vitlab.runs.measure import inputs
from vitlab.runs.measure.evaluation_table import Evaluation, Row, record
from vitlab.runs.measure.inputs import DataLike, ImageSize, ModelLike, ModelOptions, PreprocessingName
from vitlab.runs.measure.scoring import SAVE, Reading, compared, score_source
from vitlab.runs.progress import Images, announced, say
from vitlab.spec import AttentionLike, ConventionName
from vitlab.spec.pixels import Preprocessing
from vitlab.weights.load import located

SPINNING = ("plain", "compiled")  # engines whose threads wait for each other after every operator


@dataclass(frozen=True)
class Labels:
    """Which labels to score against, and from which probability on a multi-label model predicts; see `evaluate`."""

    real: Path | None = None
    label_map: Path | None = None
    restrict: bool = False
    by_number: bool = False
    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
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


@dataclass(frozen=True)
class Pair:
    """A model and a data set to score it on, each with its name in the table."""

    label: str
    model: Model | Artefact
    how: Preprocessing
    data: str
    source: Source
    truth: Truth


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
    merge: int | None = None,
    attention: AttentionLike | None = None,
    batch: int = 32,
    workers: int = 0,
    device: str = "auto",
    engine: EngineName = "torch",
    ledger: str | Path | None = None,
    expected: float | None = None,
    expected_from: str = "",
    command: str = "vitlab.evaluate",
    save_every: float = SAVE,
    console: Console | None = None,
    quiet: bool = False,
) -> Evaluation:
    """Score one or several models on one or several data sets, every image exactly once.

    `model` is a name of released weights, a path, also of what `vitlab.export` wrote, or a module; `data` is a spec
    such as "folder:photos?split=val", a source, or a map-style torch Dataset. The result holds a row for each pair,
    with accuracy, loss, calibration, per-class results, confusion matrix and the worst mistakes; a model of several
    labels per image is scored by mean average precision and F1. With `out`, tables and progress are written to that
    folder: an interrupted call continues there, and what is finished is not computed again.

    `real` is the real.json of the ReaL labels. `label_map` is a JSON file that maps the data's classes to the model's;
    with `restrict` only the mapped classes compete. `by_number` takes the data's class numbers for the model's without
    comparing names. `max_bad` is the share of images that may be unreadable, `threshold` the probability from which a
    multi-label model predicts a class. `engine` is what computes: see `vitlab.open_engine`. See `ModelOptions` for
    `preprocessing`, `conventions`, `image` and `device`. `ledger` is a file that the results are appended to, with the
    `expected` percentage, its source and the `command`.
    Under torchrun all ranks share the work and return the same result. `quiet` prints no progress.
    """
    check_arguments(evaluate, locals())
    real, label_map, ledger, folder = (None if at is None else Path(at) for at in (real, label_map, ledger, out))
    labels = Labels(real, label_map, restrict, by_number, threshold)
    models, sets = inputs.as_list(model), inputs.as_list(data)
    require(bool(models), "no model was given; give at least one name or path of weights")
    require(bool(sets), "no data was given; give a spec such as folder:photos (vitlab data kinds lists all kinds)")
    check_ledger(ledger, expected, expected_from, rows=len(models) * len(sets) * (1 if real is None else 2))
    loading = ModelOptions(conventions, image, preprocessing, device, merge=merge, attention=attention)
    with inputs.measuring(device, console, quiet=quiet) as (world, screen), contextlib.ExitStack() as stack:
        for path in models:
            if not isinstance(path, nn.Module):
                located(path)  # raises before there is a folder
        if folder is not None:
            refuse_strange(folder, ("progress",))
            if world.leads:
                stack.enter_context(locked(folder))
        with announced(screen, f"opening {', '.join(printable(data_name(one)) for one in sets)} ..."):
            sources = [inputs.open_set(one, max_pixels) for one in sets]
        rows: list[Row] = []
        total = -(-sum(len(source) for _, source in sources) // world.ranks)  # images of a rank
        for given in models:
            opened, how = inputs.load_any(given, loading, screen)
            truths = [truth_of(opened, source, labels) for _, source in sources]  # before an engine takes its time
            used = inputs.settled(opened, engine, batch, world, screen, total)
            reading = Reading(batch, workers, max_bad, world, used)
            for (name, source), truth in zip(sources, truths, strict=True):
                say(screen, f"{printable(name)}: {len(source):,} samples, {printable(truth.note)}", "dim")
                pair = Pair(inputs.label_of(given, opened), opened, how, name, source, truth)
                progress = None if folder is None else folder / "progress"
                rows += _score(pair, reading, labels, progress, save_every, screen)
        found = Evaluation(tuple(rows))
        if world.leads and folder is not None:
            found.save(folder)
        if world.leads and ledger is not None:
            record(rows, ledger, command, expected, expected_from)
    return found


def truth_of(model: Model | Artefact, source: Source, given: Labels) -> Truth:
    """Return the labels to score against; raises unless model and data have the same classes."""
    is_plain = given.real is None and given.label_map is None
    needs_one = "ReaL labels and label maps are for models that predict one class per image; this one is multi-label"
    require(model.task == "single-label" or is_plain, needs_one)
    if given.label_map is not None:
        names = inputs.class_names(model)[0]
        mapped = read_label_map(given.label_map, source.class_names, names, numbers_of(names))
        note = f"classes by {given.label_map.name}"
        if not given.restrict:
            return Truth({"mapped": mapped}, None, note)
        return Truth({"mapped": mapped.restricted()}, mapped.used, f"{note}, {len(mapped.used)} compete")
    if source.imagenet_numbers:
        _require_imagenet(model, given, "the data's own map is for")
        return Truth({"mapped": LabelMap(source.imagenet_numbers)}, None, "classes by the data's own map to ImageNet's")
    numbers, note = match_classes(model, source.class_names, by_number=given.by_number)
    numbers = () if numbers == tuple(range(len(numbers))) else numbers
    targets: dict[str, Target] = {"own": OwnLabels(numbers)}
    if given.real is not None:
        _require_imagenet(model, given, "ReaL labels need")
        targets["ReaL"] = read_real(given.real)
    return Truth(targets, None, note, numbers)


def _require_imagenet(model: Model | Artefact, given: Labels, why: str) -> None:
    is_imagenet = inputs.class_names(model)[0] == tuple(name for _, name in imagenet_classes())
    is_by_number = given.by_number and model.spec.classes == REAL_CLASSES
    require(is_imagenet or is_by_number, f"{why} a model of ImageNet's 1000 classes; this one has others")


def match_classes(
    model: Model | Artefact, data_names: tuple[str, ...], *, by_number: bool
) -> tuple[tuple[int, ...], str]:
    """Return the model's class number of each class of the data, and a note on how they were matched.

    Classes are matched by name; the data may lack some of the model's. With `by_number`, the data's class numbers are
    taken for the model's, where a name that is a whole number stands for that number.
    """
    require(model.spec.classes > 0, "this model has no classification head, only features; use vitlab fewshot")
    names, origin = inputs.class_names(model)
    if by_number:
        return _by_number(names, data_names), "classes matched by number, as requested, without comparing names"
    wordnet_ids, imagenet = zip(*imagenet_classes(), strict=True)
    if names == imagenet and data_names and set(data_names) <= set(wordnet_ids):
        note = f"classes: ImageNet's, matched by WordNet id; class names: {origin}"
        return matched(wordnet_ids, data_names), note
    try:
        numbers = matched(names, data_names)
    except ValueError as error:
        remedy = "give label_map=FILE from the data's classes to the model's, or by_number=True if the numbers agree"
        raise ValueError(f"{error}; or {remedy} (class names: {origin})") from None
    note = f"class names: {origin}"
    if numbers != tuple(range(len(names))):
        note += f"; the data has {len(numbers):,} of {len(names):,} classes or another order: matched by name"
    return numbers, note


def _by_number(names: tuple[str, ...], data_names: tuple[str, ...]) -> tuple[int, ...]:
    """The model's output for each class number of the data."""
    theirs = numbers_of(data_names)
    own = numbers_of(names) if are_whole(data_names) else range(len(names))
    place = {number: output for output, number in enumerate(own)}
    outside = [number for number in theirs if number not in place]
    counts = f"the data has {len(data_names)} classes, the model {len(names)}"
    missing = f"the model has no class number {outside[0] if outside else 0}"
    require(not outside, f"{missing} ({counts}), so the data's numbers cannot be the model's; give a label map")
    return tuple(place[number] for number in theirs)


def _score(
    pair: Pair, reading: Reading, labels: Labels, progress: Path | None, save_every: float, console: Console
) -> Iterator[Row]:
    """Score one model on one data set; yields a row for each kind of labels."""
    identity, saved, outdated = {}, None, []
    if progress is not None:
        identity = _identity(pair, labels) | {"engine": reading.engine}
        files = state(pair.source)
        stem = _short(json.dumps(identity, allow_nan=False))
        saved = progress / f"{stem}-{_short(files)}.json"
        identity |= {"files": files}
        outdated = [file for file in progress.glob(f"{stem}-*.json") if file != saved]
        if outdated and not saved.exists():
            changed = f"{printable(pair.data)}: files have changed since they were scored; all are scored again"
            say(console, changed, "yellow")
    agreed = compared(pair.model, pair.source, pair.how, reading) if is_inexact(reading.engine) else None
    if agreed is not None:
        say(console, f"{reading.engine}: {agreed}", "yellow")
    with _Scored(console, reading) as display:
        done = score_source(
            pair.model,
            pair.source,
            pair.truth.targets,
            how=pair.how,
            reading=reading,
            columns=pair.truth.columns,
            task=pair.model.task,
            threshold=labels.threshold,
            saved=saved,
            identity=identity,
            save_every=save_every,
            display=display,
        )
    if reading.world.leads:
        for file in outdated:
            file.unlink()
    if bad := len(done.account.quarantined):
        where = "the account of each row" if progress is None else progress.parent / "quarantine.json"
        on = f"{printable(pair.data)}, {printable(pair.label)}"
        say(console, f"{bad:,} of {len(pair.source):,} not evaluated ({on}): {where} names them", "yellow")
    names, columns = inputs.class_names(pair.model)[0], pair.truth.columns
    competing = names if columns is None else tuple(names[number] for number in columns)
    about = (str(pair.how), competing)
    for kind, scores in done.scores.items():
        mistakes = tuple(done.mistakes.get(kind, ()))
        result = (scores, done.account, mistakes, reading.engine, agreed)
        yield Row(pair.label, name_of(pair.model.spec), pair.data, kind, *about, *result)


class _Scored(Images):
    """Shows how many images are scored, and warns once if other programs crowd the processors of a plain model."""

    def __init__(self, console: Console, reading: Reading) -> None:
        super().__init__(console, "scored")
        self.crowding = Crowding(reading.workers) if reading.engine in SPINNING else None

    def show(self, done: int, total: int) -> None:
        super().show(done, total)
        if self.crowding is not None and (why := self.crowding.notice()):
            say(self.console, advice(why, "before the command"))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _identity(pair: Pair, labels: Labels) -> dict[str, object]:
    """Everything that determines the numbers, besides the state of the files.

    The name is part of it because drawn pictures of different seeds have the same ids.
    """
    model, numbers = pair.model, pair.truth.numbers
    return {
        "spec": pair.data,
        "weights": model.fingerprint if isinstance(model, Artefact) else fingerprint_of(model),
        "preprocessing": json.loads(json.dumps(to_json(pair.how), allow_nan=False)),
        "data": fingerprint(pair.source),
        "real": sha256(labels.real) if labels.real else "",
        "label_map": sha256(labels.label_map) if labels.label_map else "",
        "restrict": labels.restrict,
        "by_number": labels.by_number,
        **({"numbers": list(numbers)} if numbers else {}),
        **({"task": model.task, "threshold": labels.threshold} if model.task == "multi-label" else {}),
    }
