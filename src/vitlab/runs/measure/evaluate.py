"""Many models on many sets, one table: `vitlab evaluate`."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

from vitlab.busy import Crowding, advice
from vitlab.data.file_stamps import state
from vitlab.data.fingerprint import fingerprint
from vitlab.data.loading.batch import Batch
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import open_source
from vitlab.deploy.predict import class_names
from vitlab.evaluate.multilabel import THRESHOLD
from vitlab.evaluate.targets import REAL_CLASSES, read_label_map, read_real
from vitlab.models.build import Model
from vitlab.paper.imagenet import imagenet_classes
from vitlab.paper.models import name_of
from vitlab.pixels import Preprocessing
from vitlab.report.tables import printable
from vitlab.require import require
from vitlab.runs.measure.evaluation_table import Row, results, write
from vitlab.runs.measure.model_options import ModelOptions, load, match_classes
from vitlab.runs.measure.scoring import SAVE, Labeller, Share, fingerprint_of, score_source
from vitlab.runs.progress import Images, announced, say
from vitlab.store import locked, refuse_strange, sha256
from vitlab.strict_json import to_json
from vitlab.weights.load import located


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

    labellers: dict[str, Labeller]
    columns: tuple[int, ...] | None
    note: str
    numbers: tuple[int, ...] = ()


def evaluate(
    models: Sequence[Path],
    specs: Sequence[str],
    out: Path,
    options: EvaluateOptions,
    console: Console,
    share: Share | None = None,
) -> list[Row]:
    """Score every model on every set, print the table, and write it with all details to `out`.

    Interrupted and called again, it continues; what is finished is not computed again.
    """
    require(bool(models), "no model was given; name at least one file or folder of weights")
    require(bool(specs), "no data was given; name it as --data folder:photos, and see vitlab data kinds")
    refuse_strange(out, ("progress",))
    for path in models:
        located(path)  # before there is a folder
    if share is None or share.rank == 0:
        with locked(out):
            return _evaluate(models, specs, out, options, console, share)
    return _evaluate(models, specs, out, options, console, share)


def _evaluate(
    models: Sequence[Path],
    specs: Sequence[str],
    out: Path,
    options: EvaluateOptions,
    console: Console,
    share: Share | None,
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
            rows += _score(model, path, how, spec, source, truth, out, options, console, share)
    table = results(rows)
    console.print(table.terminal())
    for row in rows:
        if row.account.quarantined:
            asked = row.account.used[0] + row.account.bad[0]
            on = f"{printable(row.data)}, {printable(row.model)}"
            bad = f"{len(row.account.quarantined):,} of {asked:,} not evaluated"
            console.print(Text(f"{bad} ({on}): {out / 'quarantine.json'} names them", style="yellow"))
    if share is None or share.rank == 0:
        write(out, rows, table)
    return rows


def truth_of(model: Model, source: Source, options: EvaluateOptions) -> Truth:
    """The labels to score against, once it is sure that they are about the same classes."""
    require(
        model.task == "single-label" or (options.real is None and options.label_map is None),
        "ReaL labels and label maps are for models that predict one class per image, and this one is multi-label",
    )
    if options.label_map is not None:
        mapped = read_label_map(options.label_map, source.class_names, class_names(model)[0])
        columns = mapped.used if options.restrict else None
        place = {
            own: number for number, own in enumerate(columns if columns is not None else range(model.spec.classes))
        }
        note = f"classes by {options.label_map.name}" + (f", {len(place)} compete" if options.restrict else "")

        def in_place(batch: Batch) -> list[list[int]]:
            return [[place[own] for own in mapped.of(labels)] for labels in batch.labels]

        return Truth({"mapped": in_place}, columns, note)
    numbers, note = match_classes(model, source.class_names, by_number=options.by_number)
    is_same = numbers == tuple(range(len(numbers)))

    def numbered(batch: Batch) -> Sequence[Sequence[int]]:
        return batch.labels if is_same else [[numbers[label] for label in labels] for labels in batch.labels]

    labellers: dict[str, Labeller] = {"own": numbered}
    if options.real is not None:
        real = read_real(options.real)
        is_imagenet = class_names(model)[0] == tuple(name for _, name in imagenet_classes())
        is_by_number = options.by_number and model.spec.classes == REAL_CLASSES
        require(is_imagenet or is_by_number, "ReaL labels are of ImageNet's 1000 classes, which this model has not")
        labellers["ReaL"] = lambda batch: [real.of(name) for name in batch.ids]
    return Truth(labellers, None, note, () if is_same else numbers)


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
    share: Share | None,
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
    crowding = Crowding(options.workers)
    with Images(console, "scored") as shown:

        def tell(number: int) -> None:
            shown.show(number, len(source))
            if why := crowding.notice():
                say(console, advice(why, "before the command"))

        done = score_source(
            model,
            source,
            truth.labellers,
            how=how,
            batch=options.batch,
            workers=options.workers,
            max_bad=options.max_bad,
            columns=truth.columns,
            task=model.task,
            threshold=options.threshold,
            saved=saved,
            identity={**identity, "files": files},
            share=share,
            save_every=options.save_every,
            say=tell,
        )
    if share is None or share.rank == 0:
        for file in outdated:
            file.unlink()
    names = class_names(model)[0]
    competing = names if truth.columns is None else tuple(names[number] for number in truth.columns)
    for labels, scores in done.scores.items():
        yield Row(str(path), name_of(model.spec), spec, labels, str(how), competing, scores, done.account)


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
