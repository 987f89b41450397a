"""Parquet as Hugging Face writes image sets: a column of encoded images and one of class numbers; needs `[data]`."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np

from vitlab.data.class_names import MOST_CLASSES
from vitlab.data.fingerprint import file_stamp
from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.source import Labels, Paths, Sample, Source, check_index, keep
from vitlab.files.strict_json import parse_json
from vitlab.files.user_files import check_regular
from vitlab.require import require

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

MOST_KEPT = 16  # row groups in memory; the window of the training order is half of that
MOST_OPEN = 64  # files
LARGEST_GROUP = 2**31  # bytes, uncompressed; the datasets library writes 100 images per group
NAME = re.compile(r"(.+)-\d+-of-\d+\.parquet")  # train-00000-of-00004.parquet


class ParquetPlace(Protocol):
    """Where a parquet file is: `str` of it is its path or address."""

    @property
    def name(self) -> str: ...


Place = TypeVar("Place", bound=ParquetPlace)


class ParquetSource(Source):
    """The rows of a file, or of a folder's `split-00000-of-00004.parquet` files, by number; ids are `file/row`.

    Images are a struct with `bytes`, or plain binary; labels are whole numbers. A row is read with its row group; a few
    groups are kept, so that neighbours cost nothing.
    """

    def __init__(self, path: Path, split: str = "", *, image: str = "image", label: str = "label") -> None:
        paths = [file.absolute() for file in _files(Path(path), split)]
        self._stamps: list[tuple[int, ...]] = [file_stamp(file) for file in paths]
        self._begin(paths, str(path), image, label)

    def _begin(self, files: Sequence[ParquetPlace], path: str, image: str, label: str) -> None:
        """Read the columns, the labels and the places of the row groups of all files."""
        self._image, self._files = image, files
        self._forget()
        groups, labels = [], []
        for number, file in enumerate(files):
            opened = self._file(number)
            _check_columns(file.name, opened.schema_arrow, image, label)
            labels.append(self._labels_of(number, label))
            sizes = [opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups)]
            firsts = np.cumsum([0, *sizes])
            groups += [(number, group, firsts[group], size) for group, size in enumerate(sizes) if size]
        require(len(groups) > 0, f"{path} has no rows")
        self._groups = np.array(groups, np.int64)  # file, row group in the file, its first row in the file, rows
        self._ends = self._groups[:, 3].cumsum()  # of each row group, in the source
        self.labels = Labels(np.concatenate(labels))
        high = int(self.labels.numbers.max())
        names = _class_names(files[0].name, self._file(0).schema_arrow, label)
        where = self.id(int(self.labels.numbers.argmax()))
        known = f"{len(names)} names of classes; see {where}; allowed are labels from 0 to {len(names) - 1}"
        require(high < (len(names) or MOST_CLASSES), f"{path} has label {high}, and {known}")
        self.class_names = names or tuple(map(str, range(high + 1)))
        self.block, self.window = int(np.median(self._groups[:, 3])), MOST_KEPT // 2  # for the training order

    def _forget(self) -> None:
        self._process = os.getpid()
        self._open: dict[int, Any] = {}
        self._kept: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_process": 0, "_open": {}, "_kept": {}}

    def item(self, index: int) -> Sample:
        group, row = self._place(index)
        name = self.id(index)
        value = self._column(group, name)[row].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if data is None:
            path = value.get("path") if isinstance(value, dict) else None
            where = f"only the path {path!r:.100}" if path else "no image"
            raise BadImage(Reason.missing, f"is {where} in the file; store the images themselves in it", name)
        return Sample(data, self.label(index), name)

    def id(self, index: int) -> str:
        group, row = self._place(index)
        file, _, first, _ = self._groups[group]
        return f"{self._files[file].name.removesuffix('.parquet')}/{first + row}"

    def stamp(self, index: int) -> tuple[int, ...]:
        return self._stamps[self._groups[self._place(index)[0], 0]]

    def paths(self) -> Paths:
        return list(map(str, self._files))

    def _place(self, index: int) -> tuple[int, int]:
        """The row group of a sample, and its row in the group."""
        check_index(index, len(self))
        group = int(np.searchsorted(self._ends, index, side="right"))
        return group, int(index - (self._ends[group] - self._groups[group, 3]))

    def _column(self, group: int, name: str) -> "pyarrow.ChunkedArray":
        if os.getpid() != self._process:  # after a fork: pyarrow's handles and memory must not be shared
            self._forget()
        number, inside = (int(value) for value in self._groups[group, :2])
        if not self._is_unchanged(number):
            raise BadImage(Reason.changed, "is in a file that changed since it was opened; start again", name)
        kept = self._kept.get(group)
        if kept is None:
            file = self._file(number)
            size = file.metadata.row_group(inside).total_byte_size
            if size > LARGEST_GROUP:
                raise BadImage(Reason.too_large, f"is in a row group of {size:,} bytes; write smaller row groups", name)
            try:
                with damage_explained("is in a damaged row group"):
                    kept = file.read_row_group(inside, columns=[self._image], use_threads=False).column(self._image)
            except BadImage:
                raise
            except ValueError as error:
                raise BadImage(Reason.corrupt, str(error), name) from None
            keep(self._kept, group, kept, MOST_KEPT)
        return kept

    def _file(self, number: int) -> "pyarrow.parquet.ParquetFile":
        return self._open.get(number) or keep(self._open, number, self._opened(number), MOST_OPEN)

    def _opened(self, number: int) -> "pyarrow.parquet.ParquetFile":
        return open_parquet(Path(str(self._files[number])))

    def _labels_of(self, number: int, label: str) -> np.ndarray:
        """The labels of all rows of a file."""
        return read_labels(self._files[number].name, self._file(number), label)

    def _is_unchanged(self, number: int) -> bool:
        return file_stamp(str(self._files[number])) == self._stamps[number]


def open_parquet(path: Path) -> "pyarrow.parquet.ParquetFile":
    """Open a parquet file without reading its rows."""
    parquet = pyarrow_parquet()
    check_regular(path)
    with damage_explained(f"{path.name} is not a valid parquet file"):
        return parquet.ParquetFile(path, memory_map=True)


def pyarrow_parquet() -> Any:
    """The module of pyarrow that reads parquet; raises where it is not installed."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise ModuleNotFoundError("parquet files need pyarrow: pip install 'vitlab[data]'") from None
    return parquet


