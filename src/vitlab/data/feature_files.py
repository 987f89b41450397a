"""Features with labels: .npy, .npz and .parquet files, and the folders that `vitlab features` writes."""

import os
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import numpy as np

from vitlab.data.loading.accounting import Quarantined
from vitlab.data.loading.batches import Batch
from vitlab.data.sources import parquet
from vitlab.data.sources.arrays import open_npz
from vitlab.data.sources.catalogue import KINDS
from vitlab.files.store import replacing, write_json
from vitlab.files.strict_json import read_json
from vitlab.files.user_files import open_regular
from vitlab.npz import NpzError, damage_explained, read_array, read_header
from vitlab.require import require

CARD = "features.json"
FORM = re.compile(r"(?P<path>.+?)(?:\?(?P<options>\w+=[^?]*))?", re.DOTALL)
NAMES = {"x": ("features", "x", "embeddings"), "y": ("labels", "y", "label")}  # of arrays and columns, first found


@dataclass(frozen=True)
class Vectors:
    """Features (n, D) of n samples, their class numbers (n,), and ids if the file has them."""

    x: np.ndarray
    y: np.ndarray
    ids: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        fits = self.x.ndim == 2 and self.y.shape == (len(self.x),)
        require(fits, f"features {self.x.shape} and labels {self.y.shape} are not (n, D) and (n,)")
        require(self.x.dtype.kind == "f", f"features are of {self.x.dtype}; allowed are floating-point numbers")
        require(self.y.dtype.kind in "iu", f"labels are of {self.y.dtype}; allowed are whole numbers")


def is_vectors(text: str) -> bool:
    """Whether a string names features rather than images: FILE.npy, .npz, .parquet, or a folder of features."""
    match = FORM.fullmatch(text)
    if match is None or text.partition(":")[0] in KINDS:
        return False
    path = Path(unquote(match["path"]))
    return path.suffix in (".npy", ".npz", ".parquet") or (path / CARD).is_file()


def open_vectors(text: str) -> Vectors:
    """Read features from FILE.npz, FILE.npy?y=LABELS.npy, FILE.parquet?x=COLUMN&y=COLUMN or a folder of features."""
    match = FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} names no features; give FILE.npz, FILE.npy?y=LABELS.npy, FILE.parquet or a folder")
    path = Path(unquote(match["path"]))
    pairs = [part.partition("=")[::2] for part in (match["options"] or "").split("&") if part]
    options = {name: unquote(value) for name, value in pairs}
    require(set(options) <= set(NAMES), f"features have the options x and y, not {sorted(options)}")
    if path.is_dir():
        require(not options, "a folder of features has no options")
        return read_folder(path)
    if path.suffix == ".npy":
        require("y" in options, f"{path.name} holds no labels; name their file as {path.name}?y=LABELS.npy")
        return _vectors(path, _npy(path), _npy(Path(options["y"])))
    return _npz(path, options) if path.suffix == ".npz" else _parquet(path, options)


# -- Files -----------------------------------------------------------------------------------------


def _vectors(path: Path, x: np.ndarray, y: np.ndarray, ids: tuple[str, ...] = ()) -> Vectors:
    try:
        return Vectors(x, y, ids)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def _npy(path: Path) -> np.ndarray:
    with open_regular(path) as file:
        try:
            with damage_explained():
                header = read_header(file, os.fstat(file.fileno()).st_size, "it")
                return header.array(file.read())
        except NpzError as error:
            raise ValueError(f"{path.name} is not a valid .npy file: {error}") from None


def _npz(path: Path, options: dict[str, str]) -> Vectors:
    arrays = _arrays(path)
    x, y = (_named(path.name, part, options, set(arrays)) for part in ("x", "y"))
    ids = arrays["ids"] if "ids" in arrays else np.empty(0, "U")
    return _vectors(path, arrays[x], arrays[y], tuple(ids.tolist()))


