"""Studies by their names, one after another: what `vitlab study NAME ...` runs or plans."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab.report.tables import Results
from vitlab.runs.study.plan import Plan
from vitlab.runs.study.study import StudyResult, check_places, places_table, plan_study, study, study_names
from vitlab.studies.scale import Scale


@dataclass(frozen=True)
class Plans:
    """What several studies would run; they share equal trainings."""

    plans: tuple[Plan, ...]

    @property
    def together(self) -> Plan:
        """One plan for all."""
        first, *others = self.plans
        return first.together_with(others)

    @property
    def tables(self) -> tuple[Results, ...]:
        """The trainings of a single study; those of several would be a long list."""
        return (self.plans[0].table,) if len(self.plans) == 1 else ()

    @property
    def places(self) -> tuple[Results, ...]:
        """The data that must be given, if any."""
        found = places_table(self.together)
        return (found,) if found.rows else ()

    def lines(self) -> Iterator[str]:
        """What each study takes, and what all take together."""
        for one in self.plans:
            yield f"{one.study.name}: {one.in_words()}"
            yield from (f"{one.study.name}: {remark}" for remark in one.remarks)
        if len(self.plans) > 1:
            yield f"together: {self.together.in_words()}"


def plan_studies(names: Sequence[str], out: str | Path = "studies", **how: Any) -> Plans:
    """Plan studies by name, or all of them; see `plan_study`."""
    return Plans(tuple(plan_study(name, out, **how) for name in study_names(names)))


def run_studies(
    names: Sequence[str],
    out: str | Path = "studies",
    *,
    scale: str | Scale = "tiny",
    data: Mapping[str, str] | Sequence[str] = (),
    **how: Any,
) -> Iterator[StudyResult]:
    """Run studies by name, or all of them, and yield each result as it comes; see `study`.

    The data of all is checked before the first one starts.
    """
    check_places(plan_studies(names, out, scale=scale).together, data)
    for name in study_names(names):
        yield study(name, out, scale=scale, data=data, **how)
