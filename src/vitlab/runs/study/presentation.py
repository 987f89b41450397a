"""The rows of a study as a table and a figure, beside what the paper prints. Nothing is measured here."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from vitlab.drawing.canvas import Drawn
from vitlab.drawing.intervals import Panel, Point, draw_levels
from vitlab.report.tables import Cell, Results
from vitlab.studies.claims import FEWEST, Row, interval
from vitlab.studies.scale import three_digits
from vitlab.studies.study import COMPUTE, LARGEST, SPEED, Figure, Study, cell_name
from vitlab.studies.study import Cell as StudyCell

OURS, PRINTED, TASK = "here", "the paper", "task"


def sorted_rows(rows: Iterable[Row], cells: Sequence[StudyCell] = ()) -> list[Row]:
    """The rows in the order of the grid's cells, then by seed; files and times do not matter."""
    places = {cell.name: place for place, cell in enumerate(cells)}

    def key(row: Row) -> tuple[int, list[str], int]:
        return places.get(cell_name(row.levels), len(places)), list(row.levels.values()), row.seed

    return sorted(rows, key=key)


# -- Tables ----------------------------------------------------------------------------------------


def study_table(rows: Sequence[Row], printed: str = "") -> Results:
    """A row for each cell: its levels, mean and deviation over seeds, compute, and what the paper prints.

    At scales other than the paper's, a column says what stands in for its models, and `printed` of what its numbers
    are.
    """
    if not rows:
        return Results(("cell",), ())
    measure, factors = rows[0].measure, list(rows[0].levels)
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.levels.values()), []).append(row)
    has_stand_in = not _is_paper(rows) and any(row.model for row in rows)
    has_compute = any(row.exaflops for row in rows)
    has_printed = any(row.published is not None for row in rows)
    others = [name for name in dict.fromkeys(name for row in rows for name in row.values) if _is_shown(name, measure)]
    lines: list[tuple[Cell, ...]] = []
    for levels, own in groups.items():
        values = [row.values[measure] for row in own if measure in row.values]
        mean, spread = (statistics.fmean(values) if values else None, _spread(values))
        model = [own[0].model] if has_stand_in else []
        more = [_mean(own, name) for name in others]
        compute = [three_digits(own[0].exaflops)] if has_compute else []
        published = [own[0].published] if has_printed else []
        lines.append((*levels, *model, mean, spread, len(values), *more, *compute, *published))
    columns = [*factors, *["stand-in"] * has_stand_in, measure, "std", runs_of(measure), *others]
    columns += [COMPUTE] * has_compute + [_printed_name(rows, printed)] * has_printed
    return Results(tuple(columns), tuple(lines))


def runs_of(measure: str) -> str:
    """What the runs of a cell are called: speed has no random numbers, so that its runs are only repeated."""
    return "repeats" if measure == SPEED else "seeds"


def _is_paper(rows: Sequence[Row]) -> bool:
    return rows[0].scale == "paper"


def _printed_name(rows: Sequence[Row], printed: str) -> str:
    """What the paper's numbers are: at its own scale those of the same tasks."""
    return PRINTED if _is_paper(rows) or not printed else f"{PRINTED}, {printed}"


def _is_shown(name: str, measure: str) -> bool:
    """Whether a further value has a column: not the constants of a measurement."""
    return name != measure and name not in ("test images", "shots", "draws", "batch")


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = [row.values[name] for row in rows if name in row.values]
    return statistics.fmean(values) if values else None


