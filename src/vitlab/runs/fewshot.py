"""Few-shot, nearest neighbours and linear probe over one or many sets: `vitlab fewshot`."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
from rich.console import Console
from rich.text import Text

from vitlab.data.card import check_class_names, fingerprint
from vitlab.data.catalogue import open_source
from vitlab.data.source import Source
from vitlab.data.splits import take
from vitlab.data.vectors import FeatureFolder, Vectors, is_vectors, open_vectors, read_folder
from vitlab.evaluate.fewshot import SHOTS, ChooseL2, FeatureSet, fewshot_sets, shot_numbers
from vitlab.evaluate.neighbours import nearest_neighbours
from vitlab.evaluate.probe import linear_probe
from vitlab.models.build import Model
from vitlab.paper.models import name_of
from vitlab.report.tables import Cell, Results, printable
from vitlab.runs.features import SHARD, write_features
from vitlab.runs.preparing import ModelOptions, load
from vitlab.runs.scoring import fingerprint_of
from vitlab.spec import Preprocessing
from vitlab.store import replacing
from vitlab.strict_json import require, to_json

COLUMNS = ("data", "method", "seed", "accuracy %", "l2 or rate", "chosen by", "train", "count")


@dataclass(frozen=True)
class FewShotOptions:
    """How to evaluate features; see `vitlab fewshot --help`."""

    model: ModelOptions = field(default_factory=lambda: ModelOptions(preprocessing="few-shot"))
    shots: tuple[int, ...] = SHOTS
    seeds: tuple[int, ...] = ()  # none: the first samples of every class
    l2: ChooseL2 = "mean-rank"
    neighbours: int = 0  # k; 0: none
    probe: int = 0  # steps; 0: none
    batch: int = 32
    workers: int = 0

    def __post_init__(self) -> None:
        require(
            bool(self.shots) or bool(self.neighbours or self.probe), "nothing to do: give shots, neighbours or probe"
        )
        require(
            min(self.neighbours, self.probe) >= 0, f"{self.neighbours} neighbours and {self.probe} steps are no counts"
        )

    @property
    def draws(self) -> tuple[int | None, ...]:
        """The seeds, or the first samples alone."""
        return self.seeds or (None,)


@dataclass(frozen=True)
class Pool:
    """What can be learnt from: the labels of all samples of a set, and the features of those that are needed."""

    labels: np.ndarray  # (N,)
    numbers: np.ndarray  # (n,) which of the N have features, rising
    x: np.ndarray  # (n, D)

    def chosen(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Features and labels of samples by their number in the set."""
        return self.x[np.searchsorted(self.numbers, numbers)], self.labels[numbers]


def fewshot(
    model: Path | None, train: Sequence[str], test: Sequence[str], out: Path, options: FewShotOptions, console: Console
) -> Results:
    """Every number of shots and every seed on every set; sets are images, for which a model is needed, or features."""
    require(
        bool(train) and len(train) == len(test), f"{len(train)} training and {len(test)} test sets: give them in pairs"
    )
    maker = _Maker(model, out, options, console)
    pools = {name: maker.pool(name) for name in train}
    tests = {name: maker.vectors(name) for name in test}
    for name, other in zip(train, test, strict=True):
        maker.check(name, other)
    pairs = {
        (name if train.count(name) == 1 else f"{name}, {other}"): (pools[name], tests[other])
        for name, other in zip(train, test, strict=True)
    }
    rows: list[tuple[Cell, ...]] = []
    for shots in options.shots:
        for seed in options.draws:
            sets = {}
            for name, (pool, tested) in pairs.items():
                x, y = pool.chosen(shot_numbers(pool.labels, shots, seed).numpy())
                sets[name] = FeatureSet(x, y, tested.x, tested.y)
            for name, result in fewshot_sets(sets, None, l2=options.l2).items():
                found = (100 * result.accuracy, result.l2, result.chosen_by, result.train, result.count)
                rows.append((name, f"{shots}-shot", "first" if seed is None else seed, *found))
    for name, (pool, tested) in pairs.items():
        rows += _others(name, pool, tested, options)
    table = Results(COLUMNS, tuple(rows))
    console.print(table.terminal())
    for suffix, text in (("csv", table.to_csv()), ("md", table.to_markdown()), ("json", table.to_json())):
        with replacing(out / f"fewshot.{suffix}") as temporary:
            temporary.write_text(text, encoding="utf-8")
    return table


