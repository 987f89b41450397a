"""The data of a run: opened, split, checked against what the run began with, and accounted for image by image."""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rich.console import Console
from torch.utils.data import Dataset

from vitlab.data.class_names import Renumbered, renumbered
from vitlab.data.fingerprint import DataCard
from vitlab.data.fingerprint import describe as describe_data
from vitlab.data.images.gate import Decoding
from vitlab.data.loading.accounting import Account, Quarantined, names, training_limit
from vitlab.data.loading.batches import Batch
from vitlab.data.remote.traffic import Counts
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import open_data, open_source, with_decode, with_max_pixels
from vitlab.data.splits import development_split
from vitlab.errors import first_few
from vitlab.files.strict_json import from_json, read_json
from vitlab.metrics.multilabel import check_kept
from vitlab.require import require
from vitlab.run_dir import OBJECT, QUARANTINE, RunDir, RunSpec
from vitlab.runs.progress import say
from vitlab.spec import Task
from vitlab.world.group import World

Data = str | Source | Dataset[Any]  # how a caller names a data set: see `open_data`
NO_SOURCES: Mapping[str, Source] = MappingProxyType({})
NAMED = 3  # bad images or classes that a line names; the quarantine file lists all images


@dataclass(frozen=True)
class TrainingData:
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
    data: Data, validation: Data = "", test: Data = "", max_pixels: int | None = None, decode: Decoding = "exact"
) -> tuple[dict[str, str], dict[str, Source]]:
    """How run.json names the data sets of a call, and those that the caller gave as objects, both by name.

    `decode` is for the training data; sets of their own for validation and test are decoded exactly unless their spec
    says otherwise.
    """
    given = {"data": data, "validation": validation, "test": test}
    sources = {name: open_data(one) for name, one in given.items() if not isinstance(one, str)}
    texts = {name: with_max_pixels(one, max_pixels) for name, one in given.items() if isinstance(one, str)}
    require(decode == "exact" or "data" in texts, "decode is for data given as a spec; set it when you open the source")
    texts |= {name: with_decode(one, decode) for name, one in texts.items() if name == "data"}
    return texts | {name: source.spec for name, source in sources.items()}, sources


def open_training_data(spec: str, source: Source | None = None) -> TrainingData:
    """Open the data that a string such as `folder:photos` names, unless it is open, and fingerprint it."""
    source = open_source(spec) if source is None else source
    return TrainingData(source, describe_data(source, spec))


def read_card(run: RunDir) -> DataCard:
    """What the data was when the run was created."""
    return from_json(DataCard, run.card())


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
    opened = open_training_data(spec.data, source)
    return split_data(spec, opened, card, sources=sources, allow_changed=allow_changed, command=command)