def _spread(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


# -- Figures ---------------------------------------------------------------------------------------


def study_figure(study: Study, rows: Sequence[Row]) -> Drawn:
    """The figure of a study: means over seeds with 95 % intervals, and the paper's numbers beside them if printed."""
    return draw_levels(study_panels(study, rows), legend=", ".join(study.figure.curves))


def study_panels(study: Study, rows: Sequence[Row]) -> list[Panel]:
    """The panels of a study's figure: what was measured, the largest batch if known, what the paper prints."""
    shown = study.figure
    rows = [one for row in rows for one in _numbered(row, shown)] if shown.y else rows
    panels = [_panel(study, rows)]
    if any(LARGEST in row.values for row in rows):
        panels.append(_panel(study, [replace(row, measure=LARGEST) for row in rows]))
    has_place = COMPUTE not in shown.along or shown.compute is not None
    if has_place and any(row.published is not None for row in rows):
        panels.append(_printed_panel(study, rows))
    return panels


def _panel(study: Study, rows: Sequence[Row]) -> Panel:
    """What was measured."""
    title = f"{OURS}, scale {rows[0].scale}"
    measure, curves = rows[0].measure, _curves(study.figure, rows, printed=False)
    height = study.figure.label or measure
    return _over(study.figure, rows, Panel(_with_mean(title, study.figure, rows), curves, None, "", height))


def _printed_panel(study: Study, rows: Sequence[Row]) -> Panel:
    """What the paper prints; its numbers are of other tasks at other scales, and so not of ours."""
    rows = [row for row in rows if row.published is not None]
    shown = study.figure
    title = _printed_name(rows, study.printed)
    if _is_paper(rows):
        title = _with_mean(title, shown, rows)
    else:
        shown = replace(shown, curves=tuple(factor for factor in shown.curves if factor != TASK))
    curves = _curves(shown, rows, printed=True)
    return _over(shown, rows, Panel(title, curves, None, "", rows[0].measure))


def _over(shown: Figure, rows: Sequence[Row], panel: Panel) -> Panel:
    """The panel with its x axis: names in their order, or compute."""
    limits = (0.0, 100.0) if rows[0].measure.endswith("%") else (-math.inf, math.inf)
    limits = (0.0, math.inf) if rows[0].measure in (SPEED, LARGEST) else limits
    if COMPUTE in shown.along:
        return panel._replace(x=f"{COMPUTE} of pre-training", limits=limits)
    used = {str(point.x) for points in panel.curves.values() for point in points}
    names = [name for name in dict.fromkeys(_along(row, shown) for row in rows) if name in used]
    are_numbers = all(map(_is_number, names))
    if shown.order:
        names.sort(key=lambda name: shown.order.index(name) if name in shown.order else len(shown.order))
    elif are_numbers:
        names.sort(key=float)
    is_joined = are_numbers or bool(shown.order)
    return panel._replace(names=names, x=", ".join(shown.along), is_joined=is_joined, limits=limits)


def _with_mean(title: str, shown: Figure, rows: Sequence[Row]) -> str:
    """The title, with the factors over which every point is a mean."""
    groups: dict[tuple[str, str | float], list[Row]] = {}
    for row in rows:
        groups.setdefault((_curve(row, shown), _place(row, shown)), []).append(row)
    averaged = [
        factor
        for factor in rows[0].levels
        if any(len({row.levels[factor] for row in own}) > 1 for own in groups.values())
    ]
    return f"{title}, mean over {' and '.join(f'{factor}s' for factor in averaged)}" if averaged else title


def _numbered(row: Row, figure: Figure) -> Iterator[Row]:
    """A row for each numbered value of a row, with the number as one more level."""
    stem = f"{figure.y}, {figure.x} "
    for name, value in row.values.items():
        if name.startswith(stem):
            levels = {**row.levels, str(figure.x): name.removeprefix(stem)}
            yield replace(row, levels=levels, measure=figure.y, values={figure.y: value}, published=None)


def _curves(shown: Figure, rows: Sequence[Row], *, printed: bool) -> dict[str, list[Point]]:
    """Points by curve: where along the x axis, how high, and how uncertain."""
    groups: dict[str, dict[str | float, list[Row]]] = {}
    for row in rows:
        at = _place(row, shown, printed=printed)
        groups.setdefault(_curve(row, shown), {}).setdefault(at, []).append(row)
    found: dict[str, list[Point]] = {}
    for curve, places in groups.items():
        points = [(at, *_height(own, printed=printed)) for at, own in places.items()]
        found[curve] = [Point(at, mean, half) for at, mean, half in points if mean is not None]
    return {curve: points for curve, points in found.items() if points}


def _curve(row: Row, shown: Figure) -> str:
    return ", ".join(filter(None, (row.levels.get(factor, "") for factor in shown.curves)))


def _place(row: Row, shown: Figure, *, printed: bool = False) -> str | float:
    """Where along the x axis a row is."""
    if COMPUTE not in shown.along:
        return _along(row, shown)
    return shown.compute(row.levels) if printed and shown.compute is not None else row.exaflops


def _along(row: Row, shown: Figure) -> str:
    """The levels along the x axis, those of several factors in lines; `-` stands for none."""
    levels = [row.levels.get(factor, "") for factor in shown.along]
    text = ("\n" if len(levels) > 1 else ", ").join(level for level in levels if level not in ("", "-"))
    return text.replace(", ", "\n") if len(levels) > 1 else text


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


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
