"""The features that few-shot, neighbours and probe work on: read from files, or computed from images by a model."""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import numpy as np
from rich.console import Console

from vitlab.data.class_names import renumbered
from vitlab.data.feature_files import (
    FeatureFolder,
    Vectors,
    engine_of,
    is_vectors,
    open_vectors,
    read_card,
    read_folder,
)
from vitlab.data.fingerprint import fingerprint
from vitlab.data.loading.accounting import SHOWN, Account
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import open_source
from vitlab.data.splits import take
from vitlab.errors import printable
from vitlab.files.strict_json import to_json
from vitlab.models.build import Model
from vitlab.models.fingerprint import fingerprint_of
from vitlab.require import require
from vitlab.runs.measure.features import SHARD, making, write_features
from vitlab.runs.measure.inputs import DataLike, ModelLike, ModelOptions, load, open_set, settled
from vitlab.runs.measure.scoring import Reading
from vitlab.runs.progress import say
from vitlab.shots import Draw, shot_numbers
from vitlab.spec.pixels import Preprocessing


@dataclass(frozen=True)
class Shots:
    """Which training samples are learned from: numbers of samples per class, each drawn with every seed."""

    numbers: tuple[int, ...]
    seeds: tuple[int | None, ...]  # None: the first samples of every class
    draw: Draw
    needs_all: bool  # for nearest neighbours and the linear probe

    def needed(self, labels: np.ndarray, is_usable: np.ndarray) -> np.ndarray:
        """The numbers of the samples that are needed."""
        if self.needs_all:
            return np.flatnonzero(is_usable)
        most = max(self.numbers)
        drawn = [shot_numbers(labels, most, seed, is_usable, self.draw) for seed in self.seeds]
        return np.unique(np.concatenate(drawn))

    def check(self, labels: np.ndarray, class_names: Sequence[str], name: str) -> None:
        """Raise if a class has fewer samples than the largest number of shots; called before anything is computed."""
        rarest_first = sorted(zip(*reversed(np.unique(labels, return_counts=True)), strict=True))
        for count, label in rarest_first[:1]:
            fitting = [number for number in self.numbers if number <= count]
            called = repr(class_names[label]) if label < len(class_names) else label
            advice = f"shots= {' '.join(map(str, fitting))}" if fitting else "data with more samples"
            wanted = f"{max(self.numbers, default=0)} shots per class are asked for: give {advice}"
            require(fitting == list(self.numbers), f"class {called} of {name!r} has {count} samples; {wanted}")


@dataclass(frozen=True)
class Pool:
    """Training samples: the labels of all samples of a set, and the features of those that are needed."""

    labels: np.ndarray  # (N,)
    is_usable: np.ndarray  # (N,) False for samples known to be bad
    numbers: np.ndarray  # (n,) which of the N have features, ascending
    x: np.ndarray  # (n, D)

    def shots(self, shots: int, seed: int | None, draw: Draw) -> tuple[np.ndarray, np.ndarray]:
        """Features and labels of this many samples per class."""
        numbers = shot_numbers(self.labels, shots, seed, self.is_usable, draw)
        return self.x[np.searchsorted(self.numbers, numbers)], self.labels[numbers]


