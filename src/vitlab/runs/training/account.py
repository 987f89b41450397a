"""Count used and bad images over all ranks, and report bad images and missing classes."""

from collections.abc import Generator, Iterable, Sequence

from rich.console import Console

from vitlab.data.class_names import Renumbered
from vitlab.data.loading.accounting import Account, Quarantined, names, training_limit
from vitlab.data.loading.batches import Batch
from vitlab.run_dir import QUARANTINE, RunDir
from vitlab.runs.progress import say
from vitlab.runs.training.data import RunData
from vitlab.strict_json import read_json
from vitlab.world.group import World

NAMED = 3  # bad images that a line names; their file names all


class Books:
    """The account of all ranks, up to date after every `settle`; in one process always."""

    def __init__(self, account: Account, max_bad: float, world: World) -> None:
        self.account, self.max_bad, self.world = account, training_limit(max_bad, account.samples), world
        self.own = account if world.ranks == 1 else self._empty()

    @property
    def own_limit(self) -> float:
        """How many bad images stop this rank by itself: of several none does, because the others would wait for it."""
        return self.max_bad if self.world.ranks == 1 else 1.0

    def kept(self, batches: Iterable[Batch]) -> Generator[Batch]:
        """The same batches; as soon as one rank meets a bad image, all judge it."""
        for batch in batches:
            if self.world.ranks > 1 and self.world.agree(bool(batch.bad)):
                self.settle()
            yield batch

    def settle(self) -> None:
        """Add up what every rank has booked; all ranks call it. Raises TooManyBadImages on all of them."""
        if self.world.ranks == 1:
            return
        for part in self.world.gather(self.own.to_json()):
            self.account.take(Account.from_json(part))
        self.own.clear()
        self.account.add((), (), self.max_bad)

    def _empty(self) -> Account:
        return Account(self.account.found, self.account.excluded.copy())


# -- Bad images ----------------------------------------------------------------------------------


def write_quarantine(run: RunDir, account: Account, of: str = "") -> list[Quarantined]:
    """Name the bad images, if there are any, in the run's folder; returns those that its file did not name before.

    `of` is what the images are for, where it is not training. The file is what was told: also by a run that was stopped
    and is carried on by another process.
    """
    if not account.quarantined or not run.writes:
        return []
    known = _known(run, of)
    run.write(_file(of), account.to_json())
    return [sample for sample in account.quarantined.values() if sample.id not in known]


def tell_bad(console: Console, run: RunDir, account: Account, fresh: list[Quarantined], of: str = "") -> None:
    """Say which images turned out to be bad since the last time."""
    if not fresh:
        return
    told = len(account.quarantined) - len(fresh)
    count = f"{len(fresh):,} {'more ' if told else ''}of {account.samples:,} {of} images".replace("  ", " ")
    where = f"all {told + len(fresh):,}" if told else "all"
    say(console, f"{count} could not be read: {names(fresh, NAMED)}; {where} are named in {run.path / _file(of)}")


def tell_total(console: Console, run: RunDir, account: Account) -> None:
    """Say at the end how many images a training could not use."""
    if account.quarantined:
        count = f"{len(account.quarantined):,} of {account.samples:,} images"
        say(console, f"{count} could not be read in training: {run.path / QUARANTINE} names each")


def _file(of: str) -> str:
    return f"{of}-{QUARANTINE}" if of else QUARANTINE


def _known(run: RunDir, of: str) -> set[str]:
    """The ids in the file; empty if it is missing or damaged, so that they are reported again."""
    try:
        told = read_json(run.path / _file(of))
        return set(Account.from_json(told).quarantined)  # pyrefly: ignore[bad-argument-type] - else it raises
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return set()


# -- Classes -------------------------------------------------------------------------------------


def tell_classes(console: Console, data: RunData) -> None:
    """Say which pictures are of a format that is not read, which folders have no image, and which classes a validation
    or test set does not have."""
    for line in data.sets["data"].excluded.unread_pictures():
        say(console, f"warning: left out {line}")
    if empty := data.train.empty_folders:
        say(console, f"warning: folders without images are no classes: {_named(empty)}; add images or remove them")
    for name, source in (("validation", data.validation), ("test", data.test)):
        if isinstance(source, Renumbered):
            missing = source.missing()
            lacks = f"; it has no image of {_named(missing)}" if missing else ""
            say(console, f"classes of the {name} data are matched to the training's by name{lacks}")


def tell_unused(console: Console, unused: Sequence[str], classes: int) -> None:
    """Say which classes a training has no image of: a mistake, unless the set is a part of one with more classes."""
    if not unused:
        return
    is_one = len(unused) == 1
    has, keeps = ("has", "It keeps its number and is") if is_one else ("have", "They keep their numbers and are")
    count = f"{len(unused):,} of {classes:,} classes {has} no image to train on"
    say(console, f"{count}: {_named(unused)}; is a label missing or misspelt? {keeps} not learnt")


def _named(classes: Sequence[str]) -> str:
    more = f" and {len(classes) - NAMED:,} more" * (len(classes) > NAMED)
    return ", ".join(map(repr, classes[:NAMED])) + more
