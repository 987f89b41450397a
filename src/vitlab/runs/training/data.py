"""The data of a run: opened, split into training and validation images, and checked against what the run began with."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch.utils.data import Dataset

from vitlab.data.class_names import renumbered
from vitlab.data.fingerprint import DataCard
from vitlab.data.fingerprint import describe as describe_data
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import open_data, open_source, with_max_pixels
from vitlab.data.splits import development_split
from vitlab.metrics.multilabel import check_kept
from vitlab.require import require
from vitlab.run_dir import OBJECT, RunSpec
from vitlab.spec import Task

Data = str | Source | Dataset[Any]  # how a caller names a data set: see `open_data`
NO_SOURCES: Mapping[str, Source] = MappingProxyType({})


@dataclass(frozen=True)
class Opened:
    """Training images, open and fingerprinted. With millions of files that takes minutes, so it is done once."""

    source: Source
    card: DataCard


@dataclass(frozen=True)
class RunData:
    """The data of a run, opened and split."""

    card: DataCard
    train: Source
    excluded: Counter[str]
    validation: Source | None
    test: Source | None
    sets: Mapping[str, Source]  # every data set that was opened, by the name of its flag
    task: Task


def named_sources(
    data: Data, validation: Data = "", test: Data = "", max_pixels: int | None = None
) -> tuple[dict[str, str], dict[str, Source]]:
    """How run.json names the data sets of a call, and those that the caller gave as objects, both by name."""
    given = {"data": data, "validation": validation, "test": test}
    sources = {name: open_data(one) for name, one in given.items() if not isinstance(one, str)}
    texts = {name: with_max_pixels(one, max_pixels) for name, one in given.items() if isinstance(one, str)}
    return texts | {name: source.spec for name, source in sources.items()}, sources


def open_training_data(spec: str, source: Source | None = None) -> Opened:
    """Open the data that a string such as `folder:photos` names, unless it is open, and fingerprint it."""
    source = open_source(spec) if source is None else source
    return Opened(source, describe_data(source, spec))


def open_run_data(
    spec: RunSpec,
    card: DataCard | None = None,
    *,
    sources: Mapping[str, Source] = NO_SOURCES,
    allow_changed: bool = False,
    command: str = "vitlab resume RUN",
) -> RunData:
    """Open and split the data of a run; see `split_data`. `sources` are sets that the caller has open, by name."""
    try:
        source = sources["data"] if "data" in sources else open_source(spec.data)
    except (OSError, ValueError) as error:
        has_moved = card is not None and not spec.data.startswith(OBJECT)  # a Python object has no place
        moved = f"; if the data has moved: {command} --data SPEC" if has_moved else ""
        raise ValueError(f"{error}{moved}") from None
    if card is not None:
        source = renumbered(source, card.class_names)  # old runs that sorted class numbers as text continue
    opened = Opened(source, describe_data(source, spec.data))
    return split_data(spec, opened, card, sources=sources, allow_changed=allow_changed, command=command)


def split_data(
    spec: RunSpec,
    opened: Opened,
    card: DataCard | None = None,
    *,
    sources: Mapping[str, Source] = NO_SOURCES,
    allow_changed: bool = False,
    command: str = "vitlab resume RUN",
) -> RunData:
    """Split open data into training and validation images, and open the other sets.

    With a `card` the data must be what it was when the run was created; with `allow_changed` it only needs the same
    classes, and the result has the card of the data as it is now.
    """
    if card is not None:
        card.check(opened.card, same_samples=not allow_changed, command=command)
    is_same = card is not None and card.fingerprint == opened.card.fingerprint
    card, whole = card if card is not None and is_same else opened.card, opened.source
    task = _task(spec, whole)
    train, validation = whole, None
    if spec.validation:
        validation = _other_set("validation", spec, card, sources)
    elif spec.held_out:
        train, validation = development_split(whole, spec.held_out)
    test = _other_set("test", spec, card, sources) if spec.test else None
    own = {"data": whole, "validation": validation if spec.validation else None, "test": test}
    sets = {name: source for name, source in own.items() if source is not None}
    if task == "multi-label":
        for source in (one for one in (validation, test) if one is not None):
            check_kept(len(source), spec.model.classes)  # now, not after an epoch
    return RunData(card, train, Counter(whole.excluded), validation, test, sets, task)


def _task(spec: RunSpec, source: Source) -> Task:
    """Multi-label where images have several labels or none; raises where the loss needs exactly one.

    The sigmoid loss alone does not tell: the paper pre-trains with it on images of one label.
    """
    number = source.first_not_single
    if number is None or spec.recipe.masking is not None:
        return "single-label"
    require(
        spec.recipe.loss == "sigmoid",
        f"{source.id(number)!r} of {spec.data!r} has {len(source.label(number))} labels, and the softmax loss needs "
        f"exactly one per image; give --loss sigmoid to learn any number of labels per image",
    )
    return "multi-label"


def _other_set(name: str, spec: RunSpec, card: DataCard, sources: Mapping[str, Source]) -> Source:
    """Open the validation or test set, with the classes of the training data where labels are learned."""
    text = getattr(spec, name)
    source = sources[name] if name in sources else open_source(text)
    if spec.recipe.masking is not None:
        return source
    try:
        return renumbered(source, card.class_names)
    except ValueError as error:
        raise ValueError(f"{text!r} does not fit the training data: {error}") from None