class Maker:
    """Reads features, or computes them from images once and keeps them in folders under `out`."""

    def __init__(
        self, model: ModelLike | None, loading: ModelOptions, out: Path, reading: Reading, console: Console
    ) -> None:
        self.given, self.loading, self.out, self.reading, self.console = model, loading, out, reading, console
        self.sources: dict[str, Source] = {}
        self.loaded: tuple[Model, Preprocessing] | None = None

    def name_of(self, data: DataLike) -> str:
        """The name of a set in tables: its spec, or that of a source or Dataset, numbered if there are several."""
        if isinstance(data, str):
            return data
        kind, source = open_set(data)
        name, number = kind, 1
        while name in self.sources and self.sources[name] is not source:
            number += 1
            name = f"{kind} {number}"
        self.sources[name] = source
        return name

    def pool(self, name: str, shots: Shots) -> Pool:
        """The training samples that are needed: only the shots, unless neighbours or probe need all."""
        if is_vectors(name):
            found = open_vectors(name)
            return Pool(found.y, np.ones(len(found.y), bool), np.arange(len(found.y)), found.x)
        source = self._source(name)
        labels, account = _labels(source, name), Account(len(source))
        is_usable, is_read = np.ones(len(labels), bool), np.zeros(len(labels), bool)
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        while len(asked := np.setdiff1d(shots.needed(labels, is_usable), np.flatnonzero(is_read))):
            found, has_features = self._features(take(source, asked), name, account)
            parts.append((asked[has_features], found.x))
            is_read[asked] = True
            is_usable[np.delete(asked, has_features)] = False  # other samples replace these
        self._name_bad(account, name)
        numbers, x = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        order = np.argsort(numbers)
        return Pool(labels, is_usable, numbers[order], x[order])

    def vectors(self, name: str) -> Vectors:
        """The features of a whole test set."""
        if is_vectors(name):
            return open_vectors(name)
        account = Account(len(self._source(name)))
        found, _ = self._features(self._source(name), name, account)
        self._name_bad(account, name)
        return found

    def engine_of(self, name: str) -> str | None:
        """The engine that computed the features of a set that was read; None for files, which do not say."""
        if not is_vectors(name):
            return self.reading.engine
        path = Path(unquote(name))
        return engine_of(read_card(path)) if path.is_dir() else None

    def check(self, train: str, test: str, shots: Shots) -> None:
        """Raise unless both have the same classes, model and preprocessing, and training enough samples for the shots.

        Classes of images are matched by name, so a test set may lack some of them.
        """
        self._check_shots(train, shots)
        if not is_vectors(train) and not is_vectors(test):
            with contextlib.suppress(ValueError):  # reported below, with both lists of classes
                self.sources[test] = renumbered(self._source(test), self._source(train).class_names)
        ours, theirs = self._making(train), self._making(test)
        for what, problem, advice in AGREEMENT:
            if what in ours and what in theirs and ours[what] != theirs[what]:
                a, b = _different(what, ours, theirs), _different(what, theirs, ours)
                raise ValueError(f"{problem}: {train!r} has {a}, {test!r} has {b}; {advice}")

    def _check_shots(self, name: str, shots: Shots) -> None:
        if is_vectors(name):
            found = open_vectors(name)
            shots.check(found.y, found.class_names, name)
        else:
            shots.check(_labels(self._source(name), name), self._source(name).class_names, name)

    def _name_bad(self, account: Account, name: str) -> None:
        if bad := account.quarantined:
            named = ", ".join(printable(sample) for sample in list(bad)[:SHOWN]) + ", ..." * (len(bad) > SHOWN)
            count = f"{len(bad):,} of {account.found:,} images are unreadable and left out"
            say(self.console, f"{printable(name)}: {count}: {named}", "yellow")

    def _making(self, name: str) -> dict[str, Any]:
        if not is_vectors(name):
            return making(*self._model(name), self._source(name))
        path = Path(unquote(name))
        return read_card(path) if path.is_dir() else {}

    def _source(self, name: str) -> Source:
        if name not in self.sources:
            self.sources[name] = open_source(name)
        return self.sources[name]

    def _features(self, source: Source, name: str, account: Account) -> tuple[Vectors, np.ndarray]:
        """The features of a set or a part of it, and the numbers of the samples that have features."""
        model, how = self._model(name)
        identity = [fingerprint_of(model), to_json(how), name, fingerprint(source), self.reading.engine]
        path = self.out / "features" / hashlib.sha256(json.dumps(identity, allow_nan=False).encode()).hexdigest()[:16]
        folder = FeatureFolder(path, len(source), SHARD)
        how_read = {"spec": name, "reading": self.reading, "account": account, "console": self.console}
        write_features(model, how, source, folder, **how_read)
        return read_folder(path), folder.numbers()

    def _model(self, name: str) -> tuple[Model, Preprocessing]:
        require(self.given is not None, f"{name!r} are images; give the model that computes their features (model=)")
        if self.loaded is None:
            self.loaded = load(cast(ModelLike, self.given), self.loading, self.console)
            how_read = self.reading
            engine = settled(self.loaded[0], how_read.engine, how_read.batch, how_read.world, self.console)
            self.reading = replace(how_read, engine=engine)
        return self.loaded


def _different(what: str, own: Any, other: Any) -> str:
    """What a set has where another differs: the classes, the weights, or the settings of the preprocessing."""
    if what == "class_names":
        pairs = enumerate(zip(own[what], other[what], strict=False))
        first = next((f", number {n} is {a!r}" for n, (a, b) in pairs if a != b), "")
        return f"{len(own[what])} classes{first}"
    if what == "weights":
        return f"{own['architecture']} {own[what][:12]}"
    return ", ".join(f"{name} {value}" for name, value in own[what].items() if value != other[what].get(name))


AGREEMENT = (  # what a pair must share: the entry in the card, the problem, what to do
    ("class_names", "the classes differ", "use sets of the same classes in the same order"),
    ("weights", "the weights differ", "compute both with the same model"),
    ("preprocessing", "the preprocessing differs", "compute both with the same preprocessing="),
)


def _labels(source: Source, name: str) -> np.ndarray:
    """(n,) class numbers, without reading an image."""
    labels = [source.label(number) for number in range(len(source))]
    has_one = all(len(of) == 1 for of in labels)
    require(has_one, f"{name!r} has samples with several labels or none; few-shot needs exactly one")
    return np.array([label for (label,) in labels], np.int64)
