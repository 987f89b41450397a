"""Every sample is accounted for: found = used + quarantined by reason + excluded by rule, exactly."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

TRAINING_LIMIT = 0.001  # of the samples found; more bad images than that stop a training
SHOWN = 10  # bad samples that a message names


@dataclass(frozen=True)
class Quarantined:
    """A sample that was asked for and could not be used."""

    id: str
    reason: str
    detail: str


class TooManyBadImages(ValueError):  # noqa: N818 - says what is wrong
    """More images are bad than the run allows; the message names them."""


@dataclass
class Account:
    """The books of one pass over a data set.

    `found` and `excluded` are known when the source is opened; `used` and `quarantined` grow as samples are read.
    """

    found: int
    excluded: Counter[str] = field(default_factory=Counter)
    used: int = 0
    quarantined: list[Quarantined] = field(default_factory=list)

    def add(self, used: int, bad: Iterable[Quarantined], max_bad: float) -> None:
        """Book a batch; raises TooManyBadImages when over `max_bad` of all samples found are bad."""
        self.used += used
        self.quarantined += bad
        if self.quarantined and len(self.quarantined) > max_bad * self.found:
            raise TooManyBadImages(self._complaint(max_bad))

    @property
    def is_balanced(self) -> bool:
        """Whether every sample found was used, quarantined or excluded."""
        return self.found == self.used + len(self.quarantined) + self.excluded.total()

    def lines(self) -> Iterator[str]:
        """The books as text, one line an entry."""
        yield f"found        {self.found:,}"
        yield f"used         {self.used:,}"
        for reason, count in sorted(Counter(bad.reason for bad in self.quarantined).items()):
            yield f"quarantined  {count:,} {reason}"
        for rule, count in sorted(self.excluded.items()):
            yield f"excluded     {count:,} {rule}"

    def to_json(self) -> dict[str, object]:
        """The books as JSON values, every bad sample named."""
        return {
            "found": self.found,
            "used": self.used,
            "quarantined": [asdict(bad) for bad in self.quarantined],
            "excluded": dict(self.excluded),
        }

    def _complaint(self, max_bad: float) -> str:
        named = ", ".join(f"{bad.id!r} ({bad.reason})" for bad in self.quarantined[:SHOWN])
        more = f" and {len(self.quarantined) - SHOWN} more" if len(self.quarantined) > SHOWN else ""
        allowed = "none is allowed" if max_bad == 0 else f"{max_bad:.2%} of {self.found:,} are allowed"
        return f"{len(self.quarantined)} bad images, {allowed}: {named}{more}; mend or remove them, or allow more"
