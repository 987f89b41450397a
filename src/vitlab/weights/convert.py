"""Convert weights from any supported format, pickles included, to another."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vitlab.errors import WeightsWarning
from vitlab.files.store import sha256
from vitlab.models.build import Model
from vitlab.paper.models import name_of
from vitlab.require import check_arguments
from vitlab.spec import AttentionLike, ConventionName, Conventions, Image, SaveFormat, UnsavedPositions
from vitlab.weights.files.containers import WeightsError, explained, is_pickle, open_container, read_configs
from vitlab.weights.formats import timm
from vitlab.weights.load import load_model, located
from vitlab.weights.released.catalogue import read_fetched
from vitlab.weights.save import save_model

LONGEST = 900  # seconds allowed for reading a pickle
UNPICKLED = "model.safetensors"


class Converted(NamedTuple):
    """A converted model, and notes on what was assumed and on what the new format cannot state."""

    model: Model
    notes: list[str]

    @property
    def name(self) -> str:
        """The paper's name of the model, and its pattern of attention if that is another."""
        attention = getattr(self.model.spec, "attention", "full")
        name = name_of(self.model.spec)
        return name if attention in ("full", "axial") else f"{name}, {attention}"


def convert(
    source: str | Path,
    target: str | Path,
    to: SaveFormat = "vitlab",
    *,
    image: Image | None = None,
    classes: int | None = None,
    conventions: ConventionName | Conventions | None = None,
    heads: int | None = None,
    positions: UnsavedPositions | None = None,
    entry: str = "",
    allow_partial: bool = False,
    allow_nonfinite: bool = False,
    merge: int | None = None,
    attention: AttentionLike | None = None,
) -> Converted:
    """Load the weights in `source`, also from a pickle, and save them in `target` in the format `to`.

    `source` is a path or the name of released weights; `target` must not exist yet. `entry` selects a dictionary inside
    a pickle, such as model_ema. The other options are those of `load_model`.
    """
    check_arguments(convert, locals())
    options = dict(locals())
    for name in ("source", "target", "to", "entry"):
        del options[name]
    notes, source = [], located(source)
    with _safe(source, entry) as (safe, found):
        known = read_fetched(source) if safe != source else None
        if conventions is None and known is not None:
            options["conventions"] = known.conventions
            notes.append(f"conventions are those of {known.name}, as which the file was downloaded")
        elif conventions is None and found == "model" and timm.may_be_deit(open_container(safe)):
            options["conventions"] = "deit"
            notes.append("DeiT's conventions (ImageNet mean and std) are assumed because of the entry 'model'")
        with warnings.catch_warnings(record=True) as assumptions:
            warnings.simplefilter("always", WeightsWarning)
            model = load_model(safe, **options)
        for said in assumptions:
            if issubclass(said.category, WeightsWarning):
                notes.append(str(said.message).replace(UNPICKLED, source.name, 1))
            else:
                warnings.warn(said.message, stacklevel=2)
    if safe != source:
        model.provenance |= {"source": source.name, "sha256": sha256(source)}
    return Converted(model, notes + save_model(model, target, to))


@contextlib.contextmanager
def _safe(source: Path, entry: str) -> Iterator[tuple[Path, str]]:
    """Yield `source`, or temporary safetensors with the tensors of a pickle and the entry they came from."""
    with explained(source):
        pickled = source.is_file() and is_pickle(source)
    if not pickled:
        if entry:
            raise ValueError(f"{source.name} is not a pickle and has no entries to choose from; leave entry out")
        yield source, ""
        return
    with tempfile.TemporaryDirectory(prefix="vitlab-") as scratch:
        safe = Path(scratch, source.stem) / UNPICKLED  # the folder keeps the name, which may identify the weights
        safe.parent.mkdir()
        _unpickle(source, safe, entry)
        for name in read_configs(source.parent):  # as in Hugging Face's folders
            shutil.copy(source.with_name(name), safe.parent)
        yield safe.parent, open_container(safe).metadata.get("entry", "")


def _unpickle(source: Path, target: Path, entry: str) -> None:
    """Convert a pickle in a child process; see `unpickle.py`."""
    command = [sys.executable, "-I", "-m", "vitlab.weights.files.unpickle", str(source.resolve()), str(target), entry]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False, env={})
    except subprocess.TimeoutExpired:
        raise WeightsError(f"reading {source.name} took more than {LONGEST} seconds and was stopped") from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it exceeded its limits of memory or time"])[-1]
        raise WeightsError(f"{source.name} was refused: {reason}")
