"""Every sample is accounted for: found = used + quarantined by reason + excluded by rule, exactly, in every epoch."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from vitlab.data.images.refusals import CONVERSIONS, SUFFIXES
from vitlab.errors import TooManyBadImages, first_few

TRAINING_LIMIT = 0.05  # of the samples; more bad images than that stop a training
FEW = 10  # bad images that never stop a training, unless none at all is allowed
SHOWN = 10  # bad samples that a message names
KINDS, EXAMPLES = 50, 3  # suffixes of excluded files that are counted apart, and names that are kept of each
RULES = {  # why a source leaves something out: one, and several
    "hidden": ("hidden file or folder", "hidden files or folders"),
    "system_folder": ("system folder", "system folders"),
    "other_suffix": ("file that is not an image", "files that are not images"),
    "linked_folder": ("link to a folder", "links to folders"),
    "no_class_folder": ("file outside the class folders", "files outside the class folders"),
    "empty_class_folder": ("class folder without images", "class folders without images"),
    "no_imagenet_class": ("image without a class of ImageNet", "images without a class of ImageNet"),
    "link": ("link in a tar file", "links in tar files"),
    "device": ("device in a tar file", "devices in tar files"),
    "other": ("special member of a tar file", "special members of tar files"),
    "unsafe_name": ("tar member with an unsafe name", "tar members with unsafe names"),
    "pickle": ("pickle", "pickles"),
    "other_member": ("tar member that is neither image nor label", "tar members that are neither image nor label"),
    "duplicate_key": ("image with the key of an earlier one", "images with the key of an earlier one"),
    "missing_label": ("image without a label", "images without a label"),
    "bad_label": ("image whose label is not a class number", "images whose label is not a class number"),
    "unreadable": ("file that could not be read", "files that could not be read"),
    "label_without_image": ("label without an image", "labels without an image"),
    "truncated": ("tar file that ends too early", "tar files that end too early"),
    "damaged": ("damaged tar file", "damaged tar files"),
    "compressed_shard": ("compressed tar file, which is not read", "compressed tar files, which are not read"),
    "near_duplicate": ("near-duplicate of a test image", "near-duplicates of test images"),
    "listed": ("image on the list of images to exclude", "images on the list of images to exclude"),
}
LISTED = ("near_duplicate", "listed")  # rules of `exclude=FILE` in a data spec


@dataclass(frozen=True)
class Quarantined:
    """A sample that could not be used; `sha256` is that of its bytes, if they could be read."""

    id: str
    reason: str
    detail: str
    sha256: str = ""

    @property
    def why(self) -> str:
        """The reason in words."""
        return self.reason.replace("_", " ")

    @property
    def explained(self) -> str:
        """The reason in brackets; for an item of a torch Dataset, which has no file to look at, the whole detail."""
        return self.detail if self.id.isdecimal() and self.detail else f"({self.why})"


def training_limit(max_bad: float, samples: int) -> float:
    """The share of the samples that may be bad in a training: `max_bad`, or more if that is only a few samples.

    A few are 10, or half of the samples of a smaller set. A `max_bad` of 0 allows none.
    """
    return max(max_bad, min(FEW / max(samples, 1), 0.5)) if max_bad else 0.0


class Excluded(Counter[str]):
    """What a source leaves out, counted by rule; `kinds` counts by rule and suffix and keeps the first names."""

    def __init__(self, counted: Mapping[str, int] | None = None) -> None:
        super().__init__(counted or {})
        self.kinds: dict[tuple[str, str], tuple[int, list[str]]] = {}

    def leave_out(self, rule: str, name: str) -> None:
        """Count one file or folder."""
        self[rule] += 1
        found = name.rpartition("/")[2].lower().rpartition(".")
        suffix = f".{found[2]}" if rule == "other_suffix" and found[0] and found[2].isalnum() else ""
        self._add(rule, suffix, 1, [name])

    def add(self, other: "Excluded") -> None:
        """Add the counts of another."""
        self.update(other)
        for (rule, suffix), (count, names) in other.kinds.items():
            self._add(rule, suffix, count, names)

    def described(self) -> str:
        """What is left out, in a few words, such as "left out: 2 .txt files"; empty if nothing is."""
        said = [_counted(rule, suffix, count) for (rule, suffix), (count, _) in self.by_rule()]
        return f"left out: {', '.join(said)}" if said else ""

    def lines(self) -> list[str]:
        """What is left out, a line for each rule and suffix: how many, the first names, and what to do if anything."""
        named = {rule for rule, _ in self.kinds}
        unnamed = [_counted(rule, "", count) for rule, count in sorted(self.items()) if rule not in named]
        return [*unnamed, *(_explained(*kind, *found) for kind, found in self.by_rule())]  # a file has counts only

    def unread_pictures(self) -> list[str]:
        """The lines about pictures with a suffix that is not read, such as .heic."""
        return [_explained(*kind, *found) for kind, found in self.by_rule() if kind[1] in SUFFIXES]

    def on_lists(self) -> list[str]:
        """The lines about samples that a list of the user's leaves out, such as near-duplicates of test images."""
        return [_explained(*kind, *found) for kind, found in self.by_rule() if kind[0] in LISTED]

    def by_rule(self) -> list[tuple[tuple[str, str], tuple[int, list[str]]]]:
        """((rule, suffix), (count, first names)) of what is left out, by rule, the largest count first."""
        return sorted(self.kinds.items(), key=lambda item: (item[0][0], -item[1][0], item[0][1]))

    def _add(self, rule: str, suffix: str, count: int, names: list[str]) -> None:
        if (rule, suffix) not in self.kinds and len(self.kinds) >= KINDS:
            suffix = ""
        before, known = self.kinds.get((rule, suffix), (0, []))
        self.kinds[rule, suffix] = (before + count, [*known, *names][:EXAMPLES])