def split_data(
    spec: RunSpec,
    opened: TrainingData,
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
    opened_sets = {"data": whole, "validation": validation if spec.validation else None, "test": test}
    sets = {name: source for name, source in opened_sets.items() if source is not None}
    if task == "multi-label":
        for source in (one for one in (validation, test) if one is not None):
            check_kept(len(source), spec.model.classes)  # now, not after an epoch
    return RunData(card, train, Counter(whole.excluded), validation, test, sets, task)


def _task(spec: RunSpec, source: Source) -> Task:
    """Multi-label where images have several labels or none; raises where the loss needs exactly one.

    The sigmoid loss alone does not decide it: the paper pre-trains with it on images of one label.
    """
    number = source.first_not_single
    if number is None or spec.recipe.masking is not None:
        return "single-label"
    found = f"{source.id(number)!r} of {spec.data!r} has {len(source.label(number))} labels"
    require(spec.recipe.loss == "sigmoid", f"{found}; the softmax loss needs exactly one: give loss='sigmoid'")
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


def tell_classes(console: Console, data: RunData) -> None:
    """Print which files are not read or left out, which folders have no images, and which classes the others lack."""
    for line in data.sets["data"].excluded.unread_pictures():
        say(console, f"warning: left out {line}")
    for line in data.sets["data"].excluded.on_lists():
        say(console, f"left out {line}")
    if empty := data.train.empty_folders:
        say(console, f"warning: folders without images do not become classes: {_named(empty)}; add images or remove "
                     "them")  # fmt: skip
    for name, source in (("validation", data.validation), ("test", data.test)):
        if isinstance(source, Renumbered):
            missing = source.missing()
            lacks = f"; it has no image of {_named(missing)}" if missing else ""
            say(console, f"classes of the {name} data are matched to the training classes by name{lacks}")


def tell_requests(console: Console, run: RunDir, data: RunData, world: World) -> None:
    """Print and record what was requested from the stores of remote data; all ranks must call it."""
    for name, source in data.sets.items():
        total = Counter[str]()
        for part in world.gather(source.requested()):
            total.update(part)
        if total["requests"]:
            run.record("requests", {"set": name, **total})
            say(console, f"remote  {Counts(**total)} ({name})")


def tell_unused(console: Console, unused: Sequence[str], classes: int) -> None:
    """Print which classes have no training images: a mistake, unless the set is part of one with more classes."""
    if unused:
        count = f"{len(unused):,} of {classes:,} classes {'has' if len(unused) == 1 else 'have'} no training images"
        say(console, f"{count}: {_named(unused)}; is a label missing or misspelt? Classes without images keep their "
                     "numbers but are not learned")  # fmt: skip


def _named(classes: Sequence[str]) -> str:
    return first_few([repr(name) for name in classes], NAMED)


# -- Used and bad images -------------------------------------------------------------------------


class RankAccounts:
    """The account of all ranks, up to date after every `settle`; in one process always."""

    def __init__(self, account: Account, max_bad: float, world: World) -> None:
        self.account, self.max_bad, self.world = account, training_limit(max_bad, account.samples), world
        self.local = account if world.ranks == 1 else Account(account.found, account.excluded.copy())

    @property
    def local_limit(self) -> float:
        """The share of bad images that stops this rank: one of several never stops alone, as the others would wait."""
        return self.max_bad if self.world.ranks == 1 else 1.0

    def kept(self, batches: Iterable[Batch]) -> Generator[Batch]:
        """Pass the batches on; as soon as one rank meets a bad image, all add up their accounts."""
        for batch in batches:
            if self.world.ranks > 1 and self.world.agree(bool(batch.bad)):
                self.settle()
            yield batch

    def settle(self) -> None:
        """Add up the accounts of all ranks; all must call it. Raises TooManyBadImages on all of them."""
        if self.world.ranks == 1:
            return
        for part in self.world.gather(self.local.to_json()):
            self.account.take(Account.from_json(part))
        self.local.clear()
        self.account.add((), (), self.max_bad)


def write_quarantine(run: RunDir, account: Account, of: str = "") -> list[Quarantined]:
    """List the bad images, if there are any, in the run's folder; returns those that its file did not list before.

    `of` is what the images are for, if not for training. The file shows what was reported before, also by a process
    that was stopped.
    """
    if not account.quarantined or not run.writes:
        return []
    known = _known(run, of)
    run.write(_file(of), account.to_json())
    return [sample for sample in account.quarantined.values() if sample.id not in known]


def tell_bad(console: Console, run: RunDir, account: Account, fresh: list[Quarantined], of: str = "") -> None:
    """Print which images turned out to be bad since the last time."""
    if not fresh:
        return
    before = len(account.quarantined) - len(fresh)
    count = f"{len(fresh):,} {'more ' if before else ''}of {account.samples:,} {of} images".replace("  ", " ")
    where = f"all {before + len(fresh):,}" if before else "all"
    say(console, f"{count} could not be read: {names(fresh, NAMED)}; {where} are listed in {run.path / _file(of)}")


def _file(of: str) -> str:
    return f"{of}-{QUARANTINE}" if of else QUARANTINE


def _known(run: RunDir, of: str) -> set[str]:
    """The ids in the file; empty if it is missing or damaged, so that they are reported again."""
    try:
        listed = read_json(run.path / _file(of))
        return set(Account.from_json(listed).quarantined)  # pyrefly: ignore[bad-argument-type] - else it raises
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return set()
