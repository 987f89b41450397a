"""Many models on many sets, one table: `vitlab evaluate`."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

from vitlab.busy import Crowding, advice
from vitlab.data.class_names import numbers_of
from vitlab.data.fingerprint import fingerprint, state
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import open_source
from vitlab.deploy.predict import class_names
from vitlab.metrics.multilabel import THRESHOLD
from vitlab.metrics.targets import REAL_CLASSES, OwnLabels, Target, read_label_map, read_real
from vitlab.models.build import Model
from vitlab.paper.imagenet import imagenet_classes
from vitlab.paper.models import name_of
from vitlab.pixels import Preprocessing
from vitlab.report.tables import printable
from vitlab.require import require
from vitlab.runs.measure.evaluation_table import Row, results, write
from vitlab.runs.measure.model_options import ModelOptions, load, match_classes
from vitlab.runs.measure.scoring import SAVE, fingerprint_of, score_source
from vitlab.runs.progress import Images, announced, say
from vitlab.store import locked, refuse_strange, sha256
from vitlab.strict_json import to_json
from vitlab.weights.load import located
from vitlab.world.group import ALONE, World


@dataclass(frozen=True)
class EvaluateOptions:
    """How to evaluate; see `vitlab evaluate --help`."""

    model: ModelOptions = field(default_factory=ModelOptions)
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
        require(self.label_map is not None or not self.restrict, "restrict goes with a label map")
        require(self.label_map is None or not self.by_number, "a label map and by_number exclude each other")


@dataclass(frozen=True)
class Truth:
    """What is right: labels by kind, the classes that compete (None: all of the model's), and a note on the names.

    `numbers` are the model's of the data's classes, where they are not the data's own.
    """

    targets: dict[str, Target]
    columns: tuple[int, ...] | None
    note: str
    numbers: tuple[int, ...] = ()


def evaluate(
    models: Sequence[Path],
    specs: Sequence[str],
    out: Path,
    options: EvaluateOptions,
    console: Console,
    world: World = ALONE,
) -> list[Row]:
    """Score every model on every set, print the table, and write it with all details to `out`.

    Interrupted and called again, it continues; what is finished is not computed again.
    """
    require(bool(models), "no model was given; name at least one file or folder of weights")
    require(bool(specs), "no data was given; name it as --data folder:photos, and see vitlab data kinds")
    refuse_strange(out, ("progress",))
    for path in models:
        located(path)  # before there is a folder
    if world.leads:
        with locked(out):
            return _evaluate(models, specs, out, options, console, world)
    return _evaluate(models, specs, out, options, console, world)


def _evaluate(
    models: Sequence[Path],
    specs: Sequence[str],
    out: Path,
    options: EvaluateOptions,
    console: Console,
    world: World,
) -> list[Row]:
    with announced(console, f"opening {', '.join(map(printable, specs))} ..."):
        sources = {spec: open_source(spec) for spec in specs}
    rows: list[Row] = []
    for path in models:
        model, how = load(path, options.model)
        console.print(Text(f"{printable(str(path))}: {name_of(model.spec)}, preprocessing: {how}", style="dim"))
        for spec, source in sources.items():
            truth = truth_of(model, source, options)
            console.print(Text(f"{printable(spec)}: {len(source):,} samples, {printable(truth.note)}", style="dim"))
            rows += _score(model, path, how, spec, source, truth, out, options, console, world)
    table = results(rows)
    console.print(table.terminal())
    for row in rows:
        if row.account.quarantined:
            asked = row.account.used[0] + row.account.bad[0]
            on = f"{printable(row.data)}, {printable(row.model)}"
            bad = f"{len(row.account.quarantined):,} of {asked:,} not evaluated"
            console.print(Text(f"{bad} ({on}): {out / 'quarantine.json'} names them", style="yellow"))
    if world.leads:
        write(out, rows, table)
    return rows


def truth_of(model: Model, source: Source, options: EvaluateOptions) -> Truth:
    """The labels to score against, once it is sure that they are about the same classes."""
    require(
        model.task == "single-label" or (options.real is None and options.label_map is None),
        "ReaL labels and label maps are for models that predict one class per image, and this one is multi-label",
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
        require(is_imagenet or is_by_number, "ReaL labels are of ImageNet's 1000 classes, which this model has not")
        targets["ReaL"] = read_real(options.real)
    return Truth(targets, None, note, numbers)


def _score(
    model: Model,
    path: Path,
    how: Preprocessing,
    spec: str,
    source: Source,
    truth: Truth,
    out: Path,
    options: EvaluateOptions,
    console: Console,
    world: World,
) -> Iterator[Row]:
    identity, files = {"spec": spec, **_identity(model, how, source, options)}, state(source)
    identity |= {"numbers": list(truth.numbers)} if truth.numbers else {}
    identity |= {"task": model.task, "threshold": options.threshold} if model.task == "multi-label" else {}
    name = _short(json.dumps(identity, allow_nan=False))
    saved = out / "progress" / f"{name}-{_short(files)}.json"
    outdated = [file for file in saved.parent.glob(f"{name}-*.json") if file != saved]
    if outdated and not saved.exists():
        changed = f"{printable(spec)}: files changed since they were scored; all are scored again"
        console.print(Text(changed, style="yellow"))
    with _Scored(console, options.workers) as shown:
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
            identity={**identity, "files": files},
            world=world,
            save_every=options.save_every,
            display=shown,
        )
    if world.leads:
        for file in outdated:
            file.unlink()
    names = class_names(model)[0]
    competing = names if truth.columns is None else tuple(names[number] for number in truth.columns)
    for labels, scores in done.scores.items():
        yield Row(str(path), name_of(model.spec), spec, labels, str(how), competing, scores, done.account)


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


def _identity(model: Model, how: Preprocessing, source: Source, options: EvaluateOptions) -> dict[str, object]:
    """Everything that decides the numbers, besides the spec and the state of the files.

    Drawn pictures of another seed have the same ids, which is why the spec is needed.
    """
    return {
        "weights": fingerprint_of(model),
        "preprocessing": json.loads(json.dumps(to_json(how), allow_nan=False)),
        "data": fingerprint(source),
        "real": sha256(options.real) if options.real else "",
        "label_map": sha256(options.label_map) if options.label_map else "",
        "restrict": options.restrict,
        "by_number": options.by_number,
    }