def _arrays(path: Path, wanted: Container[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an archive by name: all, or those `wanted`."""
    with open_npz(path) as (archive, members):
        return {name: read_array(archive, m) for name, m in members.items() if wanted is None or name in wanted}


def _parquet(path: Path, options: dict[str, str]) -> Vectors:
    file = parquet.open_parquet(path)
    x, y = (_named(path.name, part, options, set(file.schema_arrow.names)) for part in ("x", "y"))
    with parquet.damage_explained(f"{path.name} is not a valid parquet file"):
        table = file.read(columns=[x, y])
    lists = table[x].combine_chunks()
    is_list = str(lists.type).startswith(("list", "fixed_size_list", "large_list"))
    require(is_list, f"{path.name}: column {x!r} holds {lists.type}, not lists of numbers")
    require(lists.null_count == 0, f"{path.name}: column {x!r} has empty places")
    values = lists.flatten().to_numpy(zero_copy_only=False)
    lengths = {len(one) for one in lists}
    require(len(lengths) == 1, f"{path.name}: the lists of column {x!r} differ in length: {sorted(lengths)[:5]}")
    return _vectors(path, values.reshape(len(lists), -1), table[y].combine_chunks().to_numpy(zero_copy_only=False))


def _named(file: str, part: str, options: dict[str, str], names: set[str]) -> str:
    wanted = (options[part],) if part in options else NAMES[part]
    found = [name for name in wanted if name in names]
    has = f"{file} has no {' or '.join(wanted)}; it has {sorted(names)!r:.200}"
    require(bool(found), f"{has}; choose one with ?{part}=NAME")
    return found[0]


# -- Folders of features ---------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureFolder:
    """A folder of files `shard-*.npz`; file k holds samples [k shard, (k + 1) shard) and is complete if it exists."""

    path: Path
    samples: int
    shard: int

    def __post_init__(self) -> None:
        sizes = f"{self.samples} samples in shards of {self.shard}"
        require(self.samples >= 1 and self.shard >= 1, f"{sizes}; both must be at least 1")

    @property
    def shards(self) -> int:
        """The number of files of a finished folder."""
        return -(-self.samples // self.shard)

    def file(self, number: int) -> Path:
        """Return the path of file number `number`."""
        return self.path / f"shard-{number:05d}.npz"

    def missing(self) -> list[int]:
        """Return the numbers of the files that are still to be written."""
        return [number for number in range(self.shards) if not self.file(number).is_file()]

    def part(self, number: int) -> range:
        """Return the samples of a file."""
        return range(self.samples)[number * self.shard : (number + 1) * self.shard]

    def bad(self) -> list[Quarantined]:
        """Return the unreadable samples of the files written so far."""
        there = [self.file(number) for number in range(self.shards) if self.file(number).is_file()]
        return [Quarantined(*row) for file in there for row in _arrays(file, {"bad"})["bad"].tolist()]

    def numbers(self) -> np.ndarray:
        """Return (n,) the numbers of the samples with features, in order; all files must be there."""
        return np.concatenate([_arrays(self.file(number), {"numbers"})["numbers"] for number in range(self.shards)])

    def open(self, card: dict[str, object]) -> None:
        """Start a folder, or continue one that was started with the same card. Raises ValueError for another card."""
        whole = {**card, "samples": self.samples, "shard": self.shard}
        if (self.path / CARD).is_file():
            found = read_card(self.path)
            engine = engine_of(found)
            found["engine"] = engine
            others = [name for name in sorted(found.keys() | whole) if found.get(name) != whole.get(name)]
            advice = "choose another folder"
            if others == ["engine"]:
                advice = f"give engine={engine!r}, which computed them, or {advice}"
            require(
                not others,
                f"{self.path} holds other features (different {', '.join(others)}); {advice}",
            )
            return
        write_json(self.path / CARD, whole)

    def state(self, number: int) -> str | None:
        """Return the `fingerprint.state` of the images that a file was made from; None if there is no such file."""
        file = self.file(number)
        return str(_arrays(file, {"state"}).get("state", "unknown")) if file.is_file() else None

    def write(self, number: int, parts: Sequence[tuple[Batch, np.ndarray]], state: str = "") -> None:
        """Write a file: features (n, D), labels (n,) or (n, m) padded with -1, ids, numbers, bad samples, `state`."""
        labels = [of for batch, _ in parts for of in batch.labels]
        most = max(map(len, labels), default=1)
        padded = np.array([[*of, *[-1] * (most - len(of))] for of in labels], np.int64).reshape(len(labels), most)
        bad = [(sample.id, sample.reason, sample.detail) for batch, _ in parts for _, sample in batch.bad]
        arrays = {
            "features": np.concatenate([features for _, features in parts]),
            "labels": padded[:, 0] if most == 1 else padded,
            "ids": np.array([name for batch, _ in parts for name in batch.ids], dtype=np.str_),
            "numbers": np.array([n + self.part(number).start for batch, _ in parts for n in batch.numbers], np.int64),
            "bad": np.array(bad, dtype=np.str_).reshape(-1, 3),
            "state": np.array(state, dtype=np.str_),
        }
        with replacing(self.file(number)) as temporary, temporary.open("wb") as file:
            np.savez(file, **cast(Any, arrays))


def read_card(path: Path) -> dict[str, Any]:
    """Read the card of a folder of features."""
    if not (path / CARD).exists():
        raise FileNotFoundError(f"{path} has no {CARD}: it is not a folder that vitlab features wrote")
    card = cast(dict[str, Any], read_json(path / CARD))
    whole = isinstance(card, dict) and all(type(card.get(name)) is int for name in ("samples", "shard"))
    require(whole, f"{path / CARD} does not describe features")
    return card


def engine_of(card: dict[str, Any]) -> str:
    """The engine that computed the features of a card; earlier versions had one only and did not say."""
    return str(card.get("engine", "plain"))


def read_folder(path: Path) -> Vectors:
    """Read all features of a finished folder, in the order of the samples."""
    card = read_card(path)
    folder = FeatureFolder(path, card["samples"], card["shard"])
    missing = folder.missing()
    require(not missing, f"{path} lacks {len(missing)} of {folder.shards} files; run vitlab features again")
    shards = [_arrays(folder.file(number)) for number in range(folder.shards)]
    labels = [shard["labels"] for shard in shards]
    require(all(of.ndim == 1 for of in labels), f"{path} has samples with several labels; few-shot needs exactly one")
    return Vectors(
        np.concatenate([shard["features"] for shard in shards]),
        np.concatenate(labels),
        tuple(name for shard in shards for name in shard["ids"].tolist()),
        tuple(card.get("class_names", ())),
    )
