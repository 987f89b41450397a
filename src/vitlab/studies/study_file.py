"""The files of a study, and what study.json says about it: enough to show the study without its code."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from vitlab.studies.claims import Claim, GridCell
from vitlab.studies.scale import Scale
from vitlab.studies.study import Cell, Study, grid_of

STUDY, CELLS, ROW, TRAINED = "study.json", "cells", "row.json", "trained"
FORMAT, VERSION = "vitlab-study", 1
IDENTITY = ("format", "version", "study", "scale", "cells")  # what stays the same when a study is continued


@dataclass(frozen=True)
class StudyFile:
    """What a study runs. A study that was begun before these existed lacks the fields that have a default."""

    format: str
    version: int
    study: str
    scale: str
    cells: dict[str, str]  # the training of each cell; empty for one that needs none
    remakes: str = ""
    seeds: tuple[int, ...] = ()  # of all calls so far
    grid: dict[str, GridCell] = field(default_factory=dict)
    trainings: tuple[str, ...] = ()  # all that the cells rest on
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True)
class SeedsSoFar:
    """The only part of an earlier file that a study that is continued takes over."""

    seeds: tuple[int, ...] = ()


def study_file(study: Study, scale: Scale, cells: Iterable[Cell], seeds: Iterable[int] = ()) -> StudyFile:
    """What study.json says about a grid."""
    cells = tuple(cells)
    names = {one: one.name for cell in cells if cell.training is not None for one in cell.training.chain}
    return StudyFile(
        format=FORMAT,
        version=VERSION,
        study=study.name,
        scale=scale.name,
        cells={cell.name: "" if cell.training is None else names[cell.training] for cell in cells},
        remakes=study.remakes,
        seeds=tuple(seeds),
        grid=dict(zip((cell.name for cell in cells), grid_of(cells), strict=True)),
        trainings=tuple(names.values()),
        claims=study.claims_at(scale),
    )
