"""The rows of a study as a table and a figure, beside what the paper prints. Nothing is measured here."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from vitlab.drawing.canvas import Drawn
from vitlab.drawing.intervals import Panel, Point, draw_levels
from vitlab.report.tables import Cell, Results
from vitlab.studies.claims import Row
from vitlab.studies.scale import three_digits
from vitlab.studies.study import COMPUTE, LARGEST, SPEED, Figure, Study, cell_name
from vitlab.studies.study import Cell as StudyCell
from vitlab.studies.verdicts import FEWEST, interval, means_by_seed

OURS, PRINTED, TASK, RATE = "here", "the paper", "task", "learning rate"
Groups = dict[str, dict[str | float, list[Row]]]  # the rows of every point, by curve and place along the x axis


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
    columns = [
        *(_factor_name(one, rows) for one in factors),
        *["stand-in"] * has_stand_in,
        measure,
        "std",
        runs_of(measure),
        *others,
    ]
    columns += [COMPUTE] * has_compute + [_printed_name(rows, printed)] * has_printed
    return Results(tuple(columns), tuple(lines))


def runs_of(measure: str) -> str:
    """What the runs of a cell are called: speed has no random numbers, so that its runs are only repeated."""
    return "repeats" if measure == SPEED else "seeds"


def _factor_name(factor: str, rows: Sequence[Row]) -> str:
    """What a factor is called: smaller scales multiply learning rates, and name them as the paper does."""
    return f"{PRINTED}'s {factor}" if factor == RATE and not _is_paper(rows) else factor


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
    legend = ", ".join(_factor_name(factor, rows) for factor in study.figure.curves)
    return draw_levels(study_panels(study, rows), legend=legend)


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
    groups = _groups(study.figure, rows, printed=False)
    title = _with_mean(f"{OURS}, scale {rows[0].scale}", groups)
    height = study.figure.label or rows[0].measure
    return _over(study.figure, rows, Panel(title, _curves(groups, printed=False), None, "", height))


def _printed_panel(study: Study, rows: Sequence[Row]) -> Panel:
    """What the paper prints; its numbers are of other tasks at other scales, and so not of ours."""
    rows = [row for row in rows if row.published is not None]
    shown = study.figure
    if not _is_paper(rows):
        shown = replace(shown, curves=tuple(factor for factor in shown.curves if factor != TASK))
    groups, title = _groups(shown, rows, printed=True), _printed_name(rows, study.printed)
    title = _with_mean(title, groups) if _is_paper(rows) else title
    return _over(shown, rows, Panel(title, _curves(groups, printed=True), None, "", rows[0].measure))


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
    x = ", ".join(_factor_name(factor, rows) for factor in shown.along)
    return panel._replace(names=names, x=x, is_joined=is_joined, limits=limits)


def _with_mean(title: str, groups: Groups) -> str:
    """The title, with the factors over which every point is a mean."""
    averaged = _varied([own for places in groups.values() for own in places.values()])
    return f"{title}, mean over {' and '.join(f'{factor}s' for factor in averaged)}" if averaged else title


def _numbered(row: Row, figure: Figure) -> Iterator[Row]:
    """A row for each numbered value of a row, with the number as one more level."""
    stem = f"{figure.y}, {figure.x} "
    for name, value in row.values.items():
        if name.startswith(stem):
            levels = {**row.levels, str(figure.x): name.removeprefix(stem)}
            yield replace(row, levels=levels, measure=figure.y, values={figure.y: value}, published=None)


def _groups(shown: Figure, rows: Sequence[Row], *, printed: bool) -> Groups:
    """The rows behind every point, of the same measure and with the same levels of the factors that are averaged.

    Of other levels than those that all points have, such as the tasks of one model alone, the mean would be another.
    Where every place along the x axis has levels of its own, such as the tasks of a group, its points have the same.
    """
    groups: Groups = {}
    for row in (row for row in rows if row.measure == rows[0].measure):
        at = _place(row, shown, printed=printed)
        groups.setdefault(_curve(row, shown), {}).setdefault(at, []).append(row)
    points = [(at, own) for places in groups.values() for at, own in places.items()]
    averaged = _varied([own for _, own in points])
    everywhere = _shared([own for _, own in points], averaged)
    shared = {at: everywhere or _shared([own for where, own in points if where == at], averaged) for at, _ in points}
    return {
        curve: {at: [row for row in own if _levels(row, averaged) in shared[at]] for at, own in places.items()}
        for curve, places in groups.items()
    }


def _shared(points: Sequence[Sequence[Row]], factors: Sequence[str]) -> set[tuple[str, ...]]:
    """The combinations of levels that all points have."""
    return set.intersection(*({_levels(row, factors) for row in own} for own in points)) if points else set()


def _varied(points: Sequence[Sequence[Row]]) -> list[str]:
    """The factors that have several levels in one point."""
    factors = points[0][0].levels if points and points[0] else ()
    return [one for one in factors if any(len({row.levels[one] for row in own}) > 1 for own in points)]


def _levels(row: Row, factors: Sequence[str]) -> tuple[str, ...]:
    return tuple(row.levels[factor] for factor in factors)


def _curves(groups: Groups, *, printed: bool) -> dict[str, list[Point]]:
    """Points by curve: where along the x axis, how high, and how uncertain."""
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
    means = list(means_by_seed(rows, rows[0].measure, [row.levels for row in rows]).values()) if rows else []
    if not means:
        return None, 0.0
    return statistics.fmean(means), interval(means).half if len(means) >= FEWEST else 0.0
