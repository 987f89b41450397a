"""Every sample is accounted for: found = used + quarantined by reason + excluded by rule, exactly, in every epoch."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from vitlab.errors import TooManyBadImages

TRAINING_LIMIT = 0.05  # of the samples; more bad images than that stop a training
FEW = 10  # bad images that never stop a training, unless none at all is allowed
SHOWN = 10  # bad samples that a message names
KINDS, EXAMPLES = 50, 3  # suffixes of excluded files that are counted apart, and names that are kept of each


@dataclass(frozen=True)
class Quarantined:
    """A sample that was asked for and could not be used; `sha256` is that of its bytes, where they could be read."""

    id: str
    reason: str
    detail: str
    sha256: str = ""


def training_limit(max_bad: float, samples: int) -> float:
    """The share of the samples that may be bad in a training: `max_bad`, where a few are always allowed.

    A few are 10, or half of the samples of a smaller set. A `max_bad` of 0 allows none.
    """
    return max(max_bad, min(FEW / max(samples, 1), 0.5)) if max_bad else 0.0


class Excluded(Counter[str]):
    """What a source leaves out, counted by rule; `kinds` counts by rule and suffix, with the first names of each."""

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
        """Count what another has counted."""
        self.update(other)
        for (rule, suffix), (count, names) in other.kinds.items():
            self._add(rule, suffix, count, names)

    def described(self) -> str:
        """In a few words: how many are left out, by rule and suffix."""
        said = [f"{count:,} {rule}{f' {suffix}' if suffix else ''}" for (rule, suffix), (count, _) in self.listed()]
        return f"left out: {', '.join(said)}" if said else ""

    def listed(self) -> list[tuple[tuple[str, str], tuple[int, list[str]]]]:
        """Rule and suffix with the number and the first names of what is left out, by rule, the most first."""
        return sorted(self.kinds.items(), key=lambda item: (item[0][0], -item[1][0], item[0][1]))

    def _add(self, rule: str, suffix: str, count: int, names: list[str]) -> None:
        if (rule, suffix) not in self.kinds and len(self.kinds) >= KINDS:
            suffix = ""
        before, known = self.kinds.get((rule, suffix), (0, []))
        self.kinds[rule, suffix] = (before + count, [*known, *names][:EXAMPLES])


@dataclass
class Account:
    """The books of a run over a data set, epoch by epoch.

    `found` and `excluded` are known when the source is opened; the rest grows as samples are read. A sample that is bad
    in every epoch is listed once and booked in each.
    """

    found: int
    excluded: Counter[str] = field(default_factory=Counter)
    used: Counter[int] = field(default_factory=Counter)  # by epoch
    bad: Counter[int] = field(default_factory=Counter)  # by epoch
    quarantined: dict[str, Quarantined] = field(default_factory=dict)  # by id

    @property
    def samples(self) -> int:
        """How many there are to be used: what was found and is not excluded."""
        return self.found - self.excluded.total()

    def add(self, used: Iterable[int], bad: Iterable[tuple[int, Quarantined]], max_bad: float) -> None:
        """Book the epochs of used samples, and bad samples with theirs.

        Raises TooManyBadImages when over `max_bad` of the samples that are not excluded are bad.
        """
        self.used.update(used)
        for epoch, sample in bad:
            self.bad[epoch] += 1
            self.quarantined[sample.id] = sample
        if len(self.quarantined) > self._most(max_bad):
            raise TooManyBadImages(self._complaint(max_bad))

    def clear(self) -> None:
        """Forget what was booked; what was found and excluded stays."""
        for booked in (self.used, self.bad, self.quarantined):
            booked.clear()

    def take(self, other: "Account") -> None:
        """Add what another has booked of the same data, such as another rank; judged by the next `add`."""
        self.used.update(other.used)
        self.bad.update(other.bad)
        self.quarantined.update(other.quarantined)

    def is_balanced(self, epoch: int = 0) -> bool:
        """Whether every sample found was used, quarantined or excluded in an epoch that is over, without repeats."""
        return self.samples == self.used[epoch] + self.bad[epoch]

    def lines(self, epoch: int = 0) -> Iterator[str]:
        """The books of an epoch as text, one line an entry."""
        yield f"found        {self.found:,}"
        yield f"used         {self.used[epoch]:,}"
        for reason, count in sorted(Counter(bad.reason for bad in self.quarantined.values()).items()):
            yield f"quarantined  {count:,} {reason}"
        for rule, count in sorted(self.excluded.items()):
            yield f"excluded     {count:,} {rule}"

    def to_json(self) -> dict[str, object]:
        """The books as JSON values, every bad sample named."""
        return {
            "found": self.found,
            "used": {str(epoch): count for epoch, count in sorted(self.used.items())},
            "bad": {str(epoch): count for epoch, count in sorted(self.bad.items())},
            "quarantined": [asdict(sample) for sample in self.quarantined.values()],
            "excluded": dict(self.excluded),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Account":
        """The books that `to_json` wrote."""
        listed = [Quarantined(**sample) for sample in values["quarantined"]]
        return cls(
            found=values["found"],
            excluded=Counter(values["excluded"]),
            used=Counter({int(epoch): count for epoch, count in values["used"].items()}),
            bad=Counter({int(epoch): count for epoch, count in values["bad"].items()}),
            quarantined={sample.id: sample for sample in listed},
        )

    def _most(self, max_bad: float) -> int:
        return math.floor(max_bad * self.samples + 1e-6)  # 10 of 49 is a share that is rounded

    def _complaint(self, max_bad: float) -> str:
        listed, most = list(self.quarantined.values()), self._most(max_bad)
        allowed = f"at most {most:,} of {self.samples:,} are allowed" if most else "none is allowed"
        way = "repair or remove them (vitlab data check lists all), or allow more (--max-bad 0.1 allows a tenth)"
        return f"{len(listed)} bad image{'s' * (len(listed) != 1)}, {allowed}: {names(listed, SHOWN)}; {way}"


def names(bad: Sequence[Quarantined], shown: int) -> str:
    """The first `shown` bad samples with their reasons, and how many more there are."""
    named = ", ".join(f"{sample.id!r} ({sample.reason})" for sample in bad[:shown])
    return f"{named} and {len(bad) - shown} more" if len(bad) > shown else named