@contextlib.contextmanager
def damage_explained(problem: str) -> Iterator[None]:
    """Turn pyarrow's errors, except that memory is short, into a ValueError that starts with the problem."""
    from pyarrow import ArrowException

    try:
        yield
    except MemoryError:
        raise
    except (ArrowException, OSError) as error:
        said = str(error).partition("\n")[0][:160]
        raise ValueError(f"{problem} ({said}); download the file again") from None


def _files(path: Path, split: str) -> list[Path]:
    """The files of one split, sorted by name."""
    require(path.exists() or path.is_symlink(), f"{path} does not exist; give a parquet file or a folder of them")
    if not path.is_dir():
        check_regular(path)
        require(not split, f"{path.name} is one file, so it has no split {split!r}; give the folder, or leave it out")
        return [path]
    found = sorted(file for folder in (path, path / "data") for file in folder.glob("*.parquet"))
    return chosen_split(found, split, str(path))


def chosen_split(found: Sequence[Place], split: str, path: str) -> list[Place]:
    """The files of a split, by their names; all of them if there is only one."""
    by_split: dict[str, list[Place]] = {}
    for file in found:
        match = NAME.fullmatch(file.name)
        by_split.setdefault(match[1] if match else file.name.removesuffix(".parquet"), []).append(file)
    require(bool(found), f"{path} has no parquet files; give a folder with NAME.parquet files, or one file")
    known = f"{path} has the splits {sorted(by_split)!r:.300}"
    if not split:
        require(len(by_split) == 1, f"{known}; choose one with ?split=NAME")
        return list(found)
    require(split in by_split, f"{known}, not {split!r}")
    return by_split[split]


def _check_columns(file: str, schema: "pyarrow.Schema", image: str, label: str) -> None:
    from pyarrow import types

    for column in (image, label):
        require(schema.names.count(column) == 1, f"{file} has no column {column!r}; it has {schema.names!r:.300}")
    kind = schema.field(image).type
    if types.is_struct(kind):
        inside = kind.get_field_index("bytes")
        kind = kind.field(inside).type if inside >= 0 else kind
    is_binary = types.is_binary(kind) or types.is_large_binary(kind)
    require(is_binary, f"{file}: column {image!r} is {kind!s:.100}; allowed are binary and struct with binary `bytes`")
    kind = schema.field(label).type
    require(types.is_integer(kind), f"{file}: column {label!r} is {kind!s:.100}; allowed are whole numbers")


def read_labels(file: str, opened: "pyarrow.parquet.ParquetFile", label: str) -> np.ndarray:
    """The labels of all rows of a file; raises where one is missing or not a class."""
    with damage_explained(f"{file}: column {label!r} is damaged"):
        column = opened.read(columns=[label], use_threads=False).column(label)
    require(column.null_count == 0, f"{file}: column {label!r} has {column.null_count:,} rows without a label")
    values = column.to_numpy()
    bad = np.flatnonzero((values < 0) | (values >= MOST_CLASSES))
    first = f"row {bad[0]}: label {values[bad[0]]}" if len(bad) else ""
    require(not first, f"{file}, {first} is not a class; -1 marks a split without labels")
    return values.astype(np.int32)


def _class_names(file: str, schema: "pyarrow.Schema", label: str) -> tuple[str, ...]:
    """The names under `features.label.names` in the metadata of the datasets library; empty if there are none."""
    value: object = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"), f"{file}: metadata huggingface")
    for key in ("info", "features", label, "names"):
        value = cast(dict[str, object], value).get(key) if isinstance(value, dict) else None
    if not isinstance(value, list):
        return ()
    require(all(isinstance(name, str) for name in value), f"{file}: the class names are not all strings")
    return tuple(cast(list[str], value))