def _counted(rule: str, suffix: str, count: int) -> str:
    one, several = (f"{suffix} file", f"{suffix} files") if suffix else RULES.get(rule, (rule, rule))
    return f"{count:,} {one if count == 1 else several}"


def _explained(rule: str, suffix: str, count: int, names: list[str]) -> str:
    such = ", ".join(map(repr, names)) + (" ..." if count > len(names) else "")
    files = f"{_counted(rule, suffix, count)} ({such})"
    format = SUFFIXES.get(suffix, "")
    way = CONVERSIONS.get(format)
    return f"{files}; {format} is not supported; convert to JPEG or PNG, for example with {way}" if way else files


@dataclass
class Account:
    """What became of the samples of a data set in a run, epoch by epoch.

    `found` and `excluded` are known when the source is opened; the rest grows as samples are read. A sample that is bad
    in every epoch is listed once and counted in each.
    """

    found: int
    excluded: Counter[str] = field(default_factory=Counter)
    used: Counter[int] = field(default_factory=Counter)  # by epoch
    bad: Counter[int] = field(default_factory=Counter)  # by epoch
    quarantined: dict[str, Quarantined] = field(default_factory=dict)  # by id

    @property
    def samples(self) -> int:
        """The number of samples to be used: those found without those excluded."""
        return self.found - self.excluded.total()

    def add(self, used: Iterable[int], bad: Iterable[tuple[int, Quarantined]], max_bad: float) -> None:
        """Count used samples and bad ones by epoch; raises TooManyBadImages if over `max_bad` of them are bad."""
        self.used.update(used)
        for epoch, sample in bad:
            self.bad[epoch] += 1
            self.quarantined[sample.id] = sample
        if len(self.quarantined) > self._most(max_bad):
            raise TooManyBadImages(self._complaint(max_bad))

    def clear(self) -> None:
        """Reset the counts of samples that were read; what was found and excluded stays."""
        for counted in (self.used, self.bad, self.quarantined):
            counted.clear()

    def take(self, other: "Account") -> None:
        """Add the counts of another account of the same data, such as another rank's; the next `add` checks them."""
        self.used.update(other.used)
        self.bad.update(other.bad)
        self.quarantined.update(other.quarantined)

    def is_balanced(self, epoch: int = 0) -> bool:
        """Whether every sample was used, quarantined or excluded in a finished epoch without repeats."""
        return self.samples == self.used[epoch] + self.bad[epoch]

    def entries(self, epoch: int = 0) -> Iterator[tuple[str, str]]:
        """The account of an epoch as text: (what became of samples, how many and why)."""
        yield "found", f"{self.found:,}"
        yield "used", f"{self.used[epoch]:,}"
        for why, count in sorted(Counter(bad.why for bad in self.quarantined.values()).items()):
            yield "quarantined", f"{count:,} {why}"
        for rule, count in sorted(self.excluded.items()):
            yield "excluded", _counted(rule, "", count)

    def to_json(self) -> dict[str, object]:
        """The account as JSON values, with every bad sample."""
        return {
            "found": self.found,
            "used": {str(epoch): count for epoch, count in sorted(self.used.items())},
            "bad": {str(epoch): count for epoch, count in sorted(self.bad.items())},
            "quarantined": [asdict(sample) for sample in self.quarantined.values()],
            "excluded": dict(self.excluded),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Account":
        """The account that `to_json` wrote."""
        listed = [Quarantined(**sample) for sample in values["quarantined"]]
        return cls(
            found=values["found"],
            excluded=Counter(values["excluded"]),
            used=Counter({int(epoch): count for epoch, count in values["used"].items()}),
            bad=Counter({int(epoch): count for epoch, count in values["bad"].items()}),
            quarantined={sample.id: sample for sample in listed},
        )

    def _most(self, max_bad: float) -> int:
        return math.floor(max_bad * self.samples + 1e-6)  # a share such as 10 of 49 is rounded

    def _complaint(self, max_bad: float) -> str:
        listed, most = list(self.quarantined.values()), self._most(max_bad)
        allowed = f"at most {most:,} of {self.samples:,} are allowed" if most else "none is allowed"
        way = "repair or remove them (vitlab data check lists all), or allow more (a max_bad= of 0.1 allows a tenth)"
        return f"{len(listed)} bad image{'s' * (len(listed) != 1)}, {allowed}: {names(listed, SHOWN)}; {way}"


def names(bad: Sequence[Quarantined], shown: int) -> str:
    """The first `shown` bad samples with their reasons, and how many more there are."""
    return first_few([f"{sample.id!r} {sample.explained}" for sample in bad], shown)
