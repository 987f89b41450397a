"""The rows of a study as a table and a figure, beside what the paper prints. Nothing is measured here."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from vitlab.drawing.canvas import Drawn
from vitlab.drawing.charts import Point, draw_levels
from vitlab.report.tables import Cell, Results
from vitlab.studies.claims import FEWEST, Row, interval
from vitlab.studies.study import Cell as StudyCell
from vitlab.studies.study import Study, cell_name

COMPUTE = "exaFLOPs"
OURS, PRINTED = "this ledger", "the paper"


def sorted_rows(rows: Iterable[Row], cells: Sequence[StudyCell] = ()) -> list[Row]:
    """The rows in the order of the grid's cells, then by seed; files and times do not matter."""
    places = {cell.name: place for place, cell in enumerate(cells)}

    def key(row: Row) -> tuple[int, list[str], int]:
        return places.get(cell_name(row.levels), len(places)), list(row.levels.values()), row.seed

    return sorted(rows, key=key)


def study_table(rows: Sequence[Row]) -> Results:
    """A row for each cell: its levels, mean and deviation over seeds, compute, and what the paper prints."""
    if not rows:
        return Results(("cell",), ())
    measure, factors = rows[0].measure, list(rows[0].levels)
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.levels.values()), []).append(row)
    has_compute = any(row.exaflops for row in rows)
    has_printed = any(row.published is not None for row in rows)
    others = [name for name in dict.fromkeys(name for row in rows for name in row.values) if _is_shown(name, measure)]
    lines: list[tuple[Cell, ...]] = []
    for levels, own in groups.items():
        values = [row.values[measure] for row in own if measure in row.values]
        mean, spread = (statistics.fmean(values) if values else None, _spread(values))
        more = [_mean(own, name) for name in others]
        compute = [float(f"{own[0].exaflops:.3g}")] if has_compute else []
        printed = [own[0].published] if has_printed else []
        lines.append((*levels, mean, spread, len(values), *more, *compute, *printed))
    columns = [*factors, measure, "std", "seeds", *others]
    columns += [COMPUTE] * has_compute + ["published"] * has_printed
    return Results(tuple(columns), tuple(lines))


def _is_shown(name: str, measure: str) -> bool:
    """Whether a further value has a column: not the constants of a measurement."""
    return name != measure and name not in ("test images", "shots", "draws", "batch")


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = [row.values[name] for row in rows if name in row.values]
    return statistics.fmean(values) if values else None


def _spread(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def study_figure(study: Study, rows: Sequence[Row]) -> Drawn:
    """The figure of a study: means over seeds with 95 % intervals, and the paper's numbers beside them if printed."""
    measure = rows[0].measure
    panels = {OURS: _curves(study, rows, printed=False)}
    if any(row.published is not None for row in rows):
        panels[PRINTED] = _curves(study, rows, printed=True)
    x = study.figure.x
    names = None if x == COMPUTE else list(dict.fromkeys(row.levels.get(x, "") for row in rows))
    return draw_levels(panels, names, x=x, y=measure)


def _curves(study: Study, rows: Sequence[Row], *, printed: bool) -> dict[str, list[Point]]:
    """Points by curve: where along the x axis, how high, and how uncertain."""
    groups: dict[str, dict[str | float, list[Row]]] = {}
    for row in rows:
        curve = ", ".join(filter(None, (row.levels.get(factor, "") for factor in study.figure.curves)))
        at: str | float = row.exaflops if study.figure.x == COMPUTE else row.levels.get(study.figure.x, "")
        groups.setdefault(curve, {}).setdefault(at, []).append(row)
    found: dict[str, list[Point]] = {}
    for curve, places in groups.items():
        points = [(at, *_height(own, printed=printed)) for at, own in places.items()]
        found[curve] = [Point(at, mean, half) for at, mean, half in points if mean is not None]
    return {curve: points for curve, points in found.items() if points}


def _height(rows: Sequence[Row], *, printed: bool) -> tuple[float | None, float]:
    """The mean over other factors and seeds, and half of its interval, 0 with too few seeds."""
    if printed:
        cells: Mapping[str, float] = {str(r.levels): r.published for r in rows if r.published is not None}
        return (statistics.fmean(cells.values()) if cells else None), 0.0
    seeds: dict[int, list[float]] = {}
    for row in rows:
        if row.measure in row.values:
            seeds.setdefault(row.seed, []).append(row.values[row.measure])
    means = [statistics.fmean(values) for values in seeds.values()]
    if not means:
        return None, 0.0
    return statistics.fmean(means), interval(means).half if len(means) >= FEWEST else 0.0