def _others(name: str, pool: Pool, test: Vectors, options: FewShotOptions) -> Iterable[tuple[Cell, ...]]:
    """Nearest neighbours and the probe, on all training samples."""
    x, y = pool.x, pool.labels[pool.numbers]
    if k := options.neighbours:
        predicted = nearest_neighbours(x, y, test.x, k=k).numpy()
        right = 100 * float((predicted == test.y).mean())
        yield name, f"{k} nearest neighbours", None, right, None, None, len(x), len(test.x)
    if options.probe:
        result = linear_probe(x, y.astype(np.int64), test.x, test.y.astype(np.int64), steps=options.probe)
        rest = (100 * result.accuracy, result.rate, "held-out samples", result.train, result.count)
        yield (name, "linear probe", None, *rest)


class _Maker:
    """Opens features, or makes them of images by the model, once, in folders under `out`."""

    def __init__(self, model: Path | None, out: Path, options: FewShotOptions, console: Console) -> None:
        self.path, self.out, self.options, self.console = model, out, options, console
        self.sources: dict[str, Source] = {}
        self.loaded: tuple[Model, Preprocessing] | None = None

    def pool(self, name: str) -> Pool:
        """The training samples that are needed: the shots alone where nothing asks for more."""
        if is_vectors(name):
            found = open_vectors(name)
            return Pool(found.y, np.arange(len(found.y)), found.x)
        labels = _labels(self._source(name), name)
        if self.options.neighbours or self.options.probe:
            numbers = np.arange(len(labels))
        else:
            most = max(self.options.shots)
            drawn = [shot_numbers(labels, most, seed).numpy() for seed in self.options.draws]
            numbers = np.unique(np.concatenate(drawn))
        return Pool(labels, numbers, self._features(take(self._source(name), numbers), name).x)

    def vectors(self, name: str) -> Vectors:
        """All features of a test set."""
        return open_vectors(name) if is_vectors(name) else self._features(self._source(name), name)

    def check(self, train: str, test: str) -> None:
        """Raise unless training and test images have the same classes; features have numbers alone."""
        if not is_vectors(train) and not is_vectors(test):
            check_class_names(self._source(train).class_names, self._source(test).class_names)

    def _source(self, name: str) -> Source:
        if name not in self.sources:
            self.sources[name] = open_source(name)
        return self.sources[name]

    def _features(self, source: Source, name: str) -> Vectors:
        model, how = self._model(name)
        identity = [fingerprint_of(model), to_json(how), name, fingerprint(source)]
        folder = self.out / "features" / hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
        write_features(
            model,
            how,
            source,
            FeatureFolder(folder, len(source), SHARD),
            spec=name,
            batch=self.options.batch,
            workers=self.options.workers,
        )
        return read_folder(folder)

    def _model(self, name: str) -> tuple[Model, Preprocessing]:
        require(self.path is not None, f"{name!r} are images: name the model that makes features of them")
        if self.loaded is None:
            self.loaded = load(cast(Path, self.path), self.options.model)
            model, how = self.loaded
            about = f"{printable(str(self.path))}: {name_of(model.spec)}, preprocessing: {how}"
            self.console.print(Text(about, style="dim"))
        return self.loaded


def _labels(source: Source, name: str) -> np.ndarray:
    """(n,) class numbers, without reading an image."""
    labels = [source.label(number) for number in range(len(source))]
    require(all(len(of) == 1 for of in labels), f"{name!r} has samples with several labels or none; few-shot needs one")
    return np.array([label for (label,) in labels], np.int64)
