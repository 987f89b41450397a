"""Studies as JSON values: how far each is, its cells over the seeds so far, the verdicts on its claims. No torch."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vitlab.files.store import is_locked
from vitlab.files.strict_json import from_json, parse_json
from vitlab.files.user_files import read_regular
from vitlab.page.run_browser.folders import Found
from vitlab.page.run_browser.values import REMARKS, Values, check_there, is_regular, stamp_of
from vitlab.require import require
from vitlab.run_dir import DIVERGED, RESULT
from vitlab.studies.catalogue import STUDIES
from vitlab.studies.claims import Claim, GridCell, Row
from vitlab.studies.rows import LARGEST_ROW, check_row
from vitlab.studies.scales import find_scale
from vitlab.studies.study import cell_name
from vitlab.studies.study_file import CELLS, FORMAT, ROW, STUDY, TRAINED, StudyFile, study_file
from vitlab.studies.verdicts import FEWEST, Judged, verdict

LARGEST_FILE = 2**20  # bytes
LARGEST_NUMBER = 1e15  # of a value, a weight or a threshold: their squares and sums are finite
MOST_CELLS, MOST_TERMS = 1_000, 1_000  # that are shown; of all claims together
Trained = set[tuple[str, str]]  # (training, seed folder) of every finished run


@dataclass
class _Known:
    """What is known of a study since its files had these times and sizes."""

    stamp: tuple[int, int] = (-1, -1)
    asked: StudyFile | None = None
    why: str = ""  # it is unreadable
    rows: dict[Path, tuple[tuple[int, int], Row | str]] = field(default_factory=dict)  # or why one is unreadable
    values: Values = field(default_factory=dict)


class Studies:
    """The studies below a folder. Files that have not changed are not read again, and cost one stat each."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def values(self, found: Sequence[Found]) -> list[Values]:
        """What the page shows of every study among what was found, running ones first."""
        studies = [one for one in found if one.kind == "study"]
        self._known = {one.id: self._known.get(one.id, _Known()) for one in studies}
        rows: dict[Path, list[Path]] = {}
        for path in (one.path for one in found if one.kind == "row"):
            if path.parent.parent.name == CELLS:
                rows.setdefault(path.parent.parent.parent, []).append(path)
        trained = _trained(found) if studies else {}
        shown = [self._study(one, rows.get(one.path, []), trained.get(one.path.parent, set())) for one in studies]
        return sorted(shown, key=lambda one: one["state"] != "running")

    def _study(self, found: Found, rows: Sequence[Path], trained: Trained) -> Values:
        known = self._known[found.id]
        self._catch_up(known, found.path, rows)
        shown, about = known.values, {"id": found.id, "name": found.name}
        if known.asked is None:
            return {**about, "state": "unreadable", "why": known.why, "claims": [], "cells": []}
        is_measured = 0 < shown["measured"] == len(known.asked.cells) * len(shown["seeds"])
        state = "running" if is_locked(found.path) else "finished" if is_measured else "stopped"
        trainings = _trainings(known.asked, shown["seeds"], trained)
        if found.name == ".":  # the root itself: its trainings are not below it
            about["name"], trainings = known.asked.study, None
        return {**about, "state": state, "why": "", "trainings": trainings, **shown}

    def _catch_up(self, known: _Known, folder: Path, rows: Sequence[Path]) -> None:
        """Read what has changed, and compute what follows from it."""
        stamp, stamps = stamp_of(folder / STUDY), {path: stamp_of(path / ROW) for path in rows}
        if known.stamp != stamp:
            known.stamp, known.rows = stamp, {}  # rows may be of another study now
            try:
                known.asked, known.why = _read_study(folder), ""
            except (OSError, ValueError) as error:
                known.asked, known.why = None, str(error)
        elif {path: one for path, (one, _) in known.rows.items()} == stamps:
            return
        same = {path: one for path, one in known.rows.items() if one[0] == stamps.get(path)}
        fresh = {path: (at, _row(path, known.asked)) for path, at in stamps.items() if path not in same}
        known.rows = {path: same.get(path) or fresh[path] for path in stamps}
        if known.asked is not None:
            known.values = _shown(known.asked, {path: row for path, (_, row) in known.rows.items()})


def _trained(found: Iterable[Found]) -> dict[Path, Trained]:
    """The finished runs of studies, by the folder of those studies."""
    finished: dict[Path, Trained] = {}
    for path in (one.path for one in found if one.kind == "run"):
        training, above = path.parent, path.parent.parent
        if above.name == TRAINED and (is_regular(path / RESULT) or is_regular(path / DIVERGED)):
            finished.setdefault(above.parent, set()).add((training.name, path.name))
    return finished


def _trainings(asked: StudyFile, seeds: Sequence[int], trained: Trained) -> Values | None:
    """How many trainings are finished, and of how many: an older file does not say. None if there are none."""
    names, folders = set(asked.trainings), {f"seed-{seed}" for seed in seeds}
    done = sum(name in names and (folder in folders or not asked.seeds) for name, folder in trained)
    return {"finished": done, "total": len(names) * len(folders) if asked.seeds else None} if names else None


# -- Files -----------------------------------------------------------------------------------------


def _read_study(folder: Path) -> StudyFile:
    check_there(folder, STUDY)
    asked = from_json(StudyFile, parse_json(read_regular(folder / STUDY, LARGEST_FILE), STUDY), STUDY)
    require(asked.format == FORMAT, f"{STUDY} does not describe a study: its format is {asked.format!r:.40}")
    terms = [term for claim in asked.claims for compared in claim.comparisons for term in compared.terms]
    require(
        len(terms) <= MOST_TERMS, f"its claims compare {len(terms):,} groups of cells; at most {MOST_TERMS:,} can be"
    )
    limits = [compared.threshold for claim in asked.claims for compared in claim.comparisons]
    _check_numbers([*limits, *(term.weight for term in terms)])
    return asked if asked.grid else _completed(asked)


def _completed(asked: StudyFile) -> StudyFile:
    """A file that was written before it described the grid, with that of the catalogue if it has the same cells."""
    if asked.study not in STUDIES:
        return asked
    study = STUDIES[asked.study]
    scale = find_scale(asked.scale)
    full = study_file(study, scale, study.cells(scale))
    return full if full.cells == asked.cells else replace(asked, remakes=study.remakes)


def _row(folder: Path, asked: StudyFile | None) -> Row | str:
    """The row in a folder, or why it cannot be read or is not of the study."""
    try:
        check_there(folder, ROW)
        row = from_json(Row, parse_json(read_regular(folder / ROW, LARGEST_ROW), ROW), ROW)
        study = {} if asked is None else {"study": asked.study, "scale": asked.scale}
        check_row(row, cell=folder.parent.name, seed=folder.name.removeprefix("seed-"), **study)
        _check_numbers([*row.values.values(), row.published or 0.0])
    except (OSError, ValueError) as error:
        return str(error)
    return row


def _check_numbers(numbers: Iterable[float]) -> None:
    require(all(abs(one) < LARGEST_NUMBER for one in numbers), f"a number is not below {LARGEST_NUMBER:g}")


# -- Values ----------------------------------------------------------------------------------------


def _shown(asked: StudyFile, found: Mapping[Path, Row | str]) -> Values:
    """What follows from the files of a study."""
    cells: dict[str, list[Row]] = {name: [] for name in asked.cells}
    remarks = []
    for path, row in found.items():
        if isinstance(row, str):
            remarks.append(f"{path.parent.name}, {path.name}: {row}")
        elif path.parent.name in cells:
            cells[path.parent.name].append(row)
    rows = [row for own in cells.values() for row in own]
    seeds = sorted({*asked.seeds, *(row.seed for row in rows)})
    described = {name: asked.grid.get(name, GridCell({"cell": name}, "")) for name in list(cells)[:MOST_CELLS]}
    return {
        "remakes": asked.remakes,
        "scale": asked.scale,
        "seeds": seeds,
        "measured": len(rows),
        "total": len(cells) * len(seeds) if asked.seeds else None,  # an older file does not say
        "factors": list(dict.fromkeys(factor for cell in described.values() for factor in cell.levels)),
        "cells": [_cell(cell, cells[name]) for name, cell in described.items()],
        "cell_count": len(cells),
        "claims": [_claim(claim, rows, _grid(asked, rows)) for claim in asked.claims],
        "remarks": remarks[:REMARKS],
    }


def _cell(cell: GridCell, rows: Sequence[Row]) -> Values:
    """A cell with the mean and deviation of its measure over the seeds so far."""
    measure = cell.measure or next((row.measure for row in rows), "")
    values = [row.values[measure] for row in rows if measure in row.values]
    return {
        "levels": cell.levels,
        "measure": measure,
        "mean": statistics.fmean(values) if values else None,
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "seeds": len(values),
        "empty": len(rows) - len(values),  # runs that diverged
        "published": cell.published if cell.published is not None else next((row.published for row in rows), None),
    }


def _grid(asked: StudyFile, rows: Iterable[Row]) -> list[GridCell]:
    """The cells of a study; of a file that does not describe them, those that have rows."""
    seen = {cell_name(row.levels): GridCell(row.levels, row.measure) for row in rows}
    return list((asked.grid or seen).values())


def _claim(claim: Claim, rows: Sequence[Row], grid: Sequence[GridCell]) -> Values:
    found = verdict(claim, rows, grid)
    said = {"name": claim.name, "says": claim.says, "source": claim.source, "answer": found.answer}
    return {**said, "fewest": FEWEST, "comparisons": [_comparison(one) for one in found.judged]}


def _comparison(judged: Judged) -> Values:
    """A comparison with its interval, if there are enough seeds, and the seeds that it has or would need."""
    found = judged.interval
    span = {} if found is None else {"mean": found.mean, "low": found.low, "high": found.high}
    return {
        "says": str(judged.comparison),
        "answer": judged.answer,
        "seeds": judged.seeds,
        "needed": judged.seeds_needed,
        **span,
    }
